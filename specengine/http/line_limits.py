"""Two wishes of llama.cpp's ``/infill``: how far lines are indented at least, and the time."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

INDENTATION: Final = re.compile(r"\n([ \t]*)(?=\S)")
"""What stands before each line that is not empty."""


@dataclass
class LineLimits:
    """Passes text on as long as the wishes hold.

    Source:  the behaviour of llama.cpp's server, but here an empty line does not end a text.
    """

    num_indent: int = 0
    """Blanks that each line after the first begins with at least; 0 is no wish."""
    max_ms: float = 0.0
    """From the first text on; over at the next line end. 0 is no wish."""
    clock: Callable[[], float] = time.perf_counter
    has_ended: bool = False
    """Whether nothing is passed on any more."""
    _text: str = field(default="", repr=False)
    _num_passed: int = field(default=0, repr=False)
    _started_at: float | None = field(default=None, repr=False)

    def feed(self, text: str) -> str:
        """Take some text; return what may be shown of it."""
        if self.has_ended:
            return ""
        if self._started_at is None:
            self._started_at = self.clock()
        self._text += text
        passed = self._pass_on(self._end())
        if self.max_ms and "\n" in text and self._elapsed_ms() > self.max_ms:
            self.has_ended = True
        return passed

    def finish(self) -> str:
        """Return what was held back, when the text has ended by itself."""
        return "" if self.has_ended else self._pass_on(len(self._text))

    def _pass_on(self, end: int) -> str:
        passed = self._text[self._num_passed : end]
        self._num_passed = end
        return passed

    def _end(self) -> int:
        """Return up to where the text may be shown."""
        if not self.num_indent:
            return len(self._text)
        for line in INDENTATION.finditer(self._text, self._num_passed):
            if len(line.group(1)) < self.num_indent:
                self.has_ended = True
                return _before_empty_lines(self._text[: line.start() + 1])
        # The next line may be too shallow; then the empty ones before it are not wanted either.
        return _before_empty_lines(self._text)

    def _elapsed_ms(self) -> float:
        assert self._started_at is not None
        return (self.clock() - self._started_at) * 1000


def _before_empty_lines(text: str) -> int:
    """Return where the line ends and blanks at the end of a text begin, if one is a line end."""
    at = text.find("\n", len(text.rstrip()))
    return len(text) if at < 0 else at
