"""OpenAI's ``/v1/completions`` and ``/v1/models``.

Known fields are checked, unknown ones ignored, as clients send more than they need. What would
change the text and is not supported is refused.
"""

from __future__ import annotations

import codecs
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final

import msgspec

from specengine.errors import Refused, RequestError
from specengine.http.answers import check_finished, event, num_healed, timings
from specengine.http.asking import Desk
from specengine.http.problems import error_body
from specengine.http.templates import split
from specengine.models.registry import FimTemplate
from specengine.protocol import Complete, SamplingOptions, StopReason
from specengine.scheduler import Outcome

MAX_SEED: Final = 2**31

DONE: Final = b"data: [DONE]\n\n"


class Speculative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to draft; ours, not OpenAI's."""

    drafter: str | None = None
    num_draft_tokens: int | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream tells beside the text."""

    include_usage: bool = False


class CompletionBody(msgspec.Struct, frozen=True):
    """The body of ``/v1/completions``."""

    prompt: str | list[str | int] = ""
    suffix: str = ""
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    """None: another one each time."""
    stop: str | list[str] = []
    n: int = 1
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    speculative: Speculative = Speculative()


class Completions:
    """Answers ``/v1/completions``."""

    def __init__(self, desk: Desk, templates: Sequence[FimTemplate]) -> None:
        self._desk = desk
        self._templates = templates

    async def answer(self, body: CompletionBody) -> Mapping[str, object]:
        """Return the whole answer."""
        messages = self._messages(body)
        with self._desk.asking(messages) as asked:
            outcomes = [check_finished(outcome) for outcome in await asked.outcomes()]
        choices = [
            self._choice(number, outcome.text, outcome, messages[number])
            for number, outcome in enumerate(outcomes)
        ]
        return {**self._head(), "choices": choices, **self._totals(outcomes, body)}

    async def stream(self, body: CompletionBody) -> AsyncGenerator[bytes]:
        """Yield the events of a streamed answer."""
        messages = self._messages(body)
        head = self._head()
        wants_usage = body.stream_options.include_usage
        more: dict[str, object] = {"usage": None} if wants_usage else {}
        ended: dict[int, Outcome] = {}
        has_begun = False
        with self._desk.asking(messages) as asked:
            try:
                async for number, part in asked.parts():
                    if isinstance(part, str):
                        choice = self._choice(number, part)
                    else:
                        ended[number] = check_finished(part)
                        choice = self._choice(number, "", part, messages[number])
                        more["timings"] = timings([part])
                    has_begun = True
                    yield event({**head, "choices": [choice], **more})
                    more.pop("timings", None)
            except (RequestError, Refused) as error:
                if not has_begun:
                    raise
                yield event(error_body(error))
                return
        if wants_usage:
            outcomes = [ended[number] for number in sorted(ended)]
            yield event({**head, "choices": [], **self._totals(outcomes, body)})
        yield DONE

    def _messages(self, body: CompletionBody) -> list[Complete]:
        _refuse_what_is_missing(body)
        seed = secrets.randbelow(MAX_SEED) if body.seed is None else body.seed
        return [
            self._message(body, prompt, seed + choice)
            for prompt in _prompts(body)
            for choice in range(max(body.n, 0))
        ]

    def _message(self, body: CompletionBody, prompt: str, seed: int) -> Complete:
        settings = self._desk.engine.settings
        prefix, suffix = (prompt, body.suffix) if body.suffix else split(prompt, self._templates)
        stop = [body.stop] if isinstance(body.stop, str) else body.stop
        return Complete(
            request=0,
            document=secrets.token_hex(8),
            prefix=prefix,
            suffix=suffix,
            # Clients ask for thousands without meaning it; finish_reason says where it ended.
            max_tokens=min(body.max_tokens, settings.max_tokens),
            sampling=_sampling(body, seed),
            stop=tuple(stop),
            logprobs=body.logprobs,
            drafter=body.speculative.drafter,
            num_draft_tokens=body.speculative.num_draft_tokens,
        )

    def _head(self) -> dict[str, object]:
        return {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._desk.engine.model,
        }

    def _choice(
        self,
        number: int,
        text: str,
        outcome: Outcome | None = None,
        message: Complete | None = None,
    ) -> dict[str, object]:
        logprobs = None
        if outcome is not None and message is not None and message.logprobs is not None:
            logprobs = self._logprobs(outcome, message)
        return {
            "text": text,
            "index": number,
            "logprobs": logprobs,
            "finish_reason": None if outcome is None else _finish_reason(outcome),
        }

    def _logprobs(self, outcome: Outcome, message: Complete) -> dict[str, object]:
        """Return OpenAI's four parallel lists.

        The first token may begin before the cursor, where the text stepped back to its start;
        ``text_offset`` says so.
        """
        token_bytes = self._desk.engine.token_bytes
        first = num_healed(outcome, token_bytes)
        before = sum(len(token_bytes(token_id)) for token_id in outcome.token_ids[:first])
        written = b"".join(map(token_bytes, outcome.token_ids[first:]))
        at = len(message.prefix) - len(_shown(written[: outcome.num_healed_bytes - before]))
        noted = outcome.logprobs[first:]
        offsets: list[int] = []
        # Of a character that several tokens write, the last one is told to write it.
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for each in noted:
            offsets.append(at)
            at += len(decoder.decode(token_bytes(each.token_id)))
        return {
            "tokens": [self._token(each.token_id) for each in noted],
            "token_logprobs": [each.logprob for each in noted],
            "top_logprobs": [
                {self._token(token_id): value for token_id, value in each.top} for each in noted
            ],
            "text_offset": offsets,
        }

    def _token(self, token_id: int) -> str:
        """Return a token as OpenAI shows it: bytes that are no text by themselves in escapes."""
        content = self._desk.engine.token_bytes(token_id)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def _totals(self, outcomes: Sequence[Outcome], body: CompletionBody) -> dict[str, object]:
        token_bytes = self._desk.engine.token_bytes
        # Each prompt is counted once, however many completions it has.
        of_prompts = outcomes[:: body.n]
        prompt = sum(outcome.tokens.prompt for outcome in of_prompts)
        written = sum(len(each.token_ids) - num_healed(each, token_bytes) for each in outcomes)
        cached = sum(outcome.tokens.reused for outcome in of_prompts)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return {"usage": usage, "timings": timings(outcomes)}


def model_card(model: str, created: int, context_tokens: int) -> Mapping[str, object]:
    """Return what ``/v1/models`` tells of the one that runs."""
    return {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "specengine",
        "meta": {"n_ctx": context_tokens},
    }


def _refuse_what_is_missing(body: CompletionBody) -> None:
    if body.echo:
        raise Refused("echo is not supported.", param="echo")
    if body.best_of is not None and body.best_of != body.n:
        raise Refused("best_of is not supported, only n.", param="best_of")


def _prompts(body: CompletionBody) -> list[str]:
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    prompts = [prompt for prompt in given if isinstance(prompt, str)]
    if len(prompts) < len(given):
        raise Refused(
            "a prompt of token ids is not supported; send text.", param="prompt", status=400
        )
    return prompts


def _sampling(body: CompletionBody, seed: int) -> SamplingOptions:
    try:
        bias = {int(token_id): value for token_id, value in body.logit_bias.items()}
    except ValueError:
        raise Refused(
            "the keys of logit_bias are token ids.", param="logit_bias", status=400
        ) from None
    return SamplingOptions(
        temperature=body.temperature,
        seed=seed,
        top_p=body.top_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=bias,
    )


def _finish_reason(outcome: Outcome) -> str:
    return "length" if outcome.stop_reason is StopReason.LENGTH else "stop"


def _shown(content: bytes) -> str:
    return content.decode(errors="replace")
