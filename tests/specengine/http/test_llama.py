"""llama.cpp's dialect: what llama.vim, llama-vscode and Continue send, and what they need."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from specengine.engine import Engine
from specengine.errors import InternalFault
from specengine.protocol import CancelCause, StopReason
from tests.specengine.http import raw
from tests.specengine.http.conftest import Play
from tests.specengine.http.raw import until
from tests.specengine.http.scripted import ScriptedEngine, fails, writes

LLAMA_VIM: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": "def f():\n    return 1\n",
    "input_suffix": "\n\ndef g(a, b):\n    return a * b\n",
    "input_extra": [],
    "prompt": "x",
    "n_predict": 12,
    "stop": [],
    "n_indent": 0,
    "top_k": 40,
    "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 250,
    "model": "",
    "response_fields": [
        *("content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms"),
        *("timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms"),
        *("timings/predicted_per_token_ms", "timings/predicted_per_second"),
        *("truncated", "tokens_cached"),
    ],
}

WARM_UP: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": "",
    "input_suffix": "",
    "input_extra": [{"text": "x = 1\n", "filename": "a.py", "time": [1, 2]}],
    "prompt": "",
    "n_predict": 0,
    "temperature": 0.0,
    "samplers": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 1,
    "t_max_predict_ms": 1,
    "response_fields": [""],
}

LLAMA_VSCODE: dict[str, Any] = {
    "id_slot": 0,
    "input_prefix": "def f():\n",
    "input_suffix": "\n",
    "input_extra": [{"text": "x = 1\n", "time": 12, "filename": "/home/me/a.py"}],
    "prompt": "    x = ",
    "n_predict": 12,
    "n_cmpl": 3,
    "top_k": 40,
    "top_p": 0.99,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 500,
    "model": "google/gemini-2.5-flash",
}

CONTINUE: dict[str, Any] = {
    "prompt": "<fim_prefix>def f():\n    x = <fim_suffix>\n<fim_middle>",
    "n_predict": 12,
    "stop": ["<fim_prefix>", "\n\n"],
    "temperature": 0.01,
    "top_p": None,
    "stream": True,
}


def test_llama_vim_s_request_is_answered_as_it_reads_answers(
    play: Play, tiny_engine: Engine
) -> None:
    async def scene(port: int) -> None:
        answer = await raw.post(port, "/infill", LLAMA_VIM)
        assert answer.status == 200
        # Its own check, without which it drops an answer in silence.
        assert re.match(rb"\s*{", answer.body)
        assert re.search(rb'"content"\s*:"', answer.body)
        fields = set(LLAMA_VIM["response_fields"]) - {"truncated"}
        assert set(answer.json) == fields
        assert answer.json["content"]
        assert answer.json["timings/predicted_n"] > 0
        assert answer.json["timings/predicted_per_second"] > 0

    play(scene, tiny_engine)


def test_a_warm_up_reads_the_prompt_and_writes_nothing(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        answer = await raw.post(port, "/infill", WARM_UP)
        assert (answer.status, answer.json) == (200, {})
        whole = await raw.post(port, "/infill", {**WARM_UP, "response_fields": None})
        assert whole.json["content"] == ""
        assert whole.json["tokens_evaluated"] > 0

    play(scene, tiny_engine)


def test_a_warm_up_gives_way_to_a_request(play: Play) -> None:
    engine = ScriptedEngine()

    async def scene(port: int) -> None:
        warming = asyncio.create_task(raw.post(port, "/infill", WARM_UP))
        await until(lambda: engine.jobs)
        engine.script = writes("x")
        answer = await raw.post(port, "/infill", LLAMA_VIM)
        assert answer.json["content"] == "x"
        assert (await warming).status == 200
        assert engine.cancelled == [(engine.jobs[0].key, CancelCause.SUPERSEDED)]

    play(scene, engine)


def test_what_was_warmed_up_is_not_read_again(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        prefix = "def warm(self):\n    return self\n" * 12
        fields = {"response_fields": None, "input_prefix": prefix, "input_suffix": ""}
        await raw.post(port, "/infill", {**WARM_UP, **fields})
        answer = await raw.post(port, "/infill", {**LLAMA_VIM, **fields, "prompt": ""})
        assert answer.json["timings"]["cache_n"] > 10 * answer.json["timings"]["prompt_n"]

    play(scene, tiny_engine)


def test_llama_vscode_s_request_has_the_settings_that_it_reads(
    play: Play, tiny_engine: Engine
) -> None:
    async def scene(port: int) -> None:
        answer = await raw.post(port, "/infill", LLAMA_VSCODE)
        assert answer.json["content"]
        assert answer.json["generation_settings"]["n_ctx"] == tiny_engine.settings.context_tokens
        assert answer.json["model"] == tiny_engine.model
        assert {"prompt_n", "predicted_n", "draft_n", "draft_n_accepted"} <= set(
            answer.json["timings"]
        )

    play(scene, tiny_engine)


def test_other_files_come_with_their_names(play: Play) -> None:
    engine = ScriptedEngine(writes("x"))

    async def scene(port: int) -> None:
        await raw.post(port, "/infill", LLAMA_VSCODE)
        message = engine.jobs[0].message
        assert message.files == (("/home/me/a.py", "x = 1\n"),)
        assert (message.prefix, message.suffix) == ("def f():\n    x = ", "\n")
        assert message.sampling.temperature == 0

    play(scene, engine)


def test_continue_s_request_is_streamed(play: Play) -> None:
    engine = ScriptedEngine(writes("a", "b\n", "c", reason=StopReason.STOP_STRING))

    async def scene(port: int) -> None:
        answer = await raw.post(port, "/completion", CONTINUE)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *pieces, last = answer.events
        assert [piece["content"] for piece in pieces] == ["a", "b\n", "c"]
        assert not any(piece["stop"] for piece in pieces)
        assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "word")
        message = engine.jobs[0].message
        assert (message.prefix, message.suffix) == ("def f():\n    x = ", "\n")
        assert message.sampling.temperature == 0.01

    play(scene, engine)


def test_as_many_stop_strings_as_continue_sends_are_taken(play: Play, tiny_engine: Engine) -> None:
    """Markers, ends of paragraphs, and some releases add each keyword of the language."""
    stops = [f"\nkeyword {number}" for number in range(24)]

    async def scene(port: int) -> None:
        answer = await raw.post(port, "/completion", {**CONTINUE, "stop": stops})
        assert answer.events[-1]["generation_settings"]["stop"] == stops

    play(scene, tiny_engine)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_plain_completion_is_answered_whole(play: Play, tiny_engine: Engine, path: str) -> None:
    async def scene(port: int) -> None:
        body = {"prompt": ["x = "], "n_predict": 5, "seed": 1}
        answers = [await raw.post(port, path, body) for _ in range(2)]
        assert answers[0].json["content"] == answers[1].json["content"]
        assert answers[0].json["stop_type"] == "limit"
        assert answers[0].json["generation_settings"]["top_k"] == 40

    play(scene, tiny_engine)


def test_a_line_that_is_not_indented_enough_ends_the_text(play: Play) -> None:
    engine = ScriptedEngine()

    async def scene(port: int) -> None:
        def script(job: Any) -> None:
            for piece in ("x = 1\n", "    y = 2\n", "\n", "def g():", "never"):
                job.on_text(piece)

        engine.script = script
        answer = await raw.post(
            port, "/infill", {**LLAMA_VSCODE, "n_indent": 4, "t_max_predict_ms": 0}
        )
        assert answer.json["content"] == "x = 1\n    y = 2"
        assert answer.json["stop_type"] == "limit"
        assert engine.stopped == [engine.jobs[0].key]

    play(scene, engine)


def test_an_error_in_a_stream_is_one_more_event(play: Play) -> None:
    async def scene(port: int) -> None:
        body = {"prompt": "x", "stream": True}
        answer = await raw.post(port, "/completion", body)
        assert answer.events[-1]["error"]["message"] == "a bug."

    play(scene, ScriptedEngine(fails(InternalFault("a bug."), after=["x"])))


@pytest.mark.parametrize(
    "fields", [{"prompt": [1, 2]}, {"n_predict": "many"}, {"input_extra": [1]}, {"stop": {"a": 1}}]
)
def test_a_field_of_a_wrong_kind_is_named(play: Play, fields: dict[str, Any]) -> None:
    async def scene(port: int) -> None:
        answer = await raw.post(port, "/infill", {**LLAMA_VIM, **fields})
        assert answer.status == 400
        assert answer.json["error"]["param"] == next(iter(fields))

    play(scene, ScriptedEngine(writes("x")))


def test_props_tell_the_context(play: Play, tiny_engine: Engine) -> None:
    async def scene(port: int) -> None:
        props = (await raw.get(port, "/props")).json
        context = tiny_engine.settings.context_tokens
        assert props["default_generation_settings"]["n_ctx"] == context
        assert props["total_slots"] == tiny_engine.settings.slots

    play(scene, tiny_engine)
