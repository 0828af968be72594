"""Facts about the client, against a scripted server on loopback."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
import trustme

from specengine.client import EngineClient, UnixAddress
from specengine.errors import (
    EngineBusy,
    EngineUnavailable,
    ModelUnknown,
    PromptTooLong,
    RequestInvalid,
    SettingsInvalid,
    SpecEngineError,
    UpstreamFailed,
)
from specengine.protocol import CancelCause, Complete, Done, StopReason, TokenCounts
from specengine.upstream.asking import MAX_PAUSE_S, Timing
from specengine.upstream.breaker import MAX_FAILURES
from specengine.upstream.client import MAX_RUNS, UpstreamClient
from specengine.upstream.done import UpstreamDone
from specengine.upstream.endpoint import Key
from specengine.upstream.events import MAX_LINE_BYTES
from specengine.upstream.failures import retry_after_s
from specengine.upstream.options import Limits, UpstreamOptions
from specengine.upstream.server import COUNTERS_EVERY_S, MAX_REPLY_BYTES
from tests.fake_engine import FakeEngine
from tests.scripted_upstream import Answer, ScriptedUpstream, event, refused, text, written

SECRET = "sk-very-secret-0123"
SOURCE = "very_private_source"
SHORT_S = 0.05
LIMITS = Limits(first_text_s=5, gap_s=5, total_s=5)


@dataclass
class Clock:
    """Pauses take no time but are noted."""

    now_s: float = 0.0
    pauses_s: list[float] = field(default_factory=list[float])

    def timing(self) -> Timing:
        return Timing(lambda: self.now_s, self.sleep, lambda: 1.0)

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)
        self.now_s += seconds


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(10):
            await scene()

    asyncio.run(run())


def options(*upstreams: ScriptedUpstream, limits: Limits = LIMITS) -> UpstreamOptions:
    return UpstreamOptions(tuple(one.url for one in upstreams), limits=limits, key=Key(SECRET))


def message(client: UpstreamClient, prefix: str = "x = f(0", **changes: object) -> Complete:
    asked = Complete(request=client.next_request(), document="a", prefix=prefix)
    return msgspec.structs.replace(asked, **changes)


async def ask(client: UpstreamClient, prefix: str = "x = f(0", **changes: object) -> UpstreamDone:
    """Return ``Done``, whose text is what was streamed."""
    chunks = ""
    async for answer in client.complete(message(client, prefix, **changes)):
        if isinstance(answer, Done):
            assert answer.text == chunks
            assert isinstance(answer, UpstreamDone)
            return answer
        chunks += answer.text
    raise AssertionError("no Done")


async def counted(client: UpstreamClient) -> tuple[tuple[str, float], ...]:
    """Ask until there are counters: they are read beside the requests."""
    while not (done := await ask(client)).counters:
        pass
    return done.counters


def against(
    *script: Answer,
    scene: Callable[[UpstreamClient, ScriptedUpstream, Clock], Awaitable[None]],
    limits: Limits = LIMITS,
) -> None:
    """Play a scene with one server."""

    async def run() -> None:
        clock = Clock()
        async with ScriptedUpstream(*script).listening() as upstream:
            client = await UpstreamClient.open(
                options(upstream, limits=limits), timing=clock.timing()
            )
            await scene(client, upstream, clock)
            await client.close()

    play(run)


def test_answer_is_streamed_and_its_numbers_are_told():
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 5},
    }

    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        done = await ask(client)
        assert done.text == "1, 2)"
        assert done.stop_reason is StopReason.END_TOKEN
        assert done.tokens == TokenCounts(prompt=9, reused=5, prefilled=4, emitted=4)
        assert done.steps == 2
        assert done.model == "m"
        assert done.drafter == f"upstream:vllm@{upstream.url.removeprefix('http://')}"
        assert client.status is not None
        assert client.status.prompt_tokens == 2048
        assert upstream.seen[0].headers["authorization"] == f"Bearer {SECRET}"
        assert upstream.seen[0].headers["accept-encoding"] == "identity"

    against(written("1, ", "2)", usage=usage), scene=scene)


def test_marker_that_a_server_writes_out_ends_the_text_and_is_no_part_of_it():
    async def scene() -> None:
        clock = Clock()
        pieces = ("1", "<|fim_mid", "dle|>2")
        async with ScriptedUpstream(written(*pieces)).listening() as upstream:
            chosen = replace(options(upstream), template="qwen2.5-coder-0.5b")
            client = await UpstreamClient.open(chosen, timing=clock.timing())
            done = await ask(client, suffix=")")
            await client.close()
        assert done.text == "1"

    play(scene)


def test_connection_is_used_again_after_an_answer():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        for _ in range(2):  # the counters are read beside the second
            await ask(client)
        num = upstream.num_connections
        for _ in range(3):
            await ask(client)
        assert upstream.num_connections == num

    against(written("a"), scene=scene)


def test_stop_closes_the_connection_and_keeps_the_text():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        asked = message(client)
        answers = client.complete(asked)
        assert (await anext(answers)) == msgspec.structs.replace(
            await anext(answers), text="a"
        )  # two chunks have come
        client.stop(asked.request)
        done = await anext(answers)
        assert isinstance(done, Done)
        assert (done.text, done.stop_reason) == ("aa", StopReason.STOPPED)
        await answers.aclose()
        await upstream.seen[0].is_left.wait()

    against(Answer((text("a"), text("a")), hangs=True), scene=scene)


def test_answer_of_which_the_reader_had_enough_is_an_answer():
    """Most end so; else nothing would ever be known of a server's health and counters."""

    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        upstream.metrics = Answer((b"vllm:spec_decode_num_drafts_total 5\n",))
        (server,) = client._asker.servers  # pyright: ignore[reportPrivateUsage]
        server.breaker.fail()
        asked = message(client)
        answers = client.complete(asked)
        await anext(answers)
        client.stop(asked.request)
        await answers.aclose()
        await upstream.metrics_asked.wait()
        assert server.breaker.is_healthy

    against(Answer((text("a"),), hangs=True), scene=scene)


@pytest.mark.parametrize("cause", list(CancelCause))
def test_cancel_closes_the_connection_whatever_the_server_does(cause: CancelCause):
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        asked = message(client)
        answers = client.complete(asked)
        waiting = asyncio.ensure_future(anext(answers))
        await upstream.arrived.wait()
        client.cancel(asked.request, cause)
        done = await waiting
        assert isinstance(done, Done)
        assert (done.stop_reason, done.cause) == (StopReason.CANCELLED, cause)
        await upstream.seen[0].is_left.wait()
        await answers.aclose()

    against(Answer(hangs=True), scene=scene)


def test_leaving_the_answers_closes_the_connection():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        answers = client.complete(message(client))
        await anext(answers)
        await answers.aclose()
        await upstream.seen[0].is_left.wait()

    against(Answer((text("a"),), hangs=True), scene=scene)


def test_newer_request_of_a_document_supersedes_the_older():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        older = client.complete(message(client))
        await anext(older)
        other = client.complete(message(client, document="b"))
        await anext(other)
        assert (await ask(client)).text == "new"
        done = await anext(older)
        assert isinstance(done, Done)
        assert done.cause is CancelCause.SUPERSEDED
        await upstream.seen[0].is_left.wait()
        assert not upstream.seen[1].is_left.is_set()
        await other.aclose()
        await older.aclose()

    hanging = Answer((text("a"),), hangs=True)
    against(hanging, hanging, written("new"), scene=scene)


def test_text_that_is_no_unicode_is_refused():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(RequestInvalid, match="surrogate"):
            await ask(client, "x = '\ud800' + f(")
        assert upstream.seen == []

    against(written("a"), scene=scene)


def test_names_that_a_server_gives_are_shown_without_tricks():
    async def run() -> None:
        name = "m\x1b[2J\n" + "x" * 500
        async with ScriptedUpstream(written("a"), model=name, kind=name).listening() as upstream:
            client = await UpstreamClient.open(options(upstream))
            done = await ask(client)
            assert (done.model + done.drafter).isprintable()
            assert len(done.model + done.drafter) < 300
            assert upstream.seen[0].body["model"] == name
            await client.close()

    play(run)


def test_nothing_is_not_continued():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        done = await ask(client, "")
        assert (done.text, done.stop_reason) == ("", StopReason.END_TOKEN)
        assert upstream.seen == []

    against(written("a"), scene=scene)


def test_any_request_ends_one_that_looks_ahead():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        ahead = client.complete(message(client, is_ahead=True))
        await anext(ahead)
        assert (await ask(client, document="b")).text == "new"
        done = await anext(ahead)
        assert isinstance(done, Done)
        assert done.cause is CancelCause.SUPERSEDED
        await ahead.aclose()

    against(Answer((text("a"),), hangs=True), written("new"), scene=scene)


def test_forced_text_is_stepped_back_over_and_taken_off():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client, "return compute(x) or ret")).text == "urned"
        assert upstream.seen[0].body["prompt"] == "return compute(x) or"

    against(written(" re", "turned"), scene=scene)


def test_answer_that_goes_on_otherwise_is_asked_for_from_the_cursor():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client, "a or ret")).text == "urned"
        assert [seen.body["prompt"] for seen in upstream.seen] == ["a or", "a or ret"]
        assert clock.pauses_s == []
        await upstream.seen[0].is_left.wait()

    against(Answer((text(" value"),), hangs=True), written("urned"), scene=scene)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_passing_trouble_is_tried_again_after_a_pause(status: int):
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client)).text == "a"
        assert len(upstream.seen) == 2
        assert len(clock.pauses_s) == 1
        assert 0 < clock.pauses_s[0] < 1

    against(refused(status), written("a"), scene=scene)


@pytest.mark.parametrize(
    "broken",
    [
        Answer(is_cut=True),
        Answer((event(b"garbage"),)),
        Answer((event({"error": {"message": SOURCE}}),)),
        Answer((text("", "abort"), event(b"[DONE]"))),
        Answer(()),
    ],
)
def test_answer_that_breaks_off_before_its_text_is_asked_for_again(broken: Answer):
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client)).text == "a"

    against(broken, written("a"), scene=scene)


@pytest.mark.parametrize(
    "broken",
    [
        Answer((text("a"),), is_cut=True),
        Answer((text("a"),)),
        Answer((text("a"), event(b"garbage"))),
        Answer((text("a"), event({"error": {"message": SOURCE}}))),
        Answer((text("a"), text("", "abort"), event(b"[DONE]"))),
        Answer((text("a"), b"data: " + b"x" * (MAX_LINE_BYTES + 1))),
    ],
)
def test_answer_that_breaks_off_behind_some_text_is_an_error(broken: Answer):
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(UpstreamFailed) as caught:
            await ask(client)
        assert SOURCE not in str(caught.value)
        assert len(upstream.seen) == 1

    against(broken, written("b"), scene=scene)


@pytest.mark.parametrize("end", [Answer(is_cut=True), Answer(hangs=True), Answer((event(b"x"),))])
def test_answer_is_whole_once_the_server_has_said_how_it_ends(end: Answer):
    """What breaks behind that would only have been the usage and the mark of the end."""
    whole = replace(end, body=(text("a"), text("", "length"), *end.body))

    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        done = await asyncio.wait_for(ask(client), timeout=10)
        assert (done.text, done.stop_reason) == ("a", StopReason.LENGTH)
        assert len(upstream.seen) == 1

    against(whole, scene=scene, limits=Limits(first_text_s=60, gap_s=60, total_s=60))


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (refused(400), RequestInvalid, "400"),
        (refused(422), RequestInvalid, "422"),
        (refused(400, {"error": {"type": "exceed_context_size_error"}}), PromptTooLong, "size"),
        (refused(413), PromptTooLong, "413"),
    ],
)
def test_request_that_no_server_would_take_is_not_tried_again(
    answer: Answer, error: type[SpecEngineError], says: str
):
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(error, match=says):
                await ask(client)
        assert len(upstream.seen) == MAX_FAILURES + 1

    against(answer, scene=scene)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refused(302, None, Location="http://127.0.0.1:1/"), "Redirects are not followed"),
        (refused(307, None, Location="http://127.0.0.1:1/"), "Redirects are not followed"),
        (refused(401), "key"),
        (refused(403), "key"),
        (refused(404), "upstream.model"),
        (Answer((b"{}",), headers=(("Content-Type", "application/json"),)), "application/json"),
        (Answer((b"",), headers=()), "no type"),
        (
            Answer(
                (b"x",),
                headers=(("Content-Type", "text/event-stream"), ("Content-Encoding", "gzip")),
            ),
            "gzip",
        ),
    ],
)
def test_server_that_cannot_be_right_is_left_alone_at_once(answer: Answer, says: str):
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(UpstreamFailed, match=says):
            await ask(client)
        with pytest.raises(UpstreamFailed, match="may be asked"):
            await ask(client)
        assert len(upstream.seen) == 1

    against(answer, scene=scene)


def test_server_that_has_another_model_by_now_is_asked_for_that():
    async def run() -> None:
        async with ScriptedUpstream(
            written("a"), refused(404), written("b"), model="old"
        ).listening() as upstream:
            client = await UpstreamClient.open(options(upstream))
            assert (await ask(client)).text == "a"
            upstream.models = ScriptedUpstream(model="new").models
            assert (await ask(client)).text == "b"
            assert [seen.body["model"] for seen in upstream.seen] == ["old", "old", "new"]
            assert client.status is not None
            assert client.status.model == "new"
            await client.close()

    play(run)


def test_error_page_without_end_is_not_read():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(UpstreamFailed, match="more than"):
            await ask(client)

    against(Answer((b"x" * (MAX_REPLY_BYTES + 1),), status=400), scene=scene)


def test_nothing_that_a_server_says_of_an_error_is_repeated_but_names(
    caplog: pytest.LogCaptureFixture,
):
    error = {"message": f"{SECRET} {SOURCE}", "code": SECRET, "type": "BadRequestError"}
    said = {"error": error}

    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(RequestInvalid, match="BadRequestError") as caught:
            await ask(client, SOURCE + " = (")
        assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r}"

    with caplog.at_level(logging.DEBUG):
        against(refused(400, said), scene=scene)
    assert SECRET not in caplog.text
    assert SOURCE not in caplog.text


def test_server_that_asks_for_a_short_pause_gets_it():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client)).text == "a"
        assert clock.now_s >= 2
        assert len(upstream.seen) == 2

    against(refused(429, None, Retry_After="2"), written("a"), scene=scene)


def test_server_that_asks_for_a_long_pause_is_not_asked_until_then():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        for _ in range(2):
            with pytest.raises((EngineBusy, UpstreamFailed)):
                await ask(client)
        assert len(upstream.seen) == 1
        clock.now_s += 60
        assert (await ask(client)).text == "a"

    assert MAX_PAUSE_S < 60
    against(refused(429, None, Retry_After="60"), written("a"), scene=scene)


def test_retry_after_is_seconds_or_a_date_and_has_a_limit():
    at = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC).timestamp()
    assert retry_after_s("7") == 7
    assert retry_after_s("Mon, 30 Nov 2026 12:00:09 GMT", lambda: at) == 9
    assert retry_after_s("Mon, 30 Nov 2026 11:00:00 GMT", lambda: at) == 0
    assert retry_after_s("999999999") == 300
    assert [retry_after_s(text) for text in (None, "", "soon", "-1", "1e9")] == [None] * 5


def test_silence_before_the_first_text_ends_a_try():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client)).text == "a"
        await upstream.seen[0].is_left.wait()

    limits = replace(LIMITS, first_text_s=SHORT_S)
    against(Answer((b": still here\n\n",), hangs=True), written("a"), scene=scene, limits=limits)


def test_silence_between_two_events_ends_the_answer():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(UpstreamFailed, match="in the middle"):
            await ask(client)
        await upstream.seen[0].is_left.wait()

    limits = replace(LIMITS, gap_s=SHORT_S)
    against(Answer((text("a"),), hangs=True), scene=scene, limits=limits)


def test_all_tries_together_have_a_limit():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        with pytest.raises(UpstreamFailed, match="altogether"):
            await ask(client)

    limits = replace(LIMITS, total_s=SHORT_S)
    against(Answer((), hangs=True), scene=scene, limits=limits)


def test_server_that_keeps_silent_behind_its_end_is_not_waited_for_long():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        assert (await ask(client)).text == "a"

    answer = written("a")
    against(replace(answer, hangs=True), scene=scene)


def test_connections_to_a_server_have_a_limit():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        first = client.complete(message(client))
        await anext(first)
        with pytest.raises(EngineBusy, match="connections"):
            await ask(client, document="b")
        await first.aclose()

    limits = replace(LIMITS, max_connections=1, connect_s=SHORT_S, attempts=1)
    against(Answer((text("a"), *[b":\n"] * 3), hangs=True), scene=scene, limits=limits)


def test_running_requests_have_a_limit():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        running = [client.complete(message(client, document=str(at))) for at in range(MAX_RUNS)]
        waiting = [asyncio.ensure_future(anext(one)) for one in running]
        await upstream.arrived.wait()
        with pytest.raises(EngineBusy):
            await ask(client, document="one more")
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)

    against(Answer(hangs=True), scene=scene)


def test_closing_ends_what_runs():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        answers = client.complete(message(client))
        await anext(answers)
        await client.close()
        with pytest.raises(EngineUnavailable):
            await anext(answers)
        with pytest.raises(EngineUnavailable):
            await ask(client)
        assert not client.is_connected
        await client.wait_closed()

    against(Answer((text("a"),), hangs=True), scene=scene)


def test_counters_are_read_after_an_answer_and_not_too_often():
    async def scene(client: UpstreamClient, upstream: ScriptedUpstream, clock: Clock) -> None:
        upstream.metrics = Answer((b"vllm:spec_decode_num_drafts_total 5\n",))
        assert (await ask(client)).counters == ()
        assert await counted(client) == (("spec_decode_num_drafts_total", 5.0),)
        assert upstream.num_metrics == 1
        upstream.metrics = Answer((b"vllm:spec_decode_num_drafts_total 6\n",))
        assert await counted(client) == (("spec_decode_num_drafts_total", 5.0),)
        clock.now_s += COUNTERS_EVERY_S
        while (await counted(client))[0][1] < 6:
            pass
        assert upstream.num_metrics == 2

    against(written("a"), scene=scene)


def test_model_without_markers_is_asked_without_infill_by_llama_cpp():
    async def run() -> None:
        async with ScriptedUpstream(
            refused(501), written("a"), kind="llamacpp"
        ).listening() as upstream:
            client = await UpstreamClient.open(options(upstream))
            assert (await ask(client, suffix="\n)")).text == "a"
            assert (await ask(client, suffix="\n)")).text == "a"
            paths = [seen.path for seen in upstream.seen]
            assert paths == ["/infill", "/v1/completions", "/v1/completions"]
            await client.close()

    play(run)


def test_another_server_answers_for_one_that_fails_and_keeps_the_document():
    async def run() -> None:
        clock = Clock()
        async with (
            ScriptedUpstream(refused(500)).listening() as bad,
            ScriptedUpstream(written("a")).listening() as good,
        ):
            client = await UpstreamClient.open(options(bad, good), timing=clock.timing())
            for _ in range(4):
                assert (await ask(client)).text == "a"
            assert len(bad.seen) == 1
            assert clock.pauses_s == []
            await client.close()

    play(run)


@pytest.mark.parametrize(
    ("model", "kind", "expected"),
    [
        ("Qwen/Qwen2.5-Coder-7B", "vllm", True),
        ("bigcode/starcoderbase", "vllm", False),
        ("Qwen/Qwen2.5-Coder-7B", "library", False),
        ("m", "llamacpp", True),
        ("m", "vllm", False),
    ],
)
def test_status_says_whether_other_files_reach_the_model(model: str, kind: str, expected: bool):
    async def run() -> None:
        async with ScriptedUpstream(written("a"), model=model, kind=kind).listening() as upstream:
            client = await UpstreamClient.open(options(upstream))
            assert client.status is not None
            assert client.status.reads_files is expected
            await client.close()

    play(run)


def test_server_that_was_down_is_asked_what_it_is_when_it_is_back():
    async def run() -> None:
        clock = Clock()
        async with ScriptedUpstream(written("a")).listening() as upstream:
            good, upstream.models = upstream.models, refused(503)
            opened = options(upstream)
            with pytest.raises(EngineUnavailable, match="503"):
                await UpstreamClient.open(opened, timing=clock.timing())
            asleep: list[EngineClient] = []

            async def open_local() -> EngineClient:
                assert asleep
                return asleep[0]

            client = await UpstreamClient.open(opened, open_local, clock.timing())
            assert client.status is not None
            assert "local engine" in client.status.detail
            upstream.models = good
            clock.now_s += 60
            assert (await ask(client)).text == "a"
            assert client.status.model == "m"
            await client.close()

    play(run)


def test_local_engine_answers_when_no_server_does(tmp_path: Path):
    async def run() -> None:
        clock, engine = Clock(), FakeEngine(tmp_path / "s")
        await engine.listen()

        async def open_local() -> EngineClient:
            return await EngineClient.connect(UnixAddress(str(engine.path)), program="test")

        async with ScriptedUpstream(refused(500), written("a")).listening() as upstream:
            limits = replace(LIMITS, attempts=1)
            client = await UpstreamClient.open(
                options(upstream, limits=limits), open_local, clock.timing()
            )
            statuses: list[str] = []
            client.on_status = lambda status: statuses.append(status.model)
            asked = message(client)
            answers = client.complete(asked)
            first = asyncio.ensure_future(anext(answers))
            request = await engine.next_request()
            assert request.message.prefix == asked.prefix
            request.write("lo")
            assert msgspec.structs.asdict(await first) == {"request": asked.request, "text": "lo"}
            client.stop(asked.request)
            assert await request.stopped == "lo"
            done = await anext(answers)
            assert isinstance(done, Done)
            assert (done.request, done.text, done.model) == (asked.request, "lo", "fake")
            assert done.stop_reason is StopReason.STOPPED
            await answers.aclose()
            assert (await ask(client)).text == "a"
            assert statuses == ["fake", "m"]
            await client.close()
        await engine.kill()

    play(run)


def test_local_request_is_cancelled_in_the_engine(tmp_path: Path):
    async def run() -> None:
        engine = FakeEngine(tmp_path / "s")
        await engine.listen()

        async def open_local() -> EngineClient:
            return await EngineClient.connect(UnixAddress(str(engine.path)), program="test")

        client = await UpstreamClient.open(
            UpstreamOptions(("http://127.0.0.1:9",)), open_local, Clock().timing()
        )
        asked = message(client)
        answers = client.complete(asked)
        waiting = asyncio.ensure_future(anext(answers))
        request = await engine.next_request()
        client.cancel(asked.request, CancelCause.SUPERSEDED)
        assert await request.cancelled is CancelCause.SUPERSEDED
        done = await waiting
        assert isinstance(done, Done)
        assert done.cause is CancelCause.SUPERSEDED
        await answers.aclose()
        await client.close()
        await engine.kill()

    play(run)


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (refused(401), "key"),
        (Answer((b"<html>",)), "list its models"),
        (Answer((b'{"data":[]}',)), "has no model"),
        (Answer((b'{"data":[{"id":"other"}]}',)), "other"),
    ],
)
def test_server_that_cannot_be_used_says_so_at_the_start(models: Answer, says: str):
    async def run() -> None:
        async with ScriptedUpstream(written("a")).listening() as upstream:
            upstream.models = models
            wanted = replace(options(upstream), model="m")
            with pytest.raises(EngineUnavailable, match=says):
                await UpstreamClient.open(wanted)

    play(run)


def test_server_without_a_list_of_models_is_asked_for_the_one_named():
    async def run() -> None:
        async with ScriptedUpstream(written("a")).listening() as upstream:
            upstream.models = refused(404)
            client = await UpstreamClient.open(replace(options(upstream), model="mine"))
            assert (await ask(client)).model == "mine"
            assert upstream.seen[0].body["model"] == "mine"
            await client.close()

    play(run)


def test_nobody_at_the_address_is_unavailable():
    async def run() -> None:
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await UpstreamClient.open(UpstreamOptions(("http://127.0.0.1:9",)))

    play(run)


def test_no_address_at_all_is_refused():
    async def run() -> None:
        with pytest.raises(SettingsInvalid, match=r"upstream\.urls"):
            await UpstreamClient.open(UpstreamOptions(()))

    play(run)


def test_options_that_cannot_work_are_refused(tmp_path: Path):
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate")

    async def run() -> None:
        urls = ("https://127.0.0.1:9",)
        with pytest.raises(ModelUnknown, match="qwen"):
            await UpstreamClient.open(UpstreamOptions(urls, template="qwen2.5-coder-7c"))
        for file in (wrong, tmp_path / "none"):
            with pytest.raises(SettingsInvalid, match="caFile"):
                await UpstreamClient.open(UpstreamOptions(urls, ca_file=str(file)))

    play(run)


@pytest.mark.parametrize("is_trusted", [True, False])
def test_certificate_is_verified(is_trusted: bool, tmp_path: Path):
    authority, file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def run() -> None:
        async with ScriptedUpstream(written("a")).listening(context) as upstream:
            if is_trusted:
                client = await UpstreamClient.open(replace(options(upstream), ca_file=str(file)))
                assert (await ask(client)).text == "a"
                await client.close()
            else:
                with pytest.raises(EngineUnavailable, match="cannot be verified") as caught:
                    await UpstreamClient.open(options(upstream))
                assert "caFile" in caught.value.hint
                assert upstream.seen == []

    play(run)
