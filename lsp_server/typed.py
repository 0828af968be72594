"""What a user has written at a place since a prompt was made for it, as told by the edits.

Text that the editor closes behind the cursor by itself, as in ``f(|)``, is not the user's and is
kept apart: a prompt need not hold it. It knows no request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lsp_server.documents import Edit

AUTO_CLOSED: Final = {"(": ")", "[": "]", "{": "}", '"': '"', "'": "'", "`": "`"}
"""What editors insert behind the cursor by themselves."""

_BRACKETS: Final = (")", "]", "}")
_LINE_BETWEEN: Final = re.compile(r"(\r?\n[ \t]*)(\r?\n[ \t]*)")
"""What Enter inserts between two brackets; editors leave the cursor on the first new line."""


@dataclass(frozen=True)
class Typed:
    """The text between a place and the cursor."""

    start: int
    """The place, in code points of the document."""
    text: str = ""
    """With the document's line ends."""
    closers: str = ""
    """What stands behind the cursor since then, the nearest first."""

    @property
    def cursor(self) -> int:
        """Where the cursor must be, in code points."""
        return self.start + len(self.text)

    def after(self, edit: Edit) -> Typed | None:
        """Return what is there after an edit, or None if it changed something else."""
        if not self.start <= edit.start <= self.cursor:
            return None
        if edit.end < self.cursor:
            return self._after_inside(edit)
        num_passed = edit.end - self.cursor
        removed = self.text[edit.start - self.start :]
        kept, closers = self.text[: edit.start - self.start], self.closers[num_passed:]
        if num_passed > len(self.closers) or not _is_balanced(removed, self.closers, num_passed):
            return None
        opener, closer = edit.text[:1], edit.text[1:]
        # Editors leave the cursor between the two.
        if not removed and not num_passed and closer and AUTO_CLOSED.get(opener) == closer:
            return Typed(self.start, kept + opener, closer + closers)
        between = _LINE_BETWEEN.fullmatch(edit.text)
        if not removed and not num_passed and closers[:1] in _BRACKETS and between is not None:
            return Typed(self.start, kept + between[1], between[2] + closers)
        is_passed = edit.text.endswith(self.closers[:num_passed]) or not edit.text
        return Typed(self.start, kept + edit.text, closers) if is_passed else None

    def _after_inside(self, edit: Edit) -> Typed | None:
        """Editors move an ``else`` to the left by themselves, and the cursor with it."""
        begin, end = edit.start - self.start, edit.end - self.start
        if not _is_balanced(self.text[begin:end], self.closers, 0):
            return None
        return Typed(self.start, self.text[:begin] + edit.text + self.text[end:], self.closers)


def _is_balanced(removed: str, closers: str, num_passed: int) -> bool:
    """Whether what is removed takes along the closers that came with it."""
    openers = [char for char in removed if char in AUTO_CLOSED]
    return not closers or not openers or num_passed == len(openers)
