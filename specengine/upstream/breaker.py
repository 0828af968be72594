"""Whether a server is worth asking: after some failures in a row it is left alone for a while.

Then one request tries it again; if that fails too, the pause is twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_FAILURES: Final = 3
"""So many in a row open the breaker."""

FIRST_PAUSE_S: Final = 5.0
MAX_PAUSE_S: Final = 60.0


class Breaker:
    """What is known of one server's health."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures = 0
        self._num_pauses = 0
        self._left_alone_until_s = 0.0
        self._is_trying = False

    @property
    def can_ask(self) -> bool:
        """Whether a request may go there now."""
        return self._clock() >= self._left_alone_until_s and not self._is_trying

    @property
    def wait_s(self) -> float:
        """How long until a request may go there, at least."""
        return max(0.0, self._left_alone_until_s - self._clock())

    @property
    def is_healthy(self) -> bool:
        """Whether its last answer was one."""
        return not self._failures

    def begin(self) -> None:
        """A request goes there; after a pause it goes alone."""
        self._is_trying = self._failures >= MAX_FAILURES

    def end(self) -> None:
        """The request is over; whether it went well is told by the other methods, or unknown."""
        self._is_trying = False

    def succeed(self) -> None:
        """It has answered."""
        self._failures = self._num_pauses = 0

    def fail(self, *, is_final: bool = False) -> None:
        """It has not answered as it should; ``is_final`` if another try would fail too."""
        self._failures = MAX_FAILURES if is_final else self._failures + 1
        if self._failures >= MAX_FAILURES:
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**self._num_pauses)
            self._num_pauses = min(self._num_pauses + 1, 16)
            self.rest(pause_s)

    def rest(self, seconds: float) -> None:
        """Leave it alone for so long, as it has asked for."""
        self._left_alone_until_s = max(self._left_alone_until_s, self._clock() + seconds)
