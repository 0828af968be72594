"""Peers that ask too much, too slowly, or nonsense, are cut off; the others are answered."""

from __future__ import annotations

import asyncio
import random

import pytest

from specengine import protocol
from specengine.http import body as body_module
from specengine.http import connection
from specengine.http.problems import MAX_HEAD_BYTES
from specengine.protocol import CancelCause
from specengine.scheduler import Job
from tests.specengine.http import raw
from tests.specengine.http.conftest import Play
from tests.specengine.http.raw import until
from tests.specengine.http.scripted import ScriptedEngine, writes

PATH = "/v1/completions"


async def is_well(port: int) -> bool:
    answer = await raw.post(port, PATH, {"prompt": "x"})
    return answer.status == 200 and answer.json["choices"][0]["text"] == "fine"


def engine() -> ScriptedEngine:
    return ScriptedEngine(writes("fine"))


@pytest.mark.parametrize("tells_its_length", [True, False])
def test_a_body_over_the_limit_is_refused(
    play: Play, monkeypatch: pytest.MonkeyPatch, tells_its_length: bool
) -> None:
    monkeypatch.setattr(body_module, "MAX_BODY_BYTES", 100)

    async def scene(port: int) -> None:
        body = b'{"prompt": "' + b"x" * 200 + b'"}'
        sent = raw.request("POST", PATH, body)
        if not tells_its_length:
            head = {"Transfer-Encoding": "chunked", "Content-Length": "0"}
            sent = raw.request("POST", PATH, headers=head).replace(b"Content-Length: 0\r\n", b"")
            sent += f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
        answer = await raw.ask(port, sent)
        assert answer.status == 413
        assert "100 bytes" in answer.json["error"]["message"]
        assert await is_well(port)

    play(scene, engine())


def test_a_text_over_the_limit_is_refused(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_TEXT_CHARS", 100)

    async def scene(port: int) -> None:
        body = {"input_extra": [{"text": "x" * 90, "filename": "a.py"}] * 2}
        answer = await raw.post(port, "/infill", body)
        assert answer.status == 400
        assert "100" in answer.json["error"]["message"]

    play(scene, engine())


def test_a_head_over_the_limit_is_refused(play: Play) -> None:
    async def scene(port: int) -> None:
        headers = {"X-Long": "x" * (MAX_HEAD_BYTES + 1)}
        whole = raw.request("GET", "/health", headers=headers)
        for sent, status in ((whole, 431), (whole[:-4], 400)):
            answer = await raw.ask(port, sent)
            assert answer.status == status
            assert str(MAX_HEAD_BYTES) in answer.json["error"]["message"]
        assert await is_well(port)

    play(scene, engine())


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: 127."])
def test_a_head_that_does_not_come_in_time_ends_the_connection(
    play: Play, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)

    async def scene(port: int) -> None:
        answer = await raw.ask(port, sent)
        assert answer.status == 408

    play(scene, engine())


def test_a_second_head_must_come_in_time_too(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_TIMEOUT_S", 0.05)

    async def scene(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw.request("GET", "/health", headers={"Connection": "keep-alive"}))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /health HT")
        assert b"408" in await reader.read(-1)
        writer.close()

    play(scene, engine())


def test_a_body_that_does_not_come_in_time_is_refused(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "BODY_TIMEOUT_S", 0.05)

    async def scene(port: int) -> None:
        answer = await raw.ask(port, raw.request("POST", PATH, b"{}")[:-1])
        assert answer.status == 408
        assert await is_well(port)

    play(scene, engine())


def test_one_connection_too_many_is_told_so(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 2)

    async def scene(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        answer = await raw.answer_of(reader)
        assert answer.status == 503
        assert "2 connections" in answer.json["error"]["message"]
        for each in (*(writer for _, writer in held), writer):
            each.close()
        await until_well(port)

    play(scene, engine())


async def until_well(port: int) -> None:
    """Return once the door has seen that others have gone."""
    while (await raw.get(port, "/health")).status != 200:
        pass


def test_a_peer_that_does_not_read_is_dropped_and_its_request_cancelled(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.1)
    served = ScriptedEngine()

    def flood(job: Job) -> None:
        for _ in range(300):
            job.on_text("x" * 100_000)

    served.script = flood

    async def scene(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw.request("POST", PATH, b'{"prompt": "x", "stream": true}'))
        await until(lambda: served.cancelled)
        assert served.cancelled[0][1] is CancelCause.DISCONNECT
        writer.close()

    play(scene, served)


GARBAGE = {
    "no HTTP": b"\x00\x01\x02\r\n\r\n",
    "a frame of the other door": b"\x00\x00\x00\x05hello\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
    "a bad length": b"POST /infill HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a bad chunk": b"POST /infill HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    b"Content-Type: application/json\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_what_is_no_http_ends_that_connection_only(play: Play, name: str) -> None:
    async def scene(port: int) -> None:
        answer = await raw.ask(port, GARBAGE[name])
        assert answer.status == 400
        assert await is_well(port)

    play(scene, engine())


BAD_BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "no object": b"[]",
    "a number": b"1",
    "half a character": b'{"prompt": "\xff"}',
    "half a pair": b'{"prompt": "\\ud800"}',
    "deep": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no number": b'{"temperature": NaN}',
    "two things": b"{} {}",
}


@pytest.mark.parametrize("name", BAD_BODIES)
@pytest.mark.parametrize("path", [PATH, "/infill", "/completion", "/page/texts"])
def test_a_bad_body_is_refused_and_the_next_one_answered(play: Play, name: str, path: str) -> None:
    async def scene(port: int) -> None:
        answer = await raw.ask(port, raw.request("POST", path, BAD_BODIES[name]))
        assert answer.status == 400
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert await is_well(port)

    play(scene, engine())


def test_random_bytes_never_harm_the_others(play: Play) -> None:
    async def scene(port: int) -> None:
        dice = random.Random(5)
        good = raw.request("POST", PATH, b'{"prompt": "x"}')
        for _ in range(100):
            broken = bytearray(good)
            for _ in range(dice.randint(1, 6)):
                broken[dice.randrange(len(broken))] = dice.randrange(256)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(bytes(broken))
            writer.write_eof()
            await reader.read(-1)
            writer.close()
        assert await is_well(port)

    play(scene, engine())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/v1/completions", 405),
        ("POST", "/health", 405),
        ("GET", "/../etc/passwd", 404),
        ("OPTIONS", "/v1/completions", 405),
    ],
)
def test_unknown_paths_and_methods_are_refused_in_json(
    play: Play, method: str, path: str, status: int
) -> None:
    async def scene(port: int) -> None:
        answer = await raw.ask(port, raw.request(method, path, b"{}"[: 2 * (method == "POST")]))
        assert answer.status == status
        assert answer.json["error"]["code"] == "not_found"

    play(scene, engine())
