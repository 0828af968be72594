"""Strings that end a completion, found in text that comes piece by piece."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on up to the stop string that is whole first, which is not passed on itself.

    Text that may be the beginning of one is held back until more of it is known.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        assert all(strings), "an empty string would end every text"
        self._strings = tuple(strings)
        self._held = ""
        self.has_met = False
        """Whether one was found; nothing is passed on from then on."""

    def feed(self, text: str) -> str:
        """Take a piece of text; return what is sure to stand before any stop string."""
        if self.has_met:
            return ""
        known = self._held + text
        start = _first_met(known, self._strings)
        if start is not None:
            self.has_met, self._held = True, ""
            return known[:start]
        num_held = max((_num_begun(known, string) for string in self._strings), default=0)
        self._held = known[len(known) - num_held :]
        return known[: len(known) - num_held]

    def finish(self) -> str:
        """Return what was held back: no more text will come."""
        held, self._held = self._held, ""
        return held


def _first_met(text: str, strings: Sequence[str]) -> int | None:
    """Return where the string starts that a reader of the text has read first, or None."""
    found = [(text.find(string), len(string)) for string in strings]
    ends = [(start + length, start) for start, length in found if start >= 0]
    return min(ends)[1] if ends else None


def _num_begun(text: str, string: str) -> int:
    """Return how many characters at the end of a text begin the string."""
    longest = min(len(text), len(string) - 1)
    return next((num for num in range(longest, 0, -1) if text.endswith(string[:num])), 0)
