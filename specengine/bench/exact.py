"""``specengine check exact``: whether speculation changes a text on this model and this machine.

Kernels of some devices round a row differently when others are computed beside it. Where that
turns a choice, the text with drafts is another than without. This is how to know: the same prompts
are completed without drafts and with each drafter, greedily and with a seed, and compared token by
token; for the first difference the two logits are told that the choice was between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from specengine.bench.own import OwnEngine
from specengine.cache.kv_cache import KVCache
from specengine.decoding.prompt import Prompt
from specengine.drafters.base import DrafterSource
from specengine.drafters.none import NoDrafts
from specengine.sampling import GREEDY, Sampling

SAMPLINGS: Final = {"greedy": GREEDY, "seeded": Sampling(temperature=0.8, seed=20, top_p=0.95)}

OnProgress = Callable[[float, str], None]


class ExactRow(msgspec.Struct, frozen=True):
    """One drafter and one way of drawing, against the same without drafts."""

    model: str
    precision: str
    device: str
    drafter: str
    sampling: str
    n: int
    """Prompts."""
    tokens: int
    """That were compared."""
    drafted: int
    accepted: int
    num_differing: int
    """Texts that are not the same."""
    first_difference: str
    """Prompt, token, and the two logits; empty if there is none."""


class Written(msgspec.Struct, frozen=True):
    """A text in tokens, prompt left out, and how it came about."""

    token_ids: tuple[int, ...]
    drafted: int
    accepted: int


def measure(
    own: OwnEngine,
    drafters: Sequence[str],
    texts: Sequence[str],
    num_tokens: int,
    on_progress: OnProgress,
) -> list[ExactRow]:
    """Return a row for each drafter and way of drawing."""
    prompts = [own.layout.lay_out(text, "") for text in texts]
    asked = [(sampling, drafter) for sampling in SAMPLINGS for drafter in drafters]
    plain: dict[str, list[Written]] = {}
    rows: list[ExactRow] = []
    for number, (name, drafter) in enumerate(asked):
        on_progress(number / len(asked), f"{name}, {drafter}")
        sampling = SAMPLINGS[name]
        if name not in plain:
            plain[name] = [_write(own, NoDrafts(), each, num_tokens, sampling) for each in prompts]
        source = own.source(drafter)
        written = [_write(own, source, each, num_tokens, sampling) for each in prompts]
        rows.append(_row(own, source.name, name, prompts, plain[name], written))
    on_progress(1.0, "done")
    return rows


def _write(
    own: OwnEngine, source: DrafterSource, prompt: Prompt, num_tokens: int, sampling: Sampling
) -> Written:
    session = own.session(prompt, source, num_tokens, sampling=sampling)
    try:
        while session.stop_reason is None:
            session.advance()
        counts = session.counts
        return Written(session.written_ids, counts.drafted, counts.accepted)
    finally:
        session.close()


def _row(
    own: OwnEngine,
    drafter: str,
    sampling: str,
    prompts: Sequence[Prompt],
    plain: Sequence[Written],
    written: Sequence[Written],
) -> ExactRow:
    pairs = list(zip(plain, written, strict=True))
    differing = [at for at, (one, other) in enumerate(pairs) if one.token_ids != other.token_ids]
    first = ""
    if differing:
        first = _explain(own, differing[0], prompts[differing[0]], *pairs[differing[0]])
    return ExactRow(
        model=own.entry.name,
        precision=own.models.target.precision,
        device=own.models.target.kv_shape.device.type,
        drafter=drafter,
        sampling=sampling,
        n=len(pairs),
        tokens=sum(len(one.token_ids) for one in plain),
        drafted=sum(other.drafted for other in written),
        accepted=sum(other.accepted for other in written),
        num_differing=len(differing),
        first_difference=first,
    )


def _explain(own: OwnEngine, number: int, prompt: Prompt, plain: Written, other: Written) -> str:
    """Return at which token two texts part, and the logits of both tokens there."""
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    shortest = min(len(plain.token_ids), len(other.token_ids))
    at = next((at for at, (one, two) in enumerate(pairs) if one != two), shortest)
    if at == shortest:
        return f"prompt {number}: one text ends after {at} tokens, the other goes on"
    target = own.models.target
    token_ids = [*prompt.token_ids, *plain.token_ids[:at]]
    cache = KVCache(target.kv_shape, len(token_ids))
    row = target.forward(token_ids, cache, num_logits=1)[0]
    ids = (plain.token_ids[at], other.token_ids[at])
    logits = [float(row[token_id]) for token_id in ids]
    return (
        f"prompt {number}, token {at}: {ids[0]} with logit {logits[0]:.6f} without drafts, "
        f"{ids[1]} with {logits[1]:.6f} with them"
    )
