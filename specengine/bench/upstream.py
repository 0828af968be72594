"""What our client of servers upstream adds to an answer, and how many it takes a second.

A process on loopback answers with the same 16 events of four characters each: all at once, which
shows how many requests a second are the most, or one each 10 ms, as a model writes. It is asked
over so many connections by our client (whole: layout, healing, retries, limits) and by a bare one
that writes a fixed request and counts bytes; what the first takes longer is ours.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import msgspec

from specengine.errors import EngineUnavailable
from specengine.protocol import Complete, Done
from specengine.upstream.client import UpstreamClient
from specengine.upstream.options import Limits, UpstreamOptions

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32)
EVENT_MS: Final = (0, 10)
NUM_EVENTS: Final = 16
PACED: Final = "/paced"
"""Beginning of the paths that are answered slowly."""

PACED_SHARE: Final = 10
"""One request in so many is enough of those that take longer."""

WARM_UP: Final = 4
"""Requests on each connection before those that count."""

PREFIX: Final = "def total(prices):\n    return sum(prices) + compute(\n" * 20 + "value = f(0"
SUFFIX: Final = "\n\nprint(value)\n" * 10

OnProgress = Callable[[float, str], None]
Ask = Callable[[int], Awaitable[None]]


class UpstreamRow(msgspec.Struct, frozen=True):
    """So many connections; times from asking to the last word."""

    event_ms: int
    """Between two events of an answer."""
    connections: int
    requests: int
    requests_s: float
    p50_ms: float
    p99_ms: float
    bare_requests_s: float
    bare_p50_ms: float
    bare_p99_ms: float
    added_p50_ms: float
    added_p99_ms: float


def measure(num_requests: int, on_progress: OnProgress) -> list[UpstreamRow]:
    """Return a row for each number of connections, each of so many requests.

    Raises:  EngineUnavailable.
    """
    rows: list[UpstreamRow] = []
    plan = list(itertools.product(EVENT_MS, CONNECTIONS))
    with _server() as url:
        for at, (event_ms, connections) in enumerate(plan):
            on_progress(at / len(plan), f"{connections} connections")
            rows.append(asyncio.run(_row(url, event_ms, connections, num_requests)))
    return rows


async def _row(url: str, event_ms: int, connections: int, num_requests: int) -> UpstreamRow:
    if event_ms:
        # The more connections, the more answers at the same time.
        url += PACED
        num_requests = max(num_requests // PACED_SHARE, 8 * connections)
    async with _bare(url, connections) as ask:
        bare_s, bare_ms = await _load(ask, connections, num_requests)
    async with _ours(url, connections) as ask:
        ours_s, ours_ms = await _load(ask, connections, num_requests)
    (p50, p99), (bare_p50, bare_p99) = _quantiles(ours_ms), _quantiles(bare_ms)
    return UpstreamRow(
        event_ms=event_ms,
        connections=connections,
        requests=len(ours_ms),
        requests_s=len(ours_ms) / ours_s,
        p50_ms=p50,
        p99_ms=p99,
        bare_requests_s=len(bare_ms) / bare_s,
        bare_p50_ms=bare_p50,
        bare_p99_ms=bare_p99,
        added_p50_ms=p50 - bare_p50,
        added_p99_ms=p99 - bare_p99,
    )


def _quantiles(milliseconds: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(milliseconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


async def _load(ask: Ask, connections: int, num_requests: int) -> tuple[float, list[float]]:
    """Return the seconds for all requests together, and the milliseconds of each."""
    milliseconds: list[float] = []
    each = max(1, num_requests // connections)

    async def one(number: int, count: int, times: list[float]) -> None:
        for _ in range(count):
            started_s = time.perf_counter()
            await ask(number)
            times.append((time.perf_counter() - started_s) * 1000)

    await asyncio.gather(*(one(number, WARM_UP, []) for number in range(connections)))
    started_s = time.perf_counter()
    await asyncio.gather(*(one(number, each, milliseconds) for number in range(connections)))
    return time.perf_counter() - started_s, milliseconds


@asynccontextmanager
async def _ours(url: str, connections: int) -> AsyncGenerator[Ask]:
    limits = replace(Limits(), max_connections=connections)
    client = await UpstreamClient.open(UpstreamOptions((url,), limits=limits))

    async def ask(number: int) -> None:
        message = Complete(
            request=client.next_request(), document=str(number), prefix=PREFIX, suffix=SUFFIX
        )
        async for answer in client.complete(message):
            if isinstance(answer, Done) and len(answer.text) != NUM_EVENTS * 4:
                raise EngineUnavailable("the scripted server's answer came in another form.")

    try:
        yield ask
    finally:
        await client.close()


@asynccontextmanager
async def _bare(url: str, connections: int) -> AsyncGenerator[Ask]:
    place = urlsplit(url)
    streams = [
        await asyncio.open_connection(place.hostname, place.port) for _ in range(connections)
    ]
    body = json.dumps({"prompt": PREFIX, "suffix": SUFFIX, "stream": True}).encode()
    path = f"{place.path}/v1/completions".encode()
    request = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (path, len(body))
    length = len(b"".join(_answer()))

    async def ask(number: int) -> None:
        reader, writer = streams[number]
        writer.write(request + body)
        await reader.readexactly(length)

    try:
        yield ask
    finally:
        for _, writer in streams:
            writer.close()


@contextmanager
def _server() -> Generator[str]:
    """Yield the address of a scripted server in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None, "it was asked for"
    try:
        address = process.stdout.readline()
        if not address:
            raise EngineUnavailable("the scripted server did not start.")
        yield address.strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _answer() -> list[bytes]:
    """Return the answer to a request for a completion, event by event."""
    events = [{"choices": [{"index": 0, "text": f"{at:4}"}]} for at in range(NUM_EVENTS)]
    events.append({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    lines = [b"data: %b\n\n" % json.dumps(event).encode() for event in events]
    chunks = [b"%x\r\n%b\r\n" % (len(line), line) for line in (*lines, b"data: [DONE]\n\n")]
    chunks[0] = _head("text/event-stream") + chunks[0]
    return [*chunks[:NUM_EVENTS], b"".join(chunks[NUM_EVENTS:]) + b"0\r\n\r\n"]


def _head(form: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {form}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


async def _serve() -> None:
    models = json.dumps({"data": [{"id": "scripted"}]}).encode()
    listed = _head("application/json") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(models), models)
    answers = {b"POST /v1/completions": _answer(), b"GET /v1/models": [listed]}
    nothing = [b"HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, _, rest = head.lower().partition(b"content-length:")
                await reader.readexactly(int(rest.partition(b"\r\n")[0] or 0))
                asked = head.partition(b" HTTP/")[0].replace(PACED.encode(), b"")
                pieces = answers.get(asked, nothing)
                if PACED.encode() not in head:
                    pieces = [b"".join(pieces)]
                for piece in pieces[:-1]:
                    writer.write(piece)
                    await asyncio.sleep(EVENT_MS[-1] / 1000)
                writer.write(pieces[-1])
        except (EOFError, OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
