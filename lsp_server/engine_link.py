"""Holds one connection to an engine: opens it, and opens it again with growing pauses when lost.

It knows neither documents nor the editor: what happens is told to a listener. A request that comes
while there is no connection is the caller's to answer with nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from specengine.client import Client
from specengine.errors import EngineUnavailable, SpecEngineError
from specengine.protocol import EngineStatus
from specengine.trouble import log_trouble

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.25
MAX_PAUSE_S: Final = 30.0
MAX_FAILURES: Final = 6
"""After as many failures in a row the link gives up until it is asked to try again."""

STABLE_S: Final = 30.0
"""A connection that lasted this long was no failure, so that pauses begin small again."""


class LinkListener(Protocol):
    """Who is told; all calls come on the event loop."""

    def on_attempt(self) -> None:
        """The engine is being started or connected to."""

    def on_status(self, status: EngineStatus) -> None:
        """The engine says what it is doing."""

    def on_outage(self, error: SpecEngineError) -> None:
        """There is no connection, and there was none or it was lost; the link tries again."""

    def on_give_up(self, error: SpecEngineError) -> None:
        """The link has stopped trying."""


@dataclass(frozen=True)
class Timing:
    """Clock and pause, so that tests need not wait."""

    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]]


class EngineLink:
    """The way to the engine; ``start`` it once, ``close`` it at the end."""

    def __init__(
        self,
        open_client: Callable[[], Awaitable[Client]],
        listener: LinkListener,
        timing: Timing,
    ) -> None:
        self._open_client = open_client
        self._listener = listener
        self._timing = timing
        self._task: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._attempt: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._has_given_up = False

    @property
    def client(self) -> Client | None:
        """The open connection, if there is one."""
        return self._client if self._client is not None and self._client.is_connected else None

    @property
    def attempt(self) -> asyncio.Future[None] | None:
        """Done when the attempt to connect that is under way has ended; None without one."""
        return self._attempt

    def start(self) -> None:
        """Connect in the background."""
        if self._task is None:
            self._begin_attempt()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="engine-link")

    def retry(self) -> None:
        """Try again at once if the link has given up."""
        if self._has_given_up:
            self._wake.set()

    async def close(self) -> None:
        """End the connection; the engine stays."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._end_attempt()
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _run(self) -> None:
        failures = 0
        while True:
            started_s = self._timing.clock()
            error = await self._connect_and_hold()
            lasted_s = self._timing.clock() - started_s
            failures = 1 if lasted_s >= STABLE_S else failures + 1
            if failures > MAX_FAILURES:
                await self._give_up(error)
                failures = 0
                continue
            self._listener.on_outage(error)
            await self._timing.sleep(pause_s(failures))

    async def _connect_and_hold(self) -> SpecEngineError:
        """Return why there is no connection any more."""
        self._begin_attempt()
        self._listener.on_attempt()
        try:
            await self._hold(await self._open_client())
            failure = EngineUnavailable("the engine has gone; it is started again.")
        except SpecEngineError as error:
            failure = error
        except Exception as error:
            # Nobody awaits this task: an error that left it would end suggestions in silence.
            log_trouble(logger, "the connection to the engine failed")
            kind = type(error).__name__
            failure = EngineUnavailable(f"the engine cannot be used ({kind}).", hint="See the log.")
        finally:
            self._end_attempt()
        if self._client is not None:
            await self._client.close()
            self._client = None
        return failure

    async def _hold(self, client: Client) -> None:
        self._client = client
        self._end_attempt()
        client.on_status = self._listener.on_status
        if client.status is not None:
            self._listener.on_status(client.status)
        await client.wait_closed()

    async def _give_up(self, error: SpecEngineError) -> None:
        self._has_given_up = True
        self._wake.clear()
        self._listener.on_give_up(error)
        await self._wake.wait()
        self._has_given_up = False

    def _begin_attempt(self) -> None:
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_future()

    def _end_attempt(self) -> None:
        if self._attempt is not None:
            self._attempt.set_result(None)
            self._attempt = None


def pause_s(failures: int) -> float:
    """Return the pause after a number of failures in a row."""
    return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (failures - 1))
