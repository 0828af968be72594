"""Facts about the client, with a scripted engine or raw bytes on the other side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from specengine import protocol
from specengine.client import EngineClient, TcpAddress, UnixAddress, address_text, read_frame
from specengine.errors import REQUEST_ERRORS, EngineBusy, EngineUnavailable, RequestError
from specengine.protocol import (
    PROTOCOL_VERSION,
    CancelCause,
    Chunk,
    Complete,
    Done,
    EngineState,
    EngineStatus,
    Failed,
    Hello,
    StopReason,
)
from tests.fake_engine import FakeEngine, FakeRequest, status

Scene = Callable[[FakeEngine, EngineClient], Awaitable[None]]


def play(folder: Path, scene: Scene) -> None:
    async def run() -> None:
        engine = FakeEngine(folder / "s")
        await engine.listen()
        client = await connect(folder)
        try:
            async with asyncio.timeout(5):
                await scene(engine, client)
        finally:
            await client.close()
            await engine.kill()

    asyncio.run(run())


async def connect(folder: Path) -> EngineClient:
    return await EngineClient.connect(UnixAddress(str(folder / "s")), program="test")


async def collect(client: EngineClient) -> list[Chunk | Done]:
    message = Complete(client.next_request(), "d", "x = ")
    return [answer async for answer in client.complete(message)]


async def ask(
    engine: FakeEngine, client: EngineClient
) -> tuple[asyncio.Task[list[Chunk | Done]], FakeRequest]:
    answers = asyncio.ensure_future(collect(client))
    return answers, await engine.next_request()


def test_status_is_there_after_the_greeting(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        assert client.status == status()
        assert client.is_connected

    play(tmp_path, scene)


def test_chunks_come_before_done(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        answers, request = await ask(engine, client)
        request.write("a")
        request.answer("b")
        first, second, done = await answers
        assert [first, second] == [Chunk(1, "a"), Chunk(1, "b")]
        assert isinstance(done, Done)
        assert done.text == "ab"

    play(tmp_path, scene)


def test_requests_run_side_by_side(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        first_answers, first = await ask(engine, client)
        second_answers, second = await ask(engine, client)
        second.answer("2")
        assert (await second_answers)[0] == Chunk(2, "2")
        first.answer("1")
        assert (await first_answers)[0] == Chunk(1, "1")

    play(tmp_path, scene)


def test_stop_and_cancel_end_a_request(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        answers, request = await ask(engine, client)
        client.stop(1)
        assert await request.stopped == ""
        (done,) = await answers
        assert isinstance(done, Done)
        assert done.stop_reason is StopReason.STOPPED
        answers, request = await ask(engine, client)
        client.cancel(2, CancelCause.SUPERSEDED)
        assert await request.cancelled is CancelCause.SUPERSEDED
        await answers

    play(tmp_path, scene)


def test_leaving_a_request_cancels_it(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        answers, request = await ask(engine, client)
        answers.cancel()
        assert await request.cancelled is CancelCause.CLIENT

    play(tmp_path, scene)


@pytest.mark.parametrize("code", [*REQUEST_ERRORS, "from the future"])
def test_failure_is_raised_as_its_class(tmp_path: Path, code: str):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        answers, request = await ask(engine, client)
        request.send(Failed(1, code, "what.", "hint."))
        with pytest.raises(RequestError, match=r"what\. hint\.") as caught:
            await answers
        assert type(caught.value) is REQUEST_ERRORS.get(code, RequestError)

    play(tmp_path, scene)


def test_known_code_is_a_known_class():
    assert REQUEST_ERRORS["engine_busy"] is EngineBusy


def test_lost_connection_ends_all_requests(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        answers, _ = await ask(engine, client)
        await engine.kill()
        with pytest.raises(EngineUnavailable, match="was lost"):
            await answers
        await client.wait_closed()
        assert not client.is_connected
        with pytest.raises(EngineUnavailable, match="is closed"):
            await collect(client)

    play(tmp_path, scene)


def test_status_is_told_whenever_it_comes(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        told: asyncio.Queue[EngineStatus] = asyncio.Queue()
        client.on_status = told.put_nowait
        engine.send_status(status(EngineState.LOADING))
        assert (await told.get()).state is EngineState.LOADING
        client.query_status()
        assert await told.get() == client.status

    play(tmp_path, scene)


def test_answer_to_an_unknown_request_is_ignored(tmp_path: Path):
    async def scene(engine: FakeEngine, client: EngineClient) -> None:
        answers, request = await ask(engine, client)
        request.send(Chunk(99, "?"))
        request.answer("a")
        assert len(await answers) == 2

    play(tmp_path, scene)


def test_nobody_listening_is_engine_unavailable(tmp_path: Path):
    with pytest.raises(EngineUnavailable, match="no engine listens at"):
        asyncio.run(connect(tmp_path))


GREETING = protocol.encode(Hello(PROTOCOL_VERSION, "x")) + protocol.encode(status())


@contextlib.asynccontextmanager
async def raw_server(
    sent: bytes, path: Path | None = None
) -> AsyncIterator[tuple[asyncio.Server, asyncio.Queue[bytes]]]:
    """Serve one connection with bytes, on a socket or a port; yields what the client sends."""
    received: asyncio.Queue[bytes] = asyncio.Queue()
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(await read_frame(reader))
        writer.write(sent)
        if not sent.startswith(GREETING):
            writer.write_eof()
        await reader.read()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.set_result(None)

    if path is not None:
        server = await asyncio.start_unix_server(serve, str(path))
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asyncio.timeout(5), server:
        yield server, received
        await ended


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "refused the greeting"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "refused the greeting"),
        (protocol.encode(Hello(99, "old engine")), "speaks protocol 99"),
        (protocol.encode(status()), "first frame must be hello"),
        (GREETING[: len(GREETING) // 2], "refused the greeting"),
        (protocol.encode(Hello(PROTOCOL_VERSION, "x")) * 2, "a status must follow"),
    ],
)
def test_other_greeting_is_refused(tmp_path: Path, sent: bytes, reason: str):
    async def run() -> None:
        async with raw_server(sent, tmp_path / "s"):
            with pytest.raises(EngineUnavailable, match=reason):
                await connect(tmp_path)

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"\xff\xff\xff\xff", GREETING, b"\x00\x00\x00\x01\x01"])
def test_bytes_that_are_no_answer_end_the_connection(tmp_path: Path, sent: bytes):
    async def run() -> None:
        async with raw_server(GREETING + sent, tmp_path / "s"):
            client = await connect(tmp_path)
            await client.wait_closed()
            assert not client.is_connected
            await client.close()

    asyncio.run(run())


def test_secret_of_a_port_is_sent():
    async def run() -> None:
        async with raw_server(GREETING) as (server, received):
            port = server.sockets[0].getsockname()[1]
            address = TcpAddress("127.0.0.1", port, "secret")
            client = await EngineClient.connect(address, program="test")
            hello = protocol.decode_from_client(await received.get())
            assert isinstance(hello, Hello)
            assert hello.token == "secret"
            await client.close()

    asyncio.run(run())


def test_secret_of_a_port_is_not_shown():
    assert address_text(TcpAddress("127.0.0.1", 7, "secret")) == "127.0.0.1:7"
    assert address_text(UnixAddress("/a/b")) == "/a/b"
