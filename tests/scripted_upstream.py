"""A server on loopback that answers HTTP as a test tells it, faults included.

It answers ``/v1/models`` and ``/metrics`` by itself; everything else takes the next answer of its
script, or the last one again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

EVENTS = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """What is sent, and what happens then."""

    body: tuple[bytes, ...] = ()
    """Pieces, each in a chunk of its own."""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("Content-Type", EVENTS),)
    is_cut: bool = False
    """The connection is broken off before the body is over."""
    hangs: bool = False
    """Nothing more comes, until the client leaves."""


@dataclass
class Seen:
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    is_left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client has closed the connection while the answer hung."""


def event(data: object) -> bytes:
    """Return one event of a stream."""
    return b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n"


def text(piece: str, finish: str | None = None) -> bytes:
    """Return the event of some text."""
    return event({"choices": [{"index": 0, "text": piece, "finish_reason": finish}]})


def written(*pieces: str, finish: str = "stop", usage: dict[str, Any] | None = None) -> Answer:
    """Return an answer as vLLM streams it."""
    body = [text(piece) for piece in pieces] + [text("", finish)]
    if usage is not None:
        body.append(event({"choices": [], "usage": usage}))
    return Answer((*body, event(b"[DONE]")))


def refused(status: int, body: object = None, **headers: str) -> Answer:
    """Return an answer that is an error."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Answer(
        (json.dumps(body or {}).encode(),), status, (("Content-Type", "application/json"), *named)
    )


class ScriptedUpstream:
    """Listens on a free port while it is entered."""

    def __init__(self, *script: Answer, model: str = "m", kind: str = "vllm") -> None:
        self.script = list(script)
        self.models = Answer(
            (
                json.dumps(
                    {"data": [{"id": model, "owned_by": kind, "max_model_len": 4096}]}
                ).encode(),
            )
        )
        self.metrics = Answer(status=404)
        self.seen: list[Seen] = []
        """Completions asked for, in order."""
        self.num_metrics = 0
        self.metrics_asked = asyncio.Event()
        self.num_connections = 0
        self.arrived = asyncio.Event()
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def listening(
        self, context: ssl.SSLContext | None = None
    ) -> AsyncGenerator[ScriptedUpstream]:
        """Serve until the end of the block, in the clear if there is no context."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        host, port = server.sockets[0].getsockname()
        self.url = f"{'http' if context is None else 'https'}://{host}:{port}"
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.num_connections += 1
        self._writers.add(writer)
        try:
            with contextlib.suppress(EOFError, OSError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        seen = Seen(method, path, headers, json.loads(body) if body else {})
        answer = self._choose(seen)
        writer.write(f"HTTP/1.1 {answer.status} X\r\n".encode())
        for name, value in (*answer.headers, ("Transfer-Encoding", "chunked")):
            writer.write(f"{name}: {value}\r\n".encode())
        writer.write(b"\r\n")
        for piece in answer.body:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
        if answer.hangs:
            with contextlib.suppress(OSError):
                await reader.read(1)
            seen.is_left.set()
        if answer.is_cut or answer.hangs:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _choose(self, seen: Seen) -> Answer:
        if seen.path == "/v1/models":
            return self.models
        if seen.path == "/metrics":
            self.num_metrics += 1
            self.metrics_asked.set()
            return self.metrics
        self.seen.append(seen)
        self.arrived.set()
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]
