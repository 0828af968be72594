"""Tokens in an array, and where in it the end of another text came before.

It knows no drafter and no model. A *place* is an index into ``ids`` behind such an occurrence: what
stands there is how the text went on then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Ids: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = npt.NDArray[np.intp]

GAP: Final = -1
"""Stands where a text ends; no token has this id."""

MAX_MATCH: Final = 16
"""Longer matches are not told apart."""

MAX_PLACES: Final = 48
"""Most recent places that are looked at."""


class Text:
    """A text that grows."""

    def __init__(self, capacity: int = 2048) -> None:
        # In front of the text stand gaps, so that nobody who looks back wraps around.
        self._ids: Ids = np.full(MAX_MATCH + capacity, GAP, np.int32)
        self._end = MAX_MATCH

    def __len__(self) -> int:
        """Return the number of its tokens."""
        return self._end - MAX_MATCH

    @property
    def ids(self) -> Ids:
        """Return its tokens behind ``MAX_MATCH`` gaps; a view."""
        return self._ids[: self._end]

    @property
    def token_ids(self) -> Ids:
        """Return its tokens; a view."""
        return self._ids[MAX_MATCH : self._end]

    @property
    def num_bytes(self) -> int:
        """Return what its array takes."""
        return self._ids.nbytes

    @property
    def tail(self) -> Ids:
        """Return its last ``MAX_MATCH`` tokens, gaps in front if there are fewer."""
        return self._ids[self._end - MAX_MATCH : self._end]

    def extend(self, token_ids: Sequence[int] | Ids) -> None:
        """Add tokens."""
        end = self._end + len(token_ids)
        if end > len(self._ids):
            grown = np.full(2 * end, GAP, np.int32)
            grown[: self._end] = self.ids
            self._ids = grown
        self._ids[self._end : end] = token_ids
        self._end = end

    def places(self, tail: Ids) -> Places:
        """Return the most recent places behind the longest ends of ``tail``, ascending."""
        ids = self.ids
        found = np.flatnonzero(ids[MAX_MATCH:-1] == tail[-1]) + (MAX_MATCH + 1)
        return narrowed(ids, found, tail, 1)


def narrowed(ids: Ids, places: Places, tail: Ids, known_len: int) -> Places:
    """Return the ``MAX_PLACES`` most recent places of those with longer matches, if there are more.

    ``known_len`` tokens of ``tail`` stand before each place already.
    """
    depth = known_len + 1
    while len(places) > MAX_PLACES and depth <= MAX_MATCH and tail[-depth] != GAP:
        longer = places[ids[places - depth] == tail[-depth]]
        if not len(longer):
            break
        places, depth = longer, depth + 1
    return places[-MAX_PLACES:]


def match_lens(ids: Ids, places: Places, tail: Ids) -> npt.NDArray[np.intp]:
    """Return for each place how many of the last tokens before it are those of ``tail``.

    ``ids`` may be a ring.
    """
    before = ids.take(places[:, None] - np.arange(1, MAX_MATCH + 1), mode="wrap")
    backwards = tail[::-1]
    differs = (before != backwards) | (backwards == GAP)
    return np.where(differs.any(1), differs.argmax(1), MAX_MATCH)


def continuations(ids: Ids, places: Places, num_tokens: int, end: int) -> Ids:
    """Return what follows each place, [places, num_tokens]; ``ids`` may be a ring.

    Behind ``end``, the end of the text, it goes on with itself from the place on, as a loop does.
    """
    offsets = np.arange(num_tokens)
    return ids.take(places[:, None] + offsets % (end - places)[:, None], mode="wrap")
