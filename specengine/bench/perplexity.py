"""What a precision costs: the perplexity of solved problems in each of them.

No text is written; each token of a fixed text is scored given those before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import KVCache
from specengine.errors import LoadError
from specengine.models.target import Target
from specengine.models.targets import AnyPrecision, load_target

PRECISIONS: Final[Sequence[AnyPrecision]] = ("float32", "bfloat16", "int8", "int4")
"""The first is what the others are held against."""
ROWS: Final = 32

OnProgress = Callable[[float, str], None]


class PerplexityRow(msgspec.Struct, frozen=True):
    """One precision."""

    model: str
    precision: str
    num_tokens: int
    perplexity: float
    against_float32: float
    """Its ratio to that of float32."""
    same_choice: float
    """Share of positions whose likeliest token is that of float32."""


def measure(
    model: str, folder: Path, texts: Sequence[Sequence[int]], on_progress: OnProgress
) -> list[PerplexityRow]:
    """Return a row for each precision that this machine can run."""
    losses: dict[str, float] = {}
    choices: dict[str, torch.Tensor] = {}
    for number, precision in enumerate(PRECISIONS):
        on_progress(number / len(PRECISIONS), precision)
        try:
            target = load_target(folder, precision)
        except LoadError as error:
            on_progress(number / len(PRECISIONS), f"{precision} is left out: {error.what}")
            continue
        losses[precision], choices[precision] = score(target, texts)
    on_progress(1.0, "done")
    reference = PRECISIONS[0]
    return [
        PerplexityRow(
            model=model,
            precision=precision,
            num_tokens=len(choices[precision]),
            perplexity=round(math.exp(loss), 4),
            against_float32=round(math.exp(loss - losses[reference]), 4),
            same_choice=round(float((choices[precision] == choices[reference]).float().mean()), 4),
        )
        for precision, loss in losses.items()
    ]


def score(target: Target, texts: Sequence[Sequence[int]]) -> tuple[float, torch.Tensor]:
    """Return the mean loss in nats and the likeliest token at every position but the first ones."""
    total, choices = 0.0, list[torch.Tensor]()
    for token_ids in texts:
        cache = KVCache(target.kv_shape, len(token_ids))
        for start in range(0, len(token_ids) - 1, ROWS):
            part = list(token_ids[start : min(start + ROWS, len(token_ids) - 1)])
            logits = target.forward(part, cache, num_logits=len(part))
            following = torch.tensor(token_ids[start + 1 : start + 1 + len(part)])
            total += float(F.cross_entropy(logits, following, reduction="sum"))
            choices.append(logits.argmax(-1))
    joined = torch.cat(choices)
    return total / len(joined), joined
