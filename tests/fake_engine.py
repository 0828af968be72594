"""An engine that speaks the protocol over a real Unix socket and answers as a test tells it.

It loads nothing: a test takes each request from ``requests`` and says what is written. It answers
``Cancel`` and ``Stop`` by itself, as the engine does, and notes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from specengine import protocol
from specengine.client import read_frame
from specengine.protocol import (
    Cancel,
    CancelCause,
    Chunk,
    Complete,
    Done,
    EngineMessage,
    EngineState,
    EngineStatus,
    Failed,
    Hello,
    PhaseTimes,
    StatusQuery,
    Stop,
    StopReason,
    TokenCounts,
)


def status(state: EngineState = EngineState.READY, detail: str = "ready") -> EngineStatus:
    """Return a status as a loaded engine would send it."""
    progress = 1.0 if state is EngineState.READY else 0.5
    return EngineStatus(state, "fake", "none", progress, detail, 0, 0, 4096)


@dataclass
class FakeRequest:
    """One ``Complete``, and the ways to answer it."""

    message: Complete
    send: Callable[[EngineMessage], None]
    written: str = ""
    is_done: bool = False
    cancelled: asyncio.Future[CancelCause] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done when the client has cancelled it."""
    stopped: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Done, with the text so far, when the client has had enough."""

    def write(self, text: str) -> None:
        """Stream some text."""
        self.written += text
        self.send(Chunk(self.message.request, text))

    def finish(
        self, reason: StopReason = StopReason.END_TOKEN, cause: CancelCause | None = None
    ) -> None:
        """Send ``Done``; a second call does nothing."""
        if self.is_done:
            return
        self.is_done = True
        tokens = TokenCounts(prompt=10, reused=7, prefilled=3, drafted=4, accepted=2, emitted=5)
        ms = PhaseTimes(queue=1.0, prefill=2.0, draft=0.5, verify=3.0, total=6.5)
        self.send(
            Done(
                self.message.request, self.written, (), reason, cause, "fake", "none", 3, tokens, ms
            )
        )

    def answer(self, text: str, reason: StopReason = StopReason.END_TOKEN) -> None:
        """Write a text and finish."""
        self.write(text)
        self.finish(reason)

    def fail(self, code: str, what: str) -> None:
        """Send ``Failed``."""
        self.is_done = True
        self.send(Failed(self.message.request, code, what, ""))


class FakeEngine:
    """Listens on a socket until it is killed; can listen again."""

    def __init__(self, path: Path, first_status: EngineStatus | None = None) -> None:
        self.path = path
        self.status = first_status or status()
        self.protocol_version = protocol.PROTOCOL_VERSION
        self.requests: asyncio.Queue[FakeRequest] = asyncio.Queue()
        self.connected = asyncio.Event()
        """Set when a client has been greeted."""
        self.num_requests = 0
        self._server: asyncio.Server | None = None
        self._by_number: dict[int, FakeRequest] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Accept connections."""
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self.path))

    async def kill(self) -> None:
        """Close all connections at once, as a killed process would."""
        self.connected.clear()
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.path.unlink(missing_ok=True)

    async def next_request(self) -> FakeRequest:
        """Return the next request that a client sends."""
        async with asyncio.timeout(10):
            return await self.requests.get()

    def send_status(self, new_status: EngineStatus) -> None:
        """Tell all clients."""
        self.status = new_status
        for writer in self._writers:
            writer.write(protocol.encode(new_status))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._writers.add(writer)
        try:
            with contextlib.suppress(EOFError, OSError):
                await self._greet(reader, writer)
                while True:
                    self._take(protocol.decode_from_client(await read_frame(reader)), writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol.check_hello(protocol.decode_from_client(await read_frame(reader)))
        writer.write(protocol.encode(Hello(self.protocol_version, "fake engine")))
        writer.write(protocol.encode(self.status))
        self.connected.set()

    def _take(self, message: protocol.ClientMessage, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, Complete):

            def send(answer: EngineMessage) -> None:
                if not writer.is_closing():
                    writer.write(protocol.encode(answer))

            request = FakeRequest(message, send)
            self._by_number[message.request] = request
            self.num_requests += 1
            self.requests.put_nowait(request)
        elif isinstance(message, Cancel):
            self._by_number[message.request].cancelled.set_result(message.cause)
            self._by_number[message.request].finish(StopReason.CANCELLED, message.cause)
        elif isinstance(message, Stop):
            request = self._by_number[message.request]
            request.stopped.set_result(request.written)
            request.finish(StopReason.STOPPED)
        elif isinstance(message, StatusQuery):
            writer.write(protocol.encode(self.status))
