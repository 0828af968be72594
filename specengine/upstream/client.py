"""A client of servers upstream with the face of the engine's: ``Complete`` in, ``Done`` out.

It lives beside the engine's client, in the language server's process: a process between them would
add a hop to each key and know nothing more. What is ours stays as it is: context, typing session,
rules on the text, trace. What a server upstream lacks is made in this package: healing by text,
prompts that its prefix cache holds, latest-wins per document, and the local engine when no server
answers. It loads no torch.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

from specengine.errors import (
    EngineBusy,
    EngineUnavailable,
    InternalFault,
    SettingsInvalid,
    SpecEngineError,
)
from specengine.models.registry import load as load_models
from specengine.protocol import (
    CancelCause,
    Chunk,
    Complete,
    Done,
    EngineStatus,
    StopReason,
)
from specengine.trouble import log_trouble
from specengine.upstream.asking import Asker, Timing
from specengine.upstream.fallback import Fallback, OpenLocal
from specengine.upstream.options import UpstreamOptions
from specengine.upstream.run import Run
from specengine.upstream.server import Server

logger = logging.getLogger(__name__)

MAX_RUNS: Final = 64
"""Requests that run at once; one more is refused."""


class UpstreamClient:
    """Asks servers upstream; make it with ``open``."""

    def __init__(self, asker: Asker, open_local: OpenLocal | None, timing: Timing) -> None:
        self.status: EngineStatus | None = None
        """Who answers: the servers upstream, or the local engine."""
        self.on_status: Callable[[EngineStatus], None] | None = None
        """Called on the event loop when somebody else answers."""
        self._asker = asker
        self._fallback = Fallback(open_local, self._tell) if open_local is not None else None
        self._timing = timing
        self._request_ids = itertools.count(1)
        self._runs: dict[int, Run] = {}
        self._following: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Those, and others that are being cancelled."""
        self._closed = asyncio.Event()

    @classmethod
    async def open(
        cls,
        options: UpstreamOptions,
        open_local: OpenLocal | None = None,
        timing: Timing | None = None,
    ) -> UpstreamClient:
        """Ask each server what it is; ``open_local`` is for when none answers.

        Raises:  EngineUnavailable when none answers and there is nothing to fall back to;
            ConfigError for options that cannot work.
        """
        if not options.urls:
            raise SettingsInvalid(
                "upstream.urls is empty.", hint="Set it to the addresses of your servers."
            )
        timing = timing or Timing()
        models = load_models()
        if options.template:
            models.get(options.template)
        servers = [Server(url, options, timing.clock) for url in options.urls]
        asker = Asker(servers, options, models, timing)
        client = cls(asker, open_local, timing)
        failure = await asker.probe()
        if failure is not None and open_local is None:
            await client.close()
            raise EngineUnavailable(failure.what, hint=failure.hint)
        if failure is not None:
            logger.warning("no server upstream answers: %s", failure)
        client._tell(asker.status())
        return client

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent."""
        return not self._closed.is_set()

    async def wait_closed(self) -> None:
        """Return when the client is closed; servers that fail do not close it."""
        await self._closed.wait()

    async def close(self) -> None:
        """End all requests and connections; the local engine stays."""
        self._closed.set()
        for run in list(self._runs.values()):
            run.finish(EngineUnavailable("the connection upstream is closed."))
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._asker.close()
        if self._fallback is not None:
            await self._fallback.close()

    def next_request(self) -> int:
        """Return a request number that this client has not used."""
        return next(self._request_ids)

    async def complete(self, message: Complete) -> AsyncGenerator[Chunk | Done]:
        """Ask and yield the chunks, then ``Done``.

        Leaving the iteration early cancels the request at the server.

        Raises:  RequestError when it is refused or fails; EngineUnavailable when all is closed.
        """
        if not self.is_connected:
            raise EngineUnavailable("the connection upstream is closed.")
        if len(self._runs) >= MAX_RUNS:
            raise EngineBusy(f"{MAX_RUNS} requests are running.")
        for older in list(self._runs.values()):
            # Servers serve many at once, so that what looks ahead need not wait; it only ends.
            if older.message.document == message.document or older.message.is_ahead:
                self.cancel(older.message.request, CancelCause.SUPERSEDED)
        run = self._runs[message.request] = Run(message, self._timing.clock())
        task = asyncio.create_task(self._follow(run), name="upstream-request")
        self._following[message.request] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while True:
                answer = await run.answers.get()
                if isinstance(answer, SpecEngineError):
                    raise answer
                yield answer
                if isinstance(answer, Done):
                    return
        finally:
            del self._runs[message.request], self._following[message.request]
            task.cancel()

    def cancel(self, request: int, cause: CancelCause = CancelCause.CLIENT) -> None:
        """End a request; its ``Done`` says ``cancelled``."""
        if self._fallback is not None:
            self._fallback.cancel(request, cause)
        self._end(request, StopReason.CANCELLED, cause)

    def stop(self, request: int) -> None:
        """End a request with the text so far, which is enough."""
        if self._fallback is None or not self._fallback.stop(request):
            self._end(request, StopReason.STOPPED)

    def query_status(self) -> None:
        """Tell at ``on_status`` who answers."""
        if self.status is not None and self.on_status is not None:
            self.on_status(self.status)

    def _end(self, request: int, reason: StopReason, cause: CancelCause | None = None) -> None:
        """Give the last word, and close the connection, which servers take as a cancel."""
        if (run := self._runs.get(request)) is not None:
            run.finish(run.done(self._timing.clock(), reason, cause))
            if run.has_text_from_server:
                self._tell(self._asker.status())
            self._following[request].cancel()

    async def _follow(self, run: Run) -> None:
        try:
            run.finish(await self._answer(run))
        except SpecEngineError as error:
            run.finish(error)
        except Exception:
            log_trouble(logger, "a request upstream failed")
            run.finish(InternalFault("the request upstream could not be followed."))

    async def _answer(self, run: Run) -> Done:
        failure = await self._asker.answer(run)
        if failure is None:
            self._tell(self._asker.status())
            reason = run.reading.stop_reason if run.reading is not None else None
            assert reason is not None, "an answer that has no end is a failure"
            return run.done(self._timing.clock(), reason)
        if self._fallback is None:
            raise failure
        logger.info("the local engine answers: %s", failure)
        return await self._fallback.answer(run)

    def _tell(self, status: EngineStatus) -> None:
        if status != self.status:
            self.status = status
            self.query_status()
