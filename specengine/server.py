"""The socket door: frames in, jobs to the engine, frames out. It touches no tensor.

A connection that sends what is no frame of the protocol is closed; the others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
import os
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Final

from specengine import __name__ as PROGRAM
from specengine import protocol
from specengine.client import read_frame
from specengine.engine import Engine, Status
from specengine.errors import ProtocolError, RequestError, RequestInvalid
from specengine.protocol import (
    Cancel,
    CancelCause,
    Chunk,
    ClientMessage,
    Complete,
    Done,
    EngineMessage,
    EngineStatus,
    Failed,
    Hello,
    StatusQuery,
    Stop,
)
from specengine.scheduler import Job, Key, Outcome

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S: Final = 10.0
"""A peer that has not greeted by then is dropped."""

MAX_CONNECTIONS: Final = 64
"""One more is closed at once."""

MAX_UNREAD_BYTES: Final = 16 * 2**20
"""A peer that lets more pile up does not read, and is dropped."""


@dataclass(eq=False)
class Connection:
    """One peer."""

    number: int
    writer: asyncio.StreamWriter
    open_requests: set[int] = field(default_factory=set[int])

    def send(self, message: EngineMessage) -> None:
        """Queue a frame; drop the peer when it does not read."""
        if self.writer.is_closing():
            return
        self.writer.write(protocol.encode(message))
        if self.writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            logger.warning("connection %d does not read; dropped", self.number)
            self.writer.transport.abort()


class Server:
    """All connections of one engine."""

    def __init__(self, engine: Engine, *, token: str = "") -> None:
        """``token`` is what TCP peers must present; peers on a Unix socket are known by uid."""
        self._engine = engine
        self._token = token
        self._connections: set[Connection] = set()
        """Peers that have greeted; the others hear nothing."""
        self._num_open = 0
        self._numbers = itertools.count(1)
        self._unused_since = time.monotonic()

    @property
    def idle_s(self) -> float:
        """Return how long nobody has been connected, in seconds; 0 while somebody is."""
        return 0.0 if self._connections else time.monotonic() - self._unused_since

    def publish(self, status: Status) -> None:
        """Tell every peer; call it on the event loop."""
        for connection in self._connections:
            connection.send(self._status_message(status))

    def close(self) -> None:
        """Close every connection once what was sent to it is written."""
        for connection in self._connections:
            connection.writer.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one peer until it goes or misbehaves."""
        connection = Connection(next(self._numbers), writer)
        self._num_open += 1
        try:
            self._check_peer(writer)
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await self._greet(connection, reader)
            self._connections.add(connection)
            while True:
                message = protocol.decode_from_client(await read_frame(reader))
                self._take(connection, message)
        except ProtocolError as error:
            logger.warning("connection %d closed: %s", connection.number, error)
        except TimeoutError:
            logger.warning("connection %d closed: no greeting", connection.number)
        except (OSError, EOFError):
            logger.info("connection %d ended", connection.number)
        finally:
            self._forget(connection)

    def _check_peer(self, writer: asyncio.StreamWriter) -> None:
        if self._num_open > MAX_CONNECTIONS:
            raise ProtocolError(f"{MAX_CONNECTIONS} connections are open already.")
        peer = writer.get_extra_info("socket")
        # Access to the folder decides on systems that cannot tell who is at the other end.
        if peer.family == getattr(socket, "AF_UNIX", None) and hasattr(socket, "SO_PEERCRED"):
            form = struct.Struct("3i")
            _, uid, _ = form.unpack(
                peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
            )
            if uid != os.getuid():
                raise ProtocolError(f"user {uid} may not use the engine of user {os.getuid()}.")

    async def _greet(self, connection: Connection, reader: asyncio.StreamReader) -> None:
        connection.send(Hello(protocol.PROTOCOL_VERSION, PROGRAM))
        hello = protocol.check_hello(protocol.decode_from_client(await read_frame(reader)))
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise ProtocolError("wrong token.")
        connection.send(self._status_message(self._engine.status))
        logger.info("connection %d is %s", connection.number, ascii(hello.program[:80]))

    def _take(self, connection: Connection, message: ClientMessage) -> None:
        if isinstance(message, Complete):
            self._submit(connection, message)
        elif isinstance(message, Cancel):
            self._engine.cancel(Key(connection.number, message.request), message.cause)
        elif isinstance(message, Stop):
            self._engine.stop(Key(connection.number, message.request))
        elif isinstance(message, StatusQuery):
            connection.send(self._status_message(self._engine.status))
        else:
            raise ProtocolError("a second greeting.")

    def _submit(self, connection: Connection, message: Complete) -> None:
        if message.request in connection.open_requests:
            raise ProtocolError(f"request {message.request} is open already.")
        files = (text for file in message.files for text in file)
        if max(map(len, (message.prefix, message.suffix, *files))) > protocol.MAX_TEXT_CHARS:
            error = RequestInvalid(f"a text is longer than {protocol.MAX_TEXT_CHARS} characters.")
            connection.send(_failed(message.request, error))
            return
        connection.open_requests.add(message.request)
        self._engine.submit(self._job(connection, message))

    def _job(self, connection: Connection, message: Complete) -> Job:
        loop = asyncio.get_running_loop()

        def post(answer: EngineMessage) -> None:
            # Called on the engine's thread; the loop is closed when the process is on its way out.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer, connection, answer)

        return Job(
            key=Key(connection.number, message.request),
            message=message,
            on_text=lambda text: post(Chunk(message.request, text)),
            on_done=lambda outcome: post(self._done(message, outcome)),
            on_failed=lambda error: post(_failed(message.request, error)),
            received_at=time.perf_counter(),
        )

    def _answer(self, connection: Connection, message: EngineMessage) -> None:
        if isinstance(message, Done | Failed):
            connection.open_requests.discard(message.request)
        connection.send(message)

    def _forget(self, connection: Connection) -> None:
        self._num_open -= 1
        self._connections.discard(connection)
        self._unused_since = time.monotonic()
        self._engine.cancel_client(connection.number, CancelCause.DISCONNECT)
        connection.writer.close()

    def _status_message(self, status: Status) -> EngineStatus:
        return EngineStatus(
            state=status.state,
            model=status.model,
            drafter=status.drafter,
            progress=status.progress,
            detail=status.detail,
            active=status.active,
            waiting=status.waiting,
            prompt_tokens=self._engine.settings.prompt_tokens,
            reads_files=self._engine.reads_files,
        )

    def _done(self, message: Complete, outcome: Outcome) -> Done:
        logger.info("request %d: %s", message.request, outcome.line)
        return Done(
            request=message.request,
            text=outcome.text,
            token_ids=outcome.token_ids,
            stop_reason=outcome.stop_reason,
            cause=outcome.cause,
            model=self._engine.model,
            drafter=outcome.drafter or self._engine.status.drafter,
            drafting=outcome.drafting,
            steps=outcome.counts.steps,
            tokens=outcome.tokens,
            ms=outcome.ms,
            logprobs=outcome.logprobs,
            alternatives=outcome.alternatives,
        )


def _failed(request: int, error: RequestError) -> Failed:
    return Failed(request, error.code, error.what, error.hint)
