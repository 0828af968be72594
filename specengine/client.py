"""An asyncio client of the engine: one connection, many requests. No torch.

It knows frames and requests; it does not start engines (``launch.py``) and does not retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from specengine import protocol
from specengine.errors import REQUEST_ERRORS, EngineUnavailable, ProtocolError, RequestError
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

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 10.0
"""An engine that does not greet in this time is not one."""


@dataclass(frozen=True)
class UnixAddress:
    """A socket in a folder that only this user can enter."""

    path: str


@dataclass(frozen=True)
class TcpAddress:
    """A loopback port and the secret that its engine wants to see."""

    host: str
    port: int
    token: str


Address = UnixAddress | TcpAddress


class Client(Protocol):
    """Whoever answers requests: an engine, or servers upstream in its place."""

    status: EngineStatus | None
    """The last one known."""
    on_status: Callable[[EngineStatus], None] | None
    """Called on the event loop for every new one."""

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent."""
        ...

    async def wait_closed(self) -> None:
        """Return when that is over."""
        ...

    async def close(self) -> None:
        """End it; running requests end with EngineUnavailable."""
        ...

    def next_request(self) -> int:
        """Return a request number that was not used."""
        ...

    def complete(self, message: Complete) -> AsyncGenerator[Chunk | Done]:
        """Send a request and yield its chunks, then its ``Done``."""
        ...

    def cancel(self, request: int, cause: CancelCause = CancelCause.CLIENT) -> None:
        """End a request; its ``Done`` says ``cancelled``."""
        ...

    def stop(self, request: int) -> None:
        """Say that the text so far is enough."""
        ...


class EngineClient:
    """One open connection; make it with ``connect``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._request_ids = itertools.count(1)
        self._answers: dict[int, asyncio.Queue[Chunk | Done | Failed | None]] = {}
        self._closed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self.status: EngineStatus | None = None
        """The last one the engine sent."""
        self.on_status: Callable[[EngineStatus], None] | None = None
        """Called on the event loop for every status frame."""

    @classmethod
    async def connect(cls, address: Address, *, program: str) -> EngineClient:
        """Open a connection and exchange greetings; the first status has arrived on return.

        Raises:  EngineUnavailable when nobody listens or the greeting fails.
        """
        try:
            if isinstance(address, UnixAddress):
                reader, writer = await asyncio.open_unix_connection(address.path)
            else:
                reader, writer = await asyncio.open_connection(address.host, address.port)
        except OSError as error:
            raise EngineUnavailable(f"no engine listens at {address_text(address)}.") from error
        client = cls(reader, writer)
        token = address.token if isinstance(address, TcpAddress) else ""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                await client._greet(Hello(protocol.PROTOCOL_VERSION, program, token))
        except (OSError, EOFError, TimeoutError, ProtocolError) as error:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            raise EngineUnavailable(
                f"the engine at {address_text(address)} refused the greeting: {error or 'silence'}."
            ) from error
        except BaseException:
            writer.close()
            raise
        client._reading = asyncio.create_task(client._read_all(), name="engine-reader")
        return client

    @property
    def is_connected(self) -> bool:
        """Whether requests can be sent."""
        return not self._closed.is_set()

    async def wait_closed(self) -> None:
        """Return when the connection is gone, whoever ended it."""
        await self._closed.wait()

    async def close(self) -> None:
        """End the connection; running requests end with EngineUnavailable."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def next_request(self) -> int:
        """Return a request number that this connection has not used."""
        return next(self._request_ids)

    async def complete(self, message: Complete) -> AsyncGenerator[Chunk | Done]:
        """Send a request and yield its chunks, then its ``Done``.

        Leaving the iteration early (``aclose``, cancellation) cancels the request in the engine.

        Raises:  RequestError when the engine refuses or fails it; EngineUnavailable when the
            connection is lost.
        """
        answers: asyncio.Queue[Chunk | Done | Failed | None] = asyncio.Queue()
        if not self.is_connected:
            raise EngineUnavailable("the connection to the engine is closed.")
        self._answers[message.request] = answers
        is_open = True
        try:
            self._send(message)
            while is_open:
                answer = await answers.get()
                is_open = isinstance(answer, Chunk)
                if answer is None:
                    raise EngineUnavailable("the connection to the engine was lost.")
                if isinstance(answer, Failed):
                    raise request_error(answer)
                yield answer
        finally:
            del self._answers[message.request]
            if is_open:
                self.cancel(message.request)

    def cancel(self, request: int, cause: CancelCause = CancelCause.CLIENT) -> None:
        """Tell the engine to end a request; its ``Done`` says ``cancelled``."""
        self._send(Cancel(request, cause))

    def stop(self, request: int) -> None:
        """Tell the engine that the text so far is enough."""
        self._send(Stop(request))

    def query_status(self) -> None:
        """Ask for a fresh status; it arrives at ``on_status``."""
        self._send(StatusQuery())

    async def _greet(self, hello: Hello) -> None:
        self._writer.write(protocol.encode(hello))
        protocol.check_hello(await self._read_message())
        status = await self._read_message()
        if not isinstance(status, EngineStatus):
            raise ProtocolError(f"a status must follow the greeting, not {type(status).__name__}.")
        self.status = status

    def _send(self, message: ClientMessage) -> None:
        # Frames are small and the peer is local: the transport's own buffer is enough.
        if self.is_connected:
            self._writer.write(protocol.encode(message))

    async def _read_message(self) -> EngineMessage:
        return protocol.decode_from_engine(await read_frame(self._reader))

    async def _read_all(self) -> None:
        try:
            while True:
                self._deliver(await self._read_message())
        except (OSError, EOFError) as error:
            logger.info("engine connection ended: %s", error or type(error).__name__)
        except ProtocolError as error:
            logger.error("engine connection closed: %s", error)
        finally:
            self._closed.set()
            self._writer.close()
            for answers in self._answers.values():
                answers.put_nowait(None)

    def _deliver(self, message: EngineMessage) -> None:
        if isinstance(message, EngineStatus):
            self.status = message
            if self.on_status is not None:
                self.on_status(message)
        elif isinstance(message, Hello):
            raise ProtocolError("a second greeting.")
        elif (answers := self._answers.get(message.request)) is not None:
            answers.put_nowait(message)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Return the body of the next frame.

    Raises:  EOFError at the end of the stream (also inside a frame); ProtocolError for a length
        that is not allowed.
    """
    (num_bytes,) = protocol.LENGTH.unpack(await reader.readexactly(protocol.LENGTH.size))
    protocol.check_length(num_bytes)
    return await reader.readexactly(num_bytes)


def request_error(message: Failed) -> RequestError:
    """Return the error that a ``Failed`` frame stands for."""
    return REQUEST_ERRORS.get(message.code, RequestError)(message.what, hint=message.hint)


def address_text(address: Address) -> str:
    """Return an address for people; the secret stays out of it."""
    if isinstance(address, UnixAddress):
        return address.path
    return f"{address.host}:{address.port}"
