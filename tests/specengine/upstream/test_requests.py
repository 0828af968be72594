"""Facts about the bodies of requests."""

from __future__ import annotations

import pytest

from specengine.errors import RequestInvalid
from specengine.models.registry import load
from specengine.protocol import Complete, SamplingOptions
from specengine.upstream.layout import Ask
from specengine.upstream.requests import MAX_STOPS, body_of, choose_way
from specengine.upstream.server import Facts

QWEN = load().get("qwen2.5-coder-7b")
PLAIN = load().get("smollm2-135m")
MESSAGE = Complete(request=1, document="a", prefix="", max_tokens=20)
VLLM, LLAMA_CPP, OLLAMA, OTHER = (
    Facts(kind, "m", 0) for kind in ("vllm", "llamacpp", "library", "")
)


def test_completion_has_what_openai_knows_and_nothing_else():
    path, body = body_of(MESSAGE, Ask("none", "x"), OTHER)
    assert path == "/v1/completions"
    assert body == {
        "model": "m",
        "prompt": "x",
        "temperature": 0.0,
        "stream": True,
        "max_tokens": 20,
        "stream_options": {"include_usage": True},
    }


def test_forced_text_gets_tokens_of_its_own():
    _, body = body_of(MESSAGE, Ask("none", "x", forced="\n    "), OTHER)
    assert body["max_tokens"] == 22


def test_server_that_hides_special_tokens_is_asked_to_show_them():
    ask = Ask("template", "x", ends=("<end>",))
    _, body = body_of(MESSAGE, ask, VLLM)
    assert body["skip_special_tokens"] is False
    assert body["repetition_penalty"] == 1.0
    assert body["stop"] == ("<end>",)
    assert "skip_special_tokens" not in body_of(MESSAGE, ask, OTHER)[1]


def test_stop_strings_are_not_sent_where_text_is_forced():
    """A newline that is stepped back over would end the answer before it begins."""
    message = Complete(request=1, document="a", prefix="", stop=("\n",))
    ask = Ask("none", "x", forced="\n    ", ends=("<end>",))
    assert body_of(message, ask, OTHER)[1]["stop"] == ("<end>",)


def test_llama_cpp_is_made_to_begin_as_typed():
    ask = Ask("none", "x", forced='\n  "ü')
    _, body = body_of(MESSAGE, ask, LLAMA_CPP)
    expected = r'root ::= "\U0000000A\U00000020\U00000020\U00000022\U000000FC" [^\x00]*'
    assert body["grammar"] == expected
    assert "grammar" not in body_of(MESSAGE, ask, VLLM)[1]
    assert "grammar" not in body_of(MESSAGE, Ask("none", "x"), LLAMA_CPP)[1]


def test_no_more_stop_strings_are_sent_than_openai_takes():
    message = Complete(request=1, document="a", prefix="", stop=tuple("abcdef"))
    assert body_of(message, Ask("none", "x"), OTHER)[1]["stop"] == tuple("abcdef")[:MAX_STOPS]


def test_infill_has_llama_cpps_names():
    path, body = body_of(MESSAGE, Ask("infill", "typed", "before", "behind"), LLAMA_CPP)
    assert path == "/infill"
    assert body == {
        "model": "m",
        "prompt": "typed",
        "input_prefix": "before",
        "input_suffix": "behind",
        "temperature": 0.0,
        "stream": True,
        "n_predict": 20,
        "cache_prompt": True,
    }


def test_infill_has_other_files():
    ask = Ask("infill", "typed", "before", "behind", files=(("a.py", "A"),))
    _, body = body_of(MESSAGE, ask, LLAMA_CPP)
    assert body["input_extra"] == [{"filename": "a.py", "text": "A"}]


def test_ollama_always_gets_a_suffix():
    """Without one it would put the prompt into its template for chats."""
    assert body_of(MESSAGE, Ask("suffix", "x", suffix="y"), OLLAMA)[1]["suffix"] == "y"
    assert body_of(MESSAGE, Ask("none", "x"), OLLAMA)[1]["suffix"] == "\n"


def test_wishes_of_openai_are_passed_on():
    sampling = SamplingOptions(temperature=0.5, seed=7, top_p=0.9, presence_penalty=0.1)
    message = Complete(request=1, document="a", prefix="", sampling=sampling)
    _, body = body_of(message, Ask("none", "x"), OTHER)
    assert body["seed"] == 7
    assert (body["temperature"], body["top_p"], body["presence_penalty"]) == (0.5, 0.9, 0.1)
    assert "frequency_penalty" not in body


@pytest.mark.parametrize(
    "message",
    [
        Complete(request=1, document="a", prefix="", logprobs=1),
        Complete(request=1, document="a", prefix="", n=2),
        Complete(request=1, document="a", prefix="", sampling=SamplingOptions(top_k=3)),
        Complete(request=1, document="a", prefix="", sampling=SamplingOptions(method="rejection")),
    ],
)
def test_wish_that_servers_do_not_share_is_refused(message: Complete):
    with pytest.raises(RequestInvalid):
        body_of(message, Ask("none", "x"), OTHER)


def test_way_follows_from_server_and_model():
    assert choose_way("auto", VLLM, QWEN) == "template"
    assert choose_way("auto", LLAMA_CPP, QWEN) == "template"
    assert choose_way("auto", LLAMA_CPP, None) == "infill"
    assert choose_way("auto", LLAMA_CPP, PLAIN) == "infill"
    assert choose_way("auto", OLLAMA, QWEN) == "suffix"
    assert choose_way("auto", OTHER, None) == "none"
    assert choose_way("suffix", OTHER, None) == "suffix"
