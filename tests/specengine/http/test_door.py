"""Where the door may listen, and with which key."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from specengine.errors import ConfigError
from specengine.http.door import (
    KEY_VARIABLE,
    Address,
    HttpDoor,
    bind,
    check_exposure,
    read_key,
)
from specengine.serve import Door, HttpDoorSettings
from tests.specengine.http import raw
from tests.specengine.http.conftest import Play
from tests.specengine.http.scripted import ScriptedEngine

KEY = "a key of some length"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8012", "127.0.0.1", 8012),
        ("localhost:0", "localhost", 0),
        ("[::1]:80", "::1", 80),
        (":8012", "127.0.0.1", 8012),
        ("0.0.0.0:1", "0.0.0.0", 1),
    ],
)
def test_an_address_is_read(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)


@pytest.mark.parametrize(
    "text", ["", "8012", "127.0.0.1", "host:", "host:port", "host:70000", "a@b:1", "h:1/x", "[:1"]
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:8012"):
        Address.parse(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_on_this_machine_no_key_is_needed(host: str) -> None:
    check_exposure(Address(host, 1), "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "box.example"])
def test_beyond_this_machine_a_key_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match=KEY_VARIABLE):
        check_exposure(Address(host, 1), "")
    check_exposure(Address(host, 1), KEY)


def test_the_key_comes_from_a_file_before_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY + "\n", "utf-8")
    file.chmod(0o600)
    environment = {KEY_VARIABLE: "another key of some length"}
    assert read_key(file, environment) == KEY
    assert read_key(None, environment) == environment[KEY_VARIABLE]
    assert read_key(None, {}) == ""


@pytest.mark.parametrize("content", ["", "short", "a key with an é in it", "two lines\nof a key"])
def test_a_key_that_could_not_be_sent_or_could_be_guessed_is_refused(
    tmp_path: Path, content: str
) -> None:
    file = tmp_path / "key"
    file.write_text(content, "utf-8")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="not usable") as refused:
        read_key(file, {})
    assert not content or content not in str(refused.value)


@pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's")
def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY, "utf-8")
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_key(file, {})


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no-file"):
        read_key(tmp_path / "no-file", {})


def test_no_one_prints_the_key() -> None:
    settings = HttpDoorSettings(Address("127.0.0.1", 1), KEY)
    assert KEY not in repr(Door(http=settings))


def test_an_address_in_use_is_said_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            bind(Address("127.0.0.1", port))


def test_what_is_sent_does_not_wait_for_acknowledgements() -> None:
    """It did: 40 ms between head and body of each answer, as the benchmark of the door showed."""
    options: list[int] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        options.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def scene() -> None:
        listening = bind(Address("127.0.0.1", 0))
        async with await asyncio.start_server(note, sock=listening):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(scene())
    assert options[0] != 0


def test_a_door_is_needed() -> None:
    with pytest.raises(ConfigError, match="--http"):
        Door()
    with pytest.raises(ConfigError, match="either"):
        Door(Path("a"), Path("b"))


def test_the_door_is_idle_while_nobody_asks() -> None:
    times: list[float] = []

    async def answer(scope: object, receive: object, send: object) -> None:
        times.append(door.idle_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    async def scene() -> None:
        nonlocal door
        door = HttpDoor(answer, bind(Address("127.0.0.1", 0)))
        assert door.idle_s > 0
        await raw.get(door.port, "/health")
        await door.close()

    door: HttpDoor
    asyncio.run(scene())
    assert times == [0.0]


def test_closing_ends_a_stream_that_goes_on(play: Play) -> None:
    engine = ScriptedEngine(lambda job: job.on_text("x"))

    async def scene(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw.request("POST", "/v1/completions", b'{"prompt": "x", "stream": true}'))
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    play(scene, engine)
    assert len(engine.cancelled) == 1
