"""Facts about the way from settings to servers upstream."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from lsp_server.settings import CHOICES, EngineSettings, Settings, UpstreamSettings, read_settings
from lsp_server.state import client_opener
from lsp_server.trace_log import ACCEPTED, DRAFTED, TraceRecord, readable
from lsp_server.upstream import UpstreamOpener
from specengine.client import Client, EngineClient
from specengine.errors import EngineUnavailable, SettingsInvalid
from specengine.protocol import Complete, Done, PhaseTimes, StopReason, TokenCounts
from specengine.upstream.done import UpstreamDone
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
    message = Complete(request=client.next_request(), document="a", prefix="x = f(0")
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


def upstream_done(*counters: tuple[str, float]) -> UpstreamDone:
    tokens = TokenCounts(prompt=9, reused=8, prefilled=1, emitted=5)
    done = (7, "secret", (), StopReason.STOPPED, None, "m", "upstream:vllm@gpu", 5, tokens)
    return UpstreamDone(*done, PhaseTimes(), counters=counters)


def test_what_a_server_counts_of_its_speculation_stands_beside_ours():
    record = TraceRecord(1, 1.0)
    record.take_engine_part(upstream_done((DRAFTED, 448.0), (ACCEPTED, 342.0)))
    assert record.upstream == {DRAFTED: 448.0, ACCEPTED: 342.0}
    assert (record.model, record.drafter) == ("m", "upstream:vllm@gpu")
    assert "accepted 0/0, reused 8/9, the server accepts 76%" in readable(record)


def test_server_that_counts_nothing_leaves_nothing():
    record = TraceRecord(1, 1.0)
    record.take_engine_part(upstream_done())
    assert record.upstream == {}
    assert "the server" not in readable(record)


@pytest.mark.parametrize("data", [{"engine": {"backend": "up"}}, {"upstream": {"fim": "prefix"}}])
def test_value_that_is_no_choice_is_reported_and_defaulted(data: object):
    settings, problems = read_settings(data)
    assert settings == Settings()
    assert len(problems) == 1


def test_choices_name_settings_whose_default_is_one_of_them():
    for name, values in CHOICES.items():
        group, _, field = name.partition(".")
        assert getattr(getattr(Settings(), group), field) in values


@pytest.mark.e2e
def test_whoever_has_a_local_engine_loads_no_http():
    code = "import sys, lsp_server.server; print([m for m in sys.modules if 'httpx' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"
