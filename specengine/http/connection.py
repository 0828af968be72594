"""A connection of uvicorn with the limits that it lacks: how many, how slow in asking and reading.

What an answer holds is no business of this file.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from specengine.errors import Refused
from specengine.http.problems import MAX_HEAD_BYTES, answer_error

logger = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
"""One more is told so and closed."""

HEAD_TIMEOUT_S: Final = 10.0
"""From the first byte, or from connecting, to the end of the headers."""

READ_TIMEOUT_S: Final = 20.0
"""A peer that takes nothing for so long while an answer waits for it is dropped."""

KEEP_ALIVE_S: Final = 30.0
"""A connection without a request is closed after so long."""


class Connection(H11Protocol):
    """One peer."""

    _head_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a peer in, or tell it that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, f"{MAX_CONNECTIONS} connections are open already.")
        else:
            self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes in; the headers must be whole in time."""
        super().data_received(data)
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._head_timer = _cancelled(self._head_timer)
        elif self._head_timer is None and not self.transport.is_closing():
            self._await_head()

    def pause_writing(self) -> None:
        """Wait for a peer that does not read, but not for ever."""
        super().pause_writing()
        self._read_timer = _cancelled(self._read_timer)
        self._read_timer = self.loop.call_later(READ_TIMEOUT_S, self._drop)

    def resume_writing(self) -> None:
        """Go on, as the peer reads again."""
        super().resume_writing()
        self._read_timer = _cancelled(self._read_timer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        super().connection_lost(exc)
        self._head_timer = _cancelled(self._head_timer)
        self._read_timer = _cancelled(self._read_timer)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has too long a head."""
        self._refuse(400, f"{msg} A head may have {MAX_HEAD_BYTES} bytes.")

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._end_slow_head)

    def _end_slow_head(self) -> None:
        self._refuse(408, f"the request's head did not come within {HEAD_TIMEOUT_S:g} s.")

    def _drop(self) -> None:
        logger.warning("a peer of the HTTP door does not read; dropped")
        self.transport.abort()

    def _refuse(self, status: int, what: str) -> None:
        """Answer without a request that could be answered, and close."""
        response = answer_error(Refused(what, status=status))
        lines = [f"HTTP/1.1 {status} Refused".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + bytes(response.body))
        self.transport.close()


def _cancelled(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
