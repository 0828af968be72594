"""The bodies of the two kinds of requests: OpenAI's completions, and llama.cpp's ``/infill``."""

from __future__ import annotations

from typing import Final

from specengine.errors import RequestInvalid
from specengine.models.registry import ModelEntry
from specengine.protocol import Complete, SamplingOptions
from specengine.upstream.layout import Ask, Way
from specengine.upstream.options import WayChoice
from specengine.upstream.server import Facts

COMPLETIONS: Final = "/v1/completions"
INFILL: Final = "/infill"

MAX_STOPS: Final = 4
"""OpenAI's own limit; whoever reads the answer looks for all of them anyway."""

SHOWS_SPECIAL: Final = frozenset(("vllm", "sglang", "tensorrt_llm"))
"""They hide special tokens unless asked not to; then nobody would see a model end its middle."""

HAS_PENALTY: Final = frozenset(("vllm", "sglang"))
"""They may take a penalty for repetition from the model's folder. Code repeats itself."""

OLLAMA: Final = "library"
"""What it calls the owner of its models."""

OURS: Final = "specengine"
LLAMA_CPP: Final = "llamacpp"

_CHARS_PER_FORCED_TOKEN: Final = 3


def choose_way(choice: WayChoice, facts: Facts, entry: ModelEntry | None) -> Way:
    """Return how a server is told what stands behind the cursor."""
    if choice != "auto":
        return choice
    if facts.kind in (OLLAMA, OURS):
        return "suffix"  # they have templates of their own, also for a plain prompt
    if entry is not None and entry.fim is not None:
        return "template"
    return "infill" if facts.kind == LLAMA_CPP and facts.has_infill else "none"


def body_of(message: Complete, ask: Ask, facts: Facts) -> tuple[str, dict[str, object]]:
    """Return path and body of a request.

    Raises:  RequestInvalid for a wish that such servers do not know.
    """
    _check_wishes(message)
    sampling = message.sampling
    num_forced = len(ask.forced) // _CHARS_PER_FORCED_TOKEN + bool(ask.forced)
    body: dict[str, object] = {
        "model": facts.model,
        "prompt": ask.prompt,
        "temperature": sampling.temperature,
        "stream": True,
    }
    # The server would find them in the forced text, too. Whoever reads the answer does not.
    stops = () if ask.forced else message.stop
    if stops := (*stops, *ask.ends)[:MAX_STOPS]:
        body["stop"] = stops
    if ask.forced and facts.kind == LLAMA_CPP:
        body["grammar"] = grammar_of(ask.forced)
    if sampling.temperature > 0:
        body["seed"] = sampling.seed
    for name in ("top_p", "presence_penalty", "frequency_penalty"):
        if (value := getattr(sampling, name)) != getattr(SamplingOptions(), name):
            body[name] = value
    num_tokens = message.max_tokens + num_forced
    if ask.way == "infill":
        body |= {"input_prefix": ask.prefix, "input_suffix": ask.suffix}
        if ask.files:
            body["input_extra"] = [{"filename": path, "text": text} for path, text in ask.files]
        return INFILL, body | {"n_predict": num_tokens, "cache_prompt": True}
    body |= {"max_tokens": num_tokens, "stream_options": {"include_usage": True}}
    if ask.way == "suffix":
        body["suffix"] = ask.suffix
    elif facts.kind == OLLAMA:
        body["suffix"] = "\n"  # without any it would take the prompt for a question in a chat
    if ask.ends and facts.kind in SHOWS_SPECIAL:
        body["skip_special_tokens"] = False
    if facts.kind in HAS_PENALTY:
        body["repetition_penalty"] = 1.0
    return COMPLETIONS, body


def grammar_of(forced: str) -> str:
    """Return a grammar of llama.cpp that allows what begins with a text.

    It makes the answer begin so, where other servers are only checked.
    """
    letters = (c if c.isascii() and c.isalnum() else f"\\U{ord(c):08X}" for c in forced)
    return f'root ::= "{"".join(letters)}" [^\\x00]*'


def _check_wishes(message: Complete) -> None:
    sampling, plain = message.sampling, SamplingOptions()
    unknown = [
        name
        for name in ("top_k", "min_p", "repetition_penalty", "logit_bias", "method")
        if getattr(sampling, name) != getattr(plain, name)
    ]
    if message.logprobs is not None:
        unknown.append("logprobs")
    if message.n != 1:
        unknown.append("n")
    if unknown:
        raise RequestInvalid(f"a server upstream is not asked for {', '.join(unknown)}.")
