"""llama.cpp's ``/infill``, ``/completion`` and ``/props``, as its editors' plugins use them.

Names of models, slots and samplers are taken and not obeyed. ``/infill`` is greedy unless the
request gives a temperature: its clients rely on a sampler that picks what is likeliest.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from specengine.errors import Refused, RequestError
from specengine.http.answers import check_finished, event, timings
from specengine.http.asking import Desk
from specengine.http.line_limits import LineLimits
from specengine.http.problems import error_body
from specengine.http.templates import split
from specengine.models.registry import FimTemplate
from specengine.protocol import Complete, SamplingOptions, StopReason
from specengine.scheduler import Outcome

MAX_SEED: Final = 2**31

STOP_TYPES: Final = {
    StopReason.END_TOKEN: "eos",
    StopReason.LENGTH: "limit",
    StopReason.STOPPED: "limit",
    StopReason.STOP_STRING: "word",
    StopReason.STOP_TOKEN: "eos",
}


class Extra(msgspec.Struct, frozen=True):
    """A piece of another file."""

    text: str = ""
    filename: str = ""


class _Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of body have in common."""

    prompt: str | list[str | int] = ""
    n_predict: int = -1
    """-1 is as much as the engine allows; 0 reads the prompt only."""
    n_indent: int = 0
    t_max_predict_ms: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = []
    seed: int = -1
    """Below 0: another one each time."""
    stop: str | list[str] = []
    stream: bool = False
    response_fields: list[str] = []


class CompletionBody(_Wishes, frozen=True, kw_only=True):
    """The body of ``/completion``."""

    temperature: float = 0.8


class InfillBody(_Wishes, frozen=True, kw_only=True):
    """The body of ``/infill``; ``prompt`` is the cursor's line up to the cursor."""

    temperature: float = 0.0
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] = []


@dataclass(frozen=True)
class Ended:
    """How a text ended; what it was has been passed on by then."""

    outcome: Outcome
    was_cut: bool
    """Whether the wishes about lines and time have ended it."""


Body = InfillBody | CompletionBody


class Llama:
    """Answers in llama.cpp's dialect."""

    def __init__(self, desk: Desk, templates: Sequence[FimTemplate]) -> None:
        self._desk = desk
        self._templates = templates

    async def answer(self, body: Body) -> Mapping[str, object]:
        """Return the whole answer."""
        message = self._message(body)
        texts: list[str] = []
        ended: Ended | None = None
        async with contextlib.aclosing(self._write(body, message)) as parts:
            async for part in parts:
                if isinstance(part, str):
                    texts.append(part)
                else:
                    ended = part
        assert ended is not None, "a request ends with an outcome"
        return _selected(self._whole(body, message, "".join(texts), ended), body.response_fields)

    async def stream(self, body: Body) -> AsyncGenerator[bytes]:
        """Yield the events of a streamed answer."""
        message = self._message(body)
        texts: list[str] = []
        async with contextlib.aclosing(self._write(body, message)) as parts:
            try:
                async for part in parts:
                    if isinstance(part, str):
                        texts.append(part)
                        yield event({"index": 0, "content": part, "tokens": [], "stop": False})
                    else:
                        whole = self._whole(body, message, "".join(texts), part)
                        yield event({**whole, "content": ""})
            except (RequestError, Refused) as error:
                if not texts:
                    raise
                yield event(error_body(error))

    def props(self) -> Mapping[str, object]:
        """Return the answer to ``/props``."""
        settings = self._desk.engine.settings
        defaults = self._settings_of(CompletionBody(), Complete(0, "", ""))
        return {
            "default_generation_settings": {"n_ctx": settings.context_tokens, "params": defaults},
            "total_slots": settings.slots,
            "model_path": self._desk.engine.model,
            "model_alias": self._desk.engine.model,
            "chat_template": "",
            "build_info": "specengine",
        }

    async def _write(self, body: Body, message: Complete) -> AsyncGenerator[str | Ended]:
        """Yield text as it comes, and at last how it ended."""
        limits = LineLimits(body.n_indent, body.t_max_predict_ms)
        only_reads = body.n_predict == 0
        with self._desk.asking([message], warms_up=only_reads) as asked:
            async for number, part in asked.parts():
                if isinstance(part, Outcome):
                    # Whoever warms up wants no text, and may lose the turn to one who does.
                    outcome = part if only_reads else check_finished(part)
                    if not only_reads and (rest := limits.finish()):
                        yield rest
                    yield Ended(outcome, limits.has_ended)
                elif not only_reads and not limits.has_ended:
                    if text := limits.feed(part):
                        yield text
                    if limits.has_ended:
                        asked.stop(number)

    def _message(self, body: Body) -> Complete:
        settings = self._desk.engine.settings
        files: tuple[tuple[str, str], ...] = ()
        prompt = _prompt(body)
        if isinstance(body, InfillBody):
            prefix, suffix = body.input_prefix + prompt, body.input_suffix
            files = tuple((extra.filename, extra.text) for extra in body.input_extra)
        else:
            prefix, suffix = split(prompt, self._templates)
        wished = settings.max_tokens if body.n_predict < 0 else max(body.n_predict, 1)
        return Complete(
            request=0,
            document=secrets.token_hex(8),
            prefix=prefix,
            suffix=suffix,
            files=files,
            max_tokens=min(wished, settings.max_tokens),
            sampling=_sampling(body),
            stop=tuple(_stops(body)),
        )

    def _whole(self, body: Body, message: Complete, text: str, ended: Ended) -> dict[str, object]:
        outcome = ended.outcome
        is_word = outcome.stop_reason is StopReason.STOP_STRING
        stop_type = "limit" if ended.was_cut else STOP_TYPES.get(outcome.stop_reason, "none")
        return {
            "index": 0,
            "content": text,
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self._desk.engine.model,
            "tokens_predicted": len(outcome.token_ids),
            "tokens_evaluated": outcome.tokens.prompt,
            "tokens_cached": outcome.tokens.prompt + len(outcome.token_ids),
            "generation_settings": self._settings_of(body, message),
            "has_new_line": "\n" in text,
            "stop_type": stop_type,
            "stopping_word": message.stop[0] if is_word and len(message.stop) == 1 else "",
            "timings": timings([outcome]),
        }

    def _settings_of(self, body: Body, message: Complete) -> dict[str, object]:
        settings = self._desk.engine.settings
        return {
            "n_ctx": settings.context_tokens,
            "n_predict": body.n_predict,
            "n_indent": body.n_indent,
            "t_max_predict_ms": body.t_max_predict_ms,
            "temperature": message.sampling.temperature,
            "seed": message.sampling.seed,
            "top_k": message.sampling.top_k,
            "top_p": message.sampling.top_p,
            "min_p": message.sampling.min_p,
            "repeat_penalty": message.sampling.repetition_penalty,
            "presence_penalty": message.sampling.presence_penalty,
            "frequency_penalty": message.sampling.frequency_penalty,
            "stop": list(message.stop),
            "stream": body.stream,
            "speculative.n_max": settings.num_draft_tokens,
        }


def _prompt(body: Body) -> str:
    if isinstance(body.prompt, str):
        return body.prompt
    match body.prompt:
        case [str() as only]:
            return only
        case _:
            raise Refused(
                "prompt is a text, or a list that holds one text.", param="prompt", status=400
            )


def _stops(body: Body) -> list[str]:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop
    return [stop for stop in stops if stop]


def _sampling(body: Body) -> SamplingOptions:
    penalties = SamplingOptions(
        seed=max(body.seed, 0),
        repetition_penalty=body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=dict(body.logit_bias),
    )
    if body.temperature <= 0:
        # The other wishes are about drawing, and there is nothing to draw.
        return penalties
    return msgspec.structs.replace(
        penalties,
        temperature=body.temperature,
        seed=body.seed if body.seed >= 0 else secrets.randbelow(MAX_SEED),
        top_k=max(body.top_k, 0),
        top_p=body.top_p,
        min_p=body.min_p,
    )


def _selected(whole: Mapping[str, object], fields: Sequence[str]) -> Mapping[str, object]:
    """Return the fields asked for by their paths, flat: ``timings/prompt_n``; all where none is."""
    if not fields:
        return whole
    found = {path: _at(whole, path) for path in fields}
    return {path: value for path, value in found.items() if value is not None}


def _at(whole: Mapping[str, object], path: str) -> object:
    key, _, rest = path.partition("/")
    value = whole.get(key)
    if not rest:
        return value
    return _at(cast("Mapping[str, object]", value), rest) if isinstance(value, Mapping) else None
