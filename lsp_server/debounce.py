"""How long to wait before a request is worth its work: nothing for a pause, a little in a burst.

Editors wait themselves (VS Code 50 ms, Neovim 200 ms). It reads no clock: the caller tells the
time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

FAST_GAP_MS: Final = 90.0
"""Keys closer together than this come from a burst."""

PAUSE_MS: Final = 1000.0
"""A longer gap is no typing and says nothing about its speed."""

_NUM_GAPS: Final = 4


@dataclass
class KeystrokePace:
    """The latest gaps between the changes of one document."""

    _last_ms: float | None = None
    _gaps_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NUM_GAPS))

    def observe(self, now_ms: float) -> None:
        """Take note of a change."""
        if self._last_ms is not None:
            gap_ms = now_ms - self._last_ms
            if gap_ms > PAUSE_MS:
                self._gaps_ms.clear()
            else:
                self._gaps_ms.append(gap_ms)
        self._last_ms = now_ms

    def delay_ms(self, now_ms: float, max_ms: float) -> float:
        """Return how long to wait now, at most ``max_ms``.

        In a burst the next key is likely before the answer; the wait ends when the usual gap is
        over, so that a single key never waits.
        """
        if self._last_ms is None or not self._gaps_ms or max_ms <= 0:
            return 0.0
        usual_gap_ms = sum(self._gaps_ms) / len(self._gaps_ms)
        if usual_gap_ms >= FAST_GAP_MS:
            return 0.0
        return min(max_ms, max(0.0, self._last_ms + usual_gap_ms - now_ms))
