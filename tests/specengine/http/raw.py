"""HTTP by hand, for what no good client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Return the content of each server-sent event; the last one may be no JSON."""
        parts = [part.removeprefix(b"data: ") for part in self.body.split(b"\n\n") if part]
        return [part.decode() if part == b"[DONE]" else json.loads(part) for part in parts]


def request(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of a request; ``headers`` replace the usual ones."""
    usual = {"Host": "127.0.0.1", "Connection": "close"}
    if method == "POST":
        usual |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"{name}: {value}" for name, value in {**usual, **(headers or {})}.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body


async def ask(port: int, sent: bytes) -> Answer:
    """Send some bytes and return the answer, once the other side has closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await answer_of(reader)
    finally:
        writer.close()


async def answer_of(reader: asyncio.StreamReader) -> Answer:
    """Return what comes until the other side closes."""
    received = await reader.read(-1)
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Answer(int(first.split()[1]), headers, body)


async def get(port: int, path: str, **headers: str) -> Answer:
    return await ask(port, request("GET", path, headers=_names(headers)))


async def post(port: int, path: str, content: object, **headers: str) -> Answer:
    return await ask(port, request("POST", path, json.dumps(content).encode(), _names(headers)))


def _names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-").title(): value for name, value in headers.items()}


def _joined(chunked: bytes) -> bytes:
    body = b""
    while chunked:
        size, _, rest = chunked.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        chunked = rest[length + 2 :]
    return body


async def until(holds: Callable[[], object]) -> None:
    """Return once something is so; the scene's time limit ends the waiting."""
    while not holds():  # noqa: ASYNC110 - what is waited for knows no event
        await asyncio.sleep(0)
