"""The door: real sockets, good and bad peers."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from specengine import protocol
from specengine import server as server_module
from specengine.client import EngineClient, TcpAddress, UnixAddress, read_frame
from specengine.engine import Engine
from specengine.errors import EngineUnavailable, RequestInvalid
from specengine.protocol import (
    CancelCause,
    Chunk,
    Complete,
    Done,
    EngineState,
    EngineStatus,
    Hello,
    Stop,
    StopReason,
)
from specengine.server import Server
from specengine.settings import EngineSettings
from tests.specengine.tiny import save_tiny_model

WAIT_S = 20.0
PREFIX = "def f(self):\n    self = 12\n" * 20

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    settings = EngineSettings(model=str(folder), precision="float32", prompt_tokens=600)
    running = Engine(settings, lambda status: None)
    running.start()
    yield running
    running.close()


@asynccontextmanager
async def listening(engine: Engine, path: Path) -> AsyncIterator[Server]:
    server = Server(engine)
    async with await asyncio.start_unix_server(server.serve, path):
        yield server
        server.close()


@pytest.fixture
def play(engine: Engine, tmp_path: Path) -> Callable[[Scene], None]:
    """Run a scene against a listening server, with a time limit."""

    def run(scene: Scene) -> None:
        async def with_server() -> None:
            async with asyncio.timeout(WAIT_S), listening(engine, tmp_path / "s"):
                await scene(tmp_path / "s")

        asyncio.run(with_server())

    return run


Scene = Callable[[Path], Awaitable[None]]


async def connect(path: Path) -> EngineClient:
    return await EngineClient.connect(UnixAddress(str(path)), program="test")


async def raw(path: Path) -> tuple[Reader, Writer]:
    """Return a connection on which both greetings and the status have gone by."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(protocol.encode(Hello(protocol.PROTOCOL_VERSION, "raw")))
    await read_frame(reader)
    await read_frame(reader)
    return reader, writer


async def answer(client: EngineClient, prefix: str = PREFIX, max_tokens: int = 8) -> Done:
    *_, done = await everything(client, prefix, max_tokens)
    assert isinstance(done, Done)
    return done


async def everything(client: EngineClient, prefix: str, max_tokens: int) -> list[Chunk | Done]:
    message = Complete(client.next_request(), "a", prefix, max_tokens=max_tokens)
    return [part async for part in client.complete(message)]


async def is_closed(reader: Reader, writer: Writer) -> bool:
    """Return once the server has ended the connection."""
    try:
        while await reader.read(65536):
            pass
    except ConnectionError:
        return True
    finally:
        writer.close()
    return True


def test_chunks_joined_are_the_text(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        *chunks, done = await everything(client, PREFIX, 20)
        assert isinstance(done, Done)
        assert len(chunks) > 1
        assert "".join(chunk.text for chunk in chunks) == done.text
        assert done.stop_reason is StopReason.LENGTH
        assert done.tokens.prompt == done.tokens.reused + done.tokens.prefilled
        assert done.tokens.emitted == len(done.token_ids)
        assert done.ms.total >= done.ms.prefill + done.ms.verify > 0
        await client.close()

    play(scene)


def test_a_new_peer_hears_the_status(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        assert client.status is not None
        assert client.status.state in {EngineState.LOADING, EngineState.READY}
        assert client.status.prompt_tokens == 600
        await client.close()

    play(scene)


def test_status_is_told_when_asked(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        told: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()
        client.on_status = told.set_result
        client.query_status()
        assert (await told).model.startswith("tiny")
        await client.close()

    play(scene)


def test_stop_ends_a_request_with_what_it_has(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        message = Complete(client.next_request(), "a", PREFIX, max_tokens=500)
        text, done = "", None
        async for part in client.complete(message):
            if isinstance(part, Chunk):
                text += part.text
                client.stop(message.request)
            else:
                done = part
        assert done is not None
        assert done.stop_reason is StopReason.STOPPED
        assert done.text == text
        await client.close()

    play(scene)


def test_leaving_a_stream_cancels_its_request(
    engine: Engine, play: Callable[[Scene], None]
) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        stream = client.complete(Complete(client.next_request(), "a", PREFIX, max_tokens=500))
        await anext(stream)
        await stream.aclose()
        assert (await answer(client)).stop_reason is StopReason.LENGTH
        assert engine.status.active == 0
        await client.close()

    play(scene)


def test_a_newer_request_for_the_document_supersedes(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        first = asyncio.create_task(answer(client, max_tokens=500))
        await asyncio.sleep(0)
        second = await answer(client)
        done = await first
        assert (done.stop_reason, done.cause) == (StopReason.CANCELLED, CancelCause.SUPERSEDED)
        assert second.stop_reason is StopReason.LENGTH
        await client.close()

    play(scene)


def test_a_lost_peer_takes_its_requests_along(
    engine: Engine, play: Callable[[Scene], None]
) -> None:
    async def scene(path: Path) -> None:
        reader, writer = await raw(path)
        writer.write(protocol.encode(Complete(1, "a", PREFIX, max_tokens=500)))
        await read_frame(reader)
        writer.transport.abort()
        client = await connect(path)
        # The answer of the next request comes after the cancel of the lost one.
        await answer(client)
        assert engine.status.active == 0
        await client.close()

    play(scene)


BAD_FRAMES = {
    "empty": b"\x00\x00\x00\x00",
    "huge": b"\xff\xff\xff\xff",
    "too long": protocol.LENGTH.pack(protocol.MAX_FRAME_BYTES + 1),
    "no msgpack": protocol.LENGTH.pack(3) + b"\xc1\xc1\xc1",
    "no map": protocol.LENGTH.pack(1) + b"\x01",
    "text of another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "unknown type": protocol.LENGTH.pack(11) + msgspec.msgpack.encode({"type": "evil"}),
    "second greeting": protocol.encode(Hello(protocol.PROTOCOL_VERSION, "again")),
    "message of the other side": protocol.encode(Chunk(1, "x")),
    "deep nesting": protocol.LENGTH.pack(100_000) + b"\x91" * 100_000,
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_bad_frame_ends_that_connection_only(play: Callable[[Scene], None], name: str) -> None:
    async def scene(path: Path) -> None:
        client = await connect(path)
        running = asyncio.create_task(answer(client, max_tokens=100))
        reader, writer = await raw(path)
        writer.write(BAD_FRAMES[name])
        assert await is_closed(reader, writer)
        assert (await running).stop_reason is StopReason.LENGTH
        await client.close()

    play(scene)


def test_random_bytes_never_harm_the_others(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        dice = random.Random(3)
        client = await connect(path)
        for _ in range(100):
            reader, writer = await (raw(path) if dice.random() < 0.5 else no_greeting(path))
            body = dice.randbytes(dice.randint(1, 200))
            frame = protocol.LENGTH.pack(len(body)) + body if dice.random() < 0.7 else body
            writer.write(frame)
            writer.write_eof()
            assert await is_closed(reader, writer)
        assert (await answer(client)).stop_reason is StopReason.LENGTH
        await client.close()

    play(scene)


async def no_greeting(path: Path) -> tuple[Reader, Writer]:
    return await asyncio.open_unix_connection(path)


@pytest.mark.parametrize(
    "first",
    [Hello(protocol.PROTOCOL_VERSION + 1, "newer"), Complete(1, "a", "x"), Stop(1)],
    ids=["another version", "no greeting", "a stop"],
)
def test_a_wrong_first_frame_is_refused(
    play: Callable[[Scene], None], first: protocol.ClientMessage
) -> None:
    async def scene(path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(protocol.encode(first))
        assert await is_closed(reader, writer)

    play(scene)


def test_a_peer_that_never_greets_is_dropped(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "HELLO_TIMEOUT_S", 0.05)

    async def scene(path: Path) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await is_closed(reader, writer)

    play(scene)


def test_a_peer_that_does_not_read_is_dropped(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_UNREAD_BYTES", 1000)

    async def scene(path: Path) -> None:
        _, writer = await raw(path)
        query = protocol.encode(protocol.StatusQuery())
        with pytest.raises(ConnectionError):
            await write_for_ever(writer, query * 100)
        client = await connect(path)
        assert (await answer(client)).stop_reason is StopReason.LENGTH
        await client.close()

    play(scene)


async def write_for_ever(writer: Writer, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0)


def test_more_connections_than_allowed_are_closed(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)

    async def scene(path: Path) -> None:
        client = await connect(path)
        with pytest.raises(EngineUnavailable):
            await connect(path)
        assert client.is_connected
        await client.close()

    play(scene)


def test_a_text_over_the_limit_is_refused_and_the_connection_lives(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "MAX_TEXT_CHARS", 1000)

    async def scene(path: Path) -> None:
        client = await connect(path)
        with pytest.raises(RequestInvalid, match="1000 characters"):
            await answer(client, "x" * 1001)
        assert (await answer(client)).stop_reason is StopReason.LENGTH
        await client.close()

    play(scene)


def test_a_request_number_in_use_ends_the_connection(play: Callable[[Scene], None]) -> None:
    async def scene(path: Path) -> None:
        reader, writer = await raw(path)
        for _ in range(2):
            writer.write(protocol.encode(Complete(1, "a", PREFIX, max_tokens=500)))
        assert await is_closed(reader, writer)

    play(scene)


@pytest.mark.parametrize("uid_offset", [0, 1])
def test_only_the_same_user_may_use_a_unix_socket(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch, uid_offset: int
) -> None:
    uid = os.getuid() + uid_offset
    monkeypatch.setattr(server_module.os, "getuid", lambda: uid)

    async def scene(path: Path) -> None:
        if uid_offset:
            with pytest.raises(EngineUnavailable):
                await connect(path)
        else:
            await (await connect(path)).close()

    play(scene)


@pytest.mark.parametrize(("token", "is_welcome"), [("secret", True), ("", False), ("é", False)])
def test_a_tcp_peer_needs_the_token(engine: Engine, token: str, is_welcome: bool) -> None:
    async def scene() -> None:
        server = Server(engine, token="secret")
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            address = TcpAddress("127.0.0.1", port, token)
            if is_welcome:
                client = await EngineClient.connect(address, program="test")
                assert (await answer(client)).stop_reason is StopReason.LENGTH
                await client.close()
            else:
                with pytest.raises(EngineUnavailable, match="refused"):
                    await EngineClient.connect(address, program="test")
            server.close()

    asyncio.run(asyncio.wait_for(scene(), WAIT_S))


def test_nobody_is_idle_while_somebody_is_connected(engine: Engine, tmp_path: Path) -> None:
    async def scene() -> None:
        async with listening(engine, tmp_path / "s") as server:
            assert server.idle_s > 0
            client = await connect(tmp_path / "s")
            assert server.idle_s == 0
            await client.close()

    asyncio.run(asyncio.wait_for(scene(), WAIT_S))
