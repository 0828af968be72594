"""OpenAI's dialect, spoken by the official client over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from specengine.engine import Engine
from specengine.errors import EngineBusy, EngineFailed, InternalFault
from specengine.protocol import CancelCause, StopReason, TokenLogprobs
from specengine.scheduler import Job
from tests.specengine.http import raw
from tests.specengine.http.conftest import Play
from tests.specengine.http.raw import until
from tests.specengine.http.scripted import ScriptedEngine, fails, outcome, writes

PREFIX = "def f(self):\n    self = 12\n" * 8
PATH = "/v1/completions"


def client(port: int) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)


async def complete(port: int, **fields: Any) -> Any:
    """Return the answer to a request."""
    async with client(port) as asking:
        return await asking.completions.create(**given(fields))


@asynccontextmanager
async def streamed(port: int, **fields: Any) -> AsyncIterator[Any]:
    """Give the stream of an answer."""
    async with client(port) as asking:
        yield await asking.completions.create(**given(fields), stream=True)


def given(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "any", "prompt": PREFIX, "max_tokens": 12, "temperature": 0, **fields}


def test_an_answer_has_text_usage_and_timings(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        answer = await complete(port)
        (choice,) = answer.choices
        assert choice.text
        assert choice.finish_reason == "length"
        assert answer.model == tiny_engine.model
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
        assert answer.usage.completion_tokens == 12
        timings = answer.timings
        assert timings["prompt_n"] + timings["cache_n"] == answer.usage.prompt_tokens
        assert timings["draft_n"] >= timings["draft_n_accepted"] >= 0
        assert timings["predicted_ms"] > 0

    play(scene, tiny_engine)


def test_a_stream_joined_is_the_whole_answer(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        whole = await complete(port)
        texts: list[str] = []
        last: Any = None
        usage: Any = None
        options = {"include_usage": True}
        async with streamed(port, stream_options=options) as parts:
            async for part in parts:
                for choice in part.choices:
                    texts.append(choice.text)
                    last = choice.finish_reason or last
                usage = part.usage or usage
        assert len(texts) > 3
        assert "".join(texts) == whole.choices[0].text
        assert last == "length"
        assert usage.completion_tokens == 12

    play(scene, tiny_engine)


def test_drafts_do_not_change_the_text(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        plain = await complete(port, extra_body={"speculative": {"drafter": "none"}})
        short = await complete(port, extra_body={"speculative": {"num_draft_tokens": 1}})
        drafted = await complete(port)
        assert plain.choices[0].text == short.choices[0].text == drafted.choices[0].text
        assert plain.timings["draft_n"] == 0

    play(scene, tiny_engine)


def test_a_seed_repeats_and_n_takes_the_seeds_from_it_on(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        both = await complete(port, temperature=1, seed=7, n=2)
        second = await complete(port, temperature=1, seed=8)
        texts = [choice.text for choice in both.choices]
        assert texts[1] == second.choices[0].text != texts[0]
        assert [choice.index for choice in both.choices] == [0, 1]
        assert both.usage.completion_tokens == 24
        assert both.usage.prompt_tokens == second.usage.prompt_tokens

    play(scene, tiny_engine)


def test_without_a_seed_texts_differ(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        answers = [await complete(port, temperature=2, top_p=1) for _ in range(2)]
        assert answers[0].choices[0].text != answers[1].choices[0].text

    play(scene, tiny_engine)


def test_each_prompt_of_a_list_is_answered(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        answer = await complete(port, prompt=[PREFIX, "x = "])
        alone = await complete(port, prompt="x = ")
        assert answer.choices[1].text == alone.choices[0].text

    play(scene, tiny_engine)


@pytest.mark.parametrize("prefix", [PREFIX, "def f(sel", "def é = 'é"])
def test_tokens_of_logprobs_are_those_of_the_text(
    play: Play, tiny_engine: Engine, prefix: str
) -> None:
    """The first one may begin before the cursor, where a word was stepped back over."""

    async def scene(port: int) -> None:
        plain = await complete(port, prompt=prefix)
        answer = await complete(port, prompt=prefix, logprobs=3)
        (choice,) = answer.choices
        noted = choice.logprobs
        assert choice.text == plain.choices[0].text
        assert len(noted.tokens) == answer.usage.completion_tokens
        assert all(value <= 0 for value in noted.token_logprobs)
        assert all(len(top) == 3 for top in noted.top_logprobs)
        if not any(token.startswith("bytes:") for token in noted.tokens):
            assert (prefix + choice.text)[noted.text_offset[0] :] == "".join(noted.tokens)

    play(scene, tiny_engine)


def test_offsets_of_tokens_count_characters(play: Play) -> None:
    """A character that several tokens write counts once: the next token stands one behind it."""
    text = "é🎉x"
    noted = tuple(TokenLogprobs(byte, -0.5, ()) for byte in text.encode())

    def answer(job: Job) -> None:
        job.on_done(replace(outcome(text), logprobs=noted))

    async def scene(port: int) -> None:
        answer = await complete(port, prompt="ü = ", logprobs=0)
        (choice,) = answer.choices
        assert choice.logprobs.text_offset == [4, 4, 5, 5, 5, 5, 6]

    play(scene, ScriptedEngine(answer))


def test_a_stop_string_ends_the_text_and_is_not_part_of_it(play: Play) -> None:
    engine = ScriptedEngine(writes("a", "b", reason=StopReason.STOP_STRING))

    async def scene(port: int) -> None:
        answer = await complete(port, stop=["\n\n", "c"])
        assert answer.choices[0].finish_reason == "stop"
        assert engine.jobs[0].message.stop == ("\n\n", "c")

    play(scene, engine)


def test_the_client_s_wishes_reach_the_engine(play: Play) -> None:
    engine = ScriptedEngine(writes("x"))

    async def scene(port: int) -> None:
        await complete(
            port,
            suffix="\nend",
            temperature=0.5,
            top_p=0.9,
            seed=3,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            logit_bias={"5": 2.0},
            max_tokens=100_000,
            user="ignored",
            extra_body={"speculative": {"drafter": "none", "num_draft_tokens": 2}},
        )
        message = engine.jobs[0].message
        assert (message.prefix, message.suffix) == (PREFIX, "\nend")
        assert message.max_tokens == engine.settings.max_tokens
        wishes = message.sampling
        assert (wishes.temperature, wishes.top_p, wishes.seed) == (0.5, 0.9, 3)
        assert (wishes.presence_penalty, wishes.frequency_penalty) == (0.1, 0.2)
        assert wishes.logit_bias == {5: 2.0}
        assert (message.drafter, message.num_draft_tokens) == ("none", 2)

    play(scene, engine)


def test_defaults_are_openai_s(play: Play) -> None:
    engine = ScriptedEngine(writes("x"))

    async def scene(port: int) -> None:
        async with client(port) as asking:
            await asking.completions.create(model="any", prompt="x")
        message = engine.jobs[0].message
        assert (message.max_tokens, message.sampling.temperature) == (16, 1.0)

    play(scene, engine)


def test_markers_of_any_template_are_taken_off_the_prompt(play: Play) -> None:
    engine = ScriptedEngine(writes("x"))

    async def scene(port: int) -> None:
        await complete(port, prompt="<|fim_prefix|>a = <|fim_suffix|>\nb<|fim_middle|>")
        message = engine.jobs[0].message
        assert (message.prefix, message.suffix) == ("a = ", "\nb")

    play(scene, engine)


REFUSED: dict[str, tuple[dict[str, Any], str | None]] = {
    "echo": ({"echo": True}, "echo"),
    "best_of": ({"best_of": 3}, "best_of"),
    "token ids": ({"prompt": [1, 2]}, "prompt"),
    "a wrong type": ({"temperature": "hot"}, "temperature"),
    "keys of logit_bias": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "n of 0": ({"n": 0}, None),
    "n of 9": ({"n": 9}, None),
    "max_tokens of 0": ({"max_tokens": 0}, None),
    "temperature": ({"temperature": 11}, None),
    "a drafter": ({"extra_body": {"speculative": {"drafter": "guess"}}}, None),
    "a field of ours": ({"extra_body": {"speculative": {"speed": 1}}}, "speculative"),
    "draft length": ({"extra_body": {"speculative": {"num_draft_tokens": 99}}}, None),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused_in_openai_s_shape(
    play: Play, tiny_engine: Engine, name: str, stream: bool
) -> None:
    fields, param = REFUSED[name]

    async def scene(port: int) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await complete(port, stream=stream, **fields)
        assert refused.value.param == param
        assert refused.value.type == "invalid_request_error"
        assert (await complete(port)).choices[0].text

    play(scene, tiny_engine)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (EngineBusy("64 requests wait already."), openai.RateLimitError, 429),
        (EngineFailed("no weights."), openai.InternalServerError, 503),
        (InternalFault("a bug."), openai.InternalServerError, 500),
    ],
)
def test_errors_of_the_engine_have_their_status(
    play: Play, error: Any, kind: type[openai.APIStatusError], status: int
) -> None:
    async def scene(port: int) -> None:
        with pytest.raises(kind) as failed:
            await complete(port)
        assert failed.value.status_code == status
        assert error.what in failed.value.message

    play(scene, ScriptedEngine(fails(error)))


def test_an_error_in_a_stream_is_an_event_that_the_client_raises(play: Play) -> None:
    engine = ScriptedEngine(fails(InternalFault("a bug."), after=["some ", "text"]))

    async def scene(port: int) -> None:
        texts: list[str] = []
        async with streamed(port) as parts:
            with pytest.raises(openai.APIError, match="a bug"):
                await read(parts, texts)
        assert texts == ["some ", "text"]

    play(scene, engine)


async def read(stream: Any, texts: list[str]) -> None:
    async for part in stream:
        texts += [choice.text for choice in part.choices]


def test_a_shutdown_is_told(play: Play) -> None:
    def shut_down(job: Job) -> None:
        job.on_done(outcome("", StopReason.CANCELLED, CancelCause.SHUTDOWN))

    async def scene(port: int) -> None:
        with pytest.raises(openai.InternalServerError) as failed:
            await complete(port)
        assert failed.value.status_code == 503

    play(scene, ScriptedEngine(shut_down))


def test_leaving_a_stream_cancels_its_request(play: Play) -> None:
    engine = ScriptedEngine(lambda job: job.on_text("x"))

    async def scene(port: int) -> None:
        async with streamed(port) as parts:
            await anext(aiter(parts))
            await parts.close()
        await until(lambda: engine.cancelled)
        assert engine.cancelled == [(engine.jobs[0].key, CancelCause.DISCONNECT)]

    play(scene, engine)


def test_closing_the_connection_cancels_a_request_that_has_not_answered(play: Play) -> None:
    engine = ScriptedEngine()

    async def scene(port: int) -> None:
        body = b'{"prompt": "x", "n": 2}'
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw.request("POST", PATH, body))
        await until(lambda: len(engine.jobs) == 2)
        writer.close()
        await until(lambda: len(engine.cancelled) == 2)

    play(scene, engine)


def test_a_closed_connection_frees_the_engine_within_one_pass(
    play: Play, tiny_engine: Engine
) -> None:
    async def scene(port: int) -> None:
        async with streamed(port, max_tokens=64) as parts:
            await anext(aiter(parts))
            await parts.close()
        await until(lambda: tiny_engine.status.active == 0)
        assert (await complete(port)).choices[0].text

    play(scene, tiny_engine)


def test_the_one_model_is_listed(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        async with client(port) as asking:
            listed = [model async for model in asking.models.list()]
            assert [model.id for model in listed] == [tiny_engine.model]
            assert await asking.models.retrieve(tiny_engine.model) == listed[0]
            with pytest.raises(openai.NotFoundError, match=tiny_engine.model) as caught:
                await asking.models.retrieve("org/gpt")
            assert caught.value.code == "model_not_found"

    play(scene, tiny_engine)
