"""Facts about the way from settings to servers upstream."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lsp_server.settings import EngineSettings, Settings, UpstreamSettings
from lsp_server.state import client_opener
from lsp_server.upstream import UpstreamOpener
from specengine.client import Client, EngineClient
from specengine.errors import EngineUnavailable, SettingsInvalid
from specengine.protocol import Complete, Done
from specengine.upstream.options import Limits, UpstreamOptions
from tests.scripted_upstream import ScriptedUpstream, written

UPSTREAM = EngineSettings(backend="upstream")


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scene()

    asyncio.run(run())


async def no_engine() -> EngineClient:
    raise EngineUnavailable("there is no engine.")


async def ask(client: Client) -> Done:
    message = Complete(request=client.next_request(), document="a", prefix="x = f(")
    async for answer in client.complete(message):
        if isinstance(answer, Done):
            return answer
    raise AssertionError("no Done")


def test_backend_upstream_asks_the_servers_with_the_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("THE_KEY", "sk-1")

    async def scene() -> None:
        async with ScriptedUpstream(written("1)")).listening() as upstream:
            settings = UpstreamSettings(urls=(upstream.url + "/v1/",), key_variable="THE_KEY")
            client = await client_opener(Settings(UPSTREAM, settings))()
            done = await ask(client)
            assert (done.text, done.model) == ("1)", "m")
            assert upstream.seen[0].headers["authorization"] == "Bearer sk-1"
            await client.close()

    play(scene)


def test_servers_that_do_not_answer_are_unavailable_without_a_fallback():
    async def scene() -> None:
        settings = UpstreamSettings(urls=("http://127.0.0.1:9",), local_fallback=False)
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await UpstreamOpener(settings, no_engine).open()

    play(scene)


def test_local_engine_is_the_fallback_unless_settings_say_otherwise():
    async def scene() -> None:
        settings = UpstreamSettings(urls=("http://127.0.0.1:9",))
        client = await UpstreamOpener(settings, no_engine).open()
        with pytest.raises(EngineUnavailable, match="there is no engine"):
            await ask(client)
        await client.close()

    play(scene)


@pytest.mark.parametrize("urls", [(), ("http://gpu.example:8000",), ("nonsense",)])
def test_addresses_that_cannot_be_used_are_refused(urls: tuple[str, ...]):
    async def scene() -> None:
        with pytest.raises(SettingsInvalid, match=r"upstream\.urls"):
            await UpstreamOpener(UpstreamSettings(urls=urls), no_engine).open()

    play(scene)


def test_defaults_are_those_of_the_client():
    options = UpstreamOpener(UpstreamSettings(), no_engine)._prepare()[1]  # pyright: ignore[reportPrivateUsage]
    assert options.limits == Limits()
    assert replace(options, key=None) == replace(UpstreamOptions(()), key=None)  # pyright: ignore[reportArgumentType]


@pytest.mark.e2e
def test_whoever_has_a_local_engine_loads_no_http():
    code = "import sys, lsp_server.server; print([m for m in sys.modules if 'httpx' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
