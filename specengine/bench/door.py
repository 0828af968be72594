"""What the HTTP door adds to a request: over an engine that answers at once, in its own process.

The engine answers on a thread, as the real one does, so a request crosses to it and back. All that
is measured is then the door's: HTTP, checks, JSON, and the way between the threads.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final, Literal

import msgspec

from specengine.decoding.session import Counts
from specengine.engine import Facts, Status
from specengine.http import app
from specengine.http.door import Address, HttpDoor, bind
from specengine.http.guard import Rules
from specengine.journal import Journal, percentile
from specengine.metrics import Metrics
from specengine.models import registry
from specengine.protocol import CancelCause, EngineState, StopReason
from specengine.scheduler import Job, Key, Outcome
from specengine.settings import EngineSettings
from specengine.watch import Watch

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32)
WARM_UP: Final = 200
"""Requests before those that are measured."""

PIECES: Final = 8
"""Texts that each answer is written in: a streamed one has as many events."""

KEY: Final = "a key as long as a key should be"
PREFIX: Final = "def f(self):\n    return self\n" * 100
"""3 kB, as much as an editor sends."""

Way = Literal["whole", "stream", "infill"]
WAYS: Final[tuple[Way, ...]] = ("whole", "stream", "infill")

OnProgress = Callable[[float, str], None]


class DoorRow(msgspec.Struct, frozen=True):
    """So many connections, each of which asks one request after the other."""

    way: Way
    connections: int
    requests: int
    requests_s: float
    p50_ms: float
    """From the first byte sent to the last one read, less what the engine takes: nothing."""
    p95_ms: float
    p99_ms: float


class EmptyEngine:
    """Answers every request at once, with the same pieces of text."""

    model = "none"
    facts: Facts | None = None

    def __init__(self) -> None:
        self.settings = EngineSettings()
        self.watch = Watch()
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="engine", daemon=True).start()

    @property
    def status(self) -> Status:
        """Return that it is ready."""
        return Status(EngineState.READY, self.model, "none", 1.0, "ready")

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token writes."""
        return bytes([token_id])

    def submit(self, job: Job) -> None:
        """Queue a request."""
        self._jobs.put(job)

    def cancel(self, key: Key, cause: CancelCause) -> None:
        """Do nothing: the request has ended already."""

    def stop(self, key: Key) -> None:
        """Do nothing: the request has ended already."""

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            for _ in range(PIECES):
                job.on_text("x")
            ids = (120,) * PIECES
            job.on_done(
                Outcome("x" * PIECES, ids, StopReason.LENGTH, None, "none", Counts(), 0.0, 0.0)
            )


def measure(limit: int, on_progress: OnProgress) -> list[DoorRow]:
    """Return a row for each way of asking and number of connections, of ``limit`` requests each."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        port: int = ours.recv()
        rows: list[DoorRow] = []
        for number, way in enumerate(WAYS):
            asyncio.run(_ask_all(port, way, 1, WARM_UP))
            for at, connections in enumerate(CONNECTIONS):
                done = (number + at / len(CONNECTIONS)) / len(WAYS)
                on_progress(done, f"{way}, {connections} connections")
                rows.append(_row(port, way, connections, limit))
        return rows
    finally:
        process.terminate()
        process.join()


def _row(port: int, way: Way, connections: int, limit: int) -> DoorRow:
    started = time.perf_counter()
    times = asyncio.run(_ask_all(port, way, connections, limit))
    seconds = time.perf_counter() - started
    p50, p95, p99 = (percentile(sorted(times), share) for share in (50, 95, 99))
    return DoorRow(way, connections, len(times), len(times) / seconds, p50, p95, p99)


async def _ask_all(port: int, way: Way, connections: int, limit: int) -> list[float]:
    """Return the milliseconds of each request."""
    each = -(-limit // connections)
    asked = await asyncio.gather(*(_ask(port, way, each) for _ in range(connections)))
    return [ms for times in asked for ms in times]


async def _ask(port: int, way: Way, number: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent, times = _request(port, way), list[float]()
    for _ in range(number):
        started = time.perf_counter()
        writer.write(sent)
        await _read_answer(reader)
        times.append((time.perf_counter() - started) * 1000)
    writer.close()
    return times


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200 "), head
    _, has_length, rest = head.partition(b"content-length: ")
    if has_length:
        await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    else:
        await reader.readuntil(b"\r\n0\r\n\r\n")


def _request(port: int, way: Way) -> bytes:
    path, body = "/v1/completions", {"prompt": PREFIX, "max_tokens": PIECES, "temperature": 0}
    if way == "stream":
        body["stream"] = True
    if way == "infill":
        path, body = "/infill", {"input_prefix": PREFIX, "prompt": "    ", "input_suffix": "\n"}
    content = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _serve(pipe: Connection[int, int]) -> None:
    asyncio.run(_open(pipe))


async def _open(pipe: Connection[int, int]) -> None:
    engine = EmptyEngine()
    metrics = Metrics(lambda: engine.status, engine.watch)
    templates = list(registry.load().fim_templates.values())
    rules = Rules(api_key=KEY)
    door = HttpDoor(
        app.build(engine, Journal(), metrics, rules, templates), bind(Address("127.0.0.1", 0))
    )
    pipe.send(door.port)
    await asyncio.Event().wait()
