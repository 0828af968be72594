"""Where a document was edited in this session: the new side of each hunk, as it is now.

Offsets are code points and move with later edits. It keeps no text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from lsp_server.documents import Edit

MAX_PLACES: Final = 8
"""Kept for each document; the one that was edited longest ago makes room."""

NEAR_CHARS: Final = 200
"""Edits so close to each other are one place."""

MAX_EDIT_CHARS: Final = 4000
"""A longer edit is no typing: a formatter, another branch. It makes all places void."""


@dataclass(frozen=True)
class EditedPlace:
    """A stretch of a document."""

    start: int
    end: int
    tick: int
    """Of its last edit; a later one has a higher."""


class EditLog:
    """The places of one document."""

    def __init__(self) -> None:
        self._places: list[EditedPlace] = []

    @property
    def places(self) -> list[EditedPlace]:
        """All places, the latest first."""
        return sorted(self._places, key=lambda place: -place.tick)

    def note(self, edits: Iterable[Edit], tick: int) -> None:
        """Take note of edits, in their order."""
        for edit in edits:
            if max(edit.end - edit.start, len(edit.text)) > MAX_EDIT_CHARS:
                self._places.clear()
            else:
                self._add(edit, tick)

    def _add(self, edit: Edit, tick: int) -> None:
        start, end = edit.start, edit.start + len(edit.text)
        kept: list[EditedPlace] = []
        for place in (_moved(place, edit) for place in self._places):
            if place.start - NEAR_CHARS <= end and start <= place.end + NEAR_CHARS:
                start, end = min(start, place.start), max(end, place.end)
            else:
                kept.append(place)
        kept.append(EditedPlace(start, end, tick))
        self._places = sorted(kept, key=lambda place: place.tick)[-MAX_PLACES:]


def _moved(place: EditedPlace, edit: Edit) -> EditedPlace:
    return replace(
        place, start=_moved_offset(place.start, edit), end=_moved_offset(place.end, edit)
    )


def _moved_offset(offset: int, edit: Edit) -> int:
    if offset <= edit.start:
        return offset
    new_end = edit.start + len(edit.text)
    return new_end if offset < edit.end else offset + new_end - edit.end
