"""How long to wait before a request is worth its work: until the next key, if that comes first.

Editors wait themselves (VS Code 50 ms, Neovim 200 ms). It reads no clock: the caller tells the
time, and how long the latest answers took.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

PAUSE_MS: Final = 1000.0
"""A longer gap is no typing and says nothing about its speed."""

OVERDUE: Final = 1.2
"""A key that has not come after so many usual gaps is not coming: the burst is over."""

LATE: Final = 2.0
"""So much longer than was waited for it, an answer that never came is taken to be."""

_NUM_GAPS: Final = 4
_NUM_ANSWERS: Final = 8


@dataclass
class KeystrokePace:
    """The latest gaps between the changes of one document, and the latest answer times."""

    _last_ms: float | None = None
    _gaps_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NUM_GAPS))
    _answers_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NUM_ANSWERS))

    def observe(self, now_ms: float) -> None:
        """Take note of a change."""
        if self._last_ms is not None:
            gap_ms = now_ms - self._last_ms
            if gap_ms > PAUSE_MS:
                self._gaps_ms.clear()
            else:
                self._gaps_ms.append(gap_ms)
        self._last_ms = now_ms

    def observe_answer(self, ms: float, *, has_come: bool = True) -> None:
        """Take note of how long the engine took for something to show.

        One that had not come when the next key did would have taken longer; nobody knows how long.
        """
        self._answers_ms.append(ms if has_come else ms * LATE)

    def delay_ms(self, now_ms: float, max_ms: float) -> float:
        """Return how long to wait now, at most ``max_ms``.

        An answer that comes before the next key is asked for at once. One that does not would be
        thrown away in the middle of a burst, so the wait ends when the next key is overdue. A
        single key never waits, nor does one before any answer has been measured.
        """
        if self._last_ms is None or not self._gaps_ms or not self._answers_ms or max_ms <= 0:
            return 0.0
        usual_gap_ms = sum(self._gaps_ms) / len(self._gaps_ms)
        if _median(self._answers_ms) <= usual_gap_ms:
            return 0.0
        overdue_ms = self._last_ms + OVERDUE * usual_gap_ms
        return min(max_ms, max(0.0, overdue_ms - now_ms))


def _median(values: Collection[float]) -> float:
    # The module statistics takes 18 ms to import, of an editor's start.
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[~middle]) / 2
