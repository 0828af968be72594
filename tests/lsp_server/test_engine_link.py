"""Facts about the connection to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lsp_server.engine_link import MAX_FAILURES, EngineLink, Timing, pause_s
from specengine.client import EngineClient, UnixAddress
from specengine.errors import ConfigError, EngineUnavailable, SpecEngineError
from specengine.protocol import EngineState, EngineStatus
from tests.fake_engine import FakeEngine, status


class Listener:
    def __init__(self) -> None:
        self.statuses: asyncio.Queue[EngineStatus] = asyncio.Queue()
        self.outages: asyncio.Queue[SpecEngineError] = asyncio.Queue()
        self.given_up: asyncio.Queue[SpecEngineError] = asyncio.Queue()

    def on_attempt(self) -> None:
        pass

    def on_status(self, status: EngineStatus) -> None:
        self.statuses.put_nowait(status)

    def on_outage(self, error: SpecEngineError) -> None:
        self.outages.put_nowait(error)

    def on_give_up(self, error: SpecEngineError) -> None:
        self.given_up.put_nowait(error)


class Clock:
    """Sleeping takes no time but is noted."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def timing(self) -> Timing:
        return Timing(lambda: self.now_s, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(5):
            await scene()

    asyncio.run(run())


async def connect(path: Path) -> EngineClient:
    return await EngineClient.connect(UnixAddress(str(path)), program="test")


def test_connection_is_held_and_found_again(tmp_path: Path):
    async def scene() -> None:
        engine, listener, clock = FakeEngine(tmp_path / "s"), Listener(), Clock()
        await engine.listen()
        link = EngineLink(lambda: connect(tmp_path / "s"), listener, clock.timing())
        assert link.client is None
        link.start()
        assert link.attempt is not None
        await link.attempt
        first = await listener.statuses.get()
        assert first == status()
        assert link.client is not None
        engine.send_status(status(EngineState.LOADING))
        assert (await listener.statuses.get()).state is EngineState.LOADING
        await engine.kill()
        assert "gone" in str(await listener.outages.get())
        assert link.client is None
        await engine.listen()
        assert (await listener.statuses.get()).state is EngineState.LOADING
        await link.close()
        await engine.kill()

    play(scene)


def test_link_gives_up_and_tries_again_when_asked():
    async def scene() -> None:
        listener, clock = Listener(), Clock()

        async def fail() -> EngineClient:
            raise ConfigError("not possible.")

        link = EngineLink(fail, listener, clock.timing())
        link.retry()
        link.start()
        await listener.given_up.get()
        assert listener.outages.qsize() == MAX_FAILURES
        assert clock.pauses_s == [pause_s(n) for n in range(1, MAX_FAILURES + 1)]
        link.retry()
        await listener.given_up.get()
        assert listener.outages.qsize() == 2 * MAX_FAILURES
        await link.close()

    play(scene)


def test_unforeseen_error_is_a_failure_like_others(caplog: pytest.LogCaptureFixture):
    async def scene() -> None:
        listener, clock = Listener(), Clock()

        async def fail() -> EngineClient:
            raise ValueError("embedded null byte")

        link = EngineLink(fail, listener, clock.timing())
        link.start()
        error = await listener.given_up.get()
        assert "(ValueError)" in str(error)
        assert clock.pauses_s == [pause_s(n) for n in range(1, MAX_FAILURES + 1)]
        await link.close()

    play(scene)
    assert "ValueError at " in caplog.text
    assert "embedded null byte" not in caplog.text, "a message may quote source text"


def test_listener_that_fails_ends_the_connection_not_the_link(tmp_path: Path):
    async def scene() -> None:
        engine, listener, clock = FakeEngine(tmp_path / "s"), Listener(), Clock()
        await engine.listen()
        opened: list[EngineClient] = []

        async def open_client() -> EngineClient:
            opened.append(await connect(tmp_path / "s"))
            return opened[-1]

        def fail_once(status: EngineStatus) -> None:
            del listener.on_status
            raise KeyError("status")

        listener.on_status = fail_once
        link = EngineLink(open_client, listener, clock.timing())
        link.start()
        assert "(KeyError)" in str(await listener.outages.get())
        assert link.client is None
        await listener.statuses.get()
        assert link.client is opened[1]
        await link.close()
        await engine.kill()

    play(scene)


def test_engine_that_dies_after_a_while_is_no_failure_in_a_row(tmp_path: Path):
    """Only a connection that ends early counts, else a day of restarts would end suggestions."""

    async def scene() -> None:
        engine, listener, clock = FakeEngine(tmp_path / "s"), Listener(), Clock()
        link = EngineLink(lambda: connect(tmp_path / "s"), listener, clock.timing())
        await engine.listen()
        link.start()
        for _ in range(MAX_FAILURES + 2):
            await listener.statuses.get()
            clock.now_s += 60
            await engine.kill()
            await engine.listen()
            await listener.outages.get()
        assert set(clock.pauses_s) == {pause_s(1)}
        await link.close()
        await engine.kill()

    play(scene)


def test_pauses_grow_to_a_limit():
    assert [pause_s(n) for n in (1, 2, 3, 20)] == [0.25, 0.5, 1.0, 30.0]


def test_other_protocol_version_is_an_outage(tmp_path: Path):
    async def scene() -> None:
        engine, listener, clock = FakeEngine(tmp_path / "s"), Listener(), Clock()
        engine.protocol_version = 99
        await engine.listen()
        link = EngineLink(lambda: connect(tmp_path / "s"), listener, clock.timing())
        link.start()
        error = await listener.outages.get()
        assert isinstance(error, EngineUnavailable)
        assert "speaks protocol 99" in str(error)
        await link.close()
        await engine.kill()

    play(scene)


@pytest.mark.parametrize("is_started", [False, True])
def test_closing_ends_what_waits(is_started: bool):
    async def scene() -> None:
        never = asyncio.Event()

        async def wait() -> EngineClient:
            await never.wait()
            raise AssertionError

        link = EngineLink(wait, Listener(), Clock().timing())
        if is_started:
            link.start()
            assert link.attempt is not None
        await link.close()
        assert link.attempt is None

    play(scene)
