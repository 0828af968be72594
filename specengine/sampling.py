"""From a row of logits to the token that follows: what the request wishes, and how it is drawn.

Every wish is applied to each drafted position as if it were the next one: penalties count the
drafted tokens before it, and a forced text goes on behind them. So speculation cannot change the
text. What is drawn is a function of the row, the seed and the absolute position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch

from specengine.errors import RequestInvalid
from specengine.noise import Stream, gumbel

Method = Literal["seeded", "rejection"]
NEVER: Final = -math.inf


@dataclass(frozen=True)
class Sampling:
    """The request's wishes; those at their defaults change nothing."""

    temperature: float = 0.0
    """0 is greedy; ties go to the lowest id."""
    seed: int = 0
    top_k: int = 0
    """Draw from so many of the likeliest tokens; 0 is all."""
    top_p: float = 1.0
    """Draw from the likeliest tokens that together have this probability."""
    min_p: float = 0.0
    """Draw from tokens that have this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or text."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens in the text."""
    frequency_penalty: float = 0.0
    """Taken off the logits of tokens in the text, each time they occur."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these tokens."""
    method: Method = "seeded"
    """``seeded``: the text is a function of target, prompt and seed. ``rejection``: it has the
    target's distribution, and a drafter that samples has more of its tokens accepted."""

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether a row depends on the tokens before it beyond its logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def has_limits(self) -> bool:
        """Whether unlikely tokens are left out."""
        return (self.top_k, self.top_p, self.min_p) != (0, 1, 0)

    def check(self, vocab_size: int) -> None:
        """Refuse numbers outside their range.

        Raises:  RequestInvalid with the number and what is allowed.
        """
        for name, low, high in (
            ("temperature", 0, 10),
            ("top_k", 0, vocab_size),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("repetition_penalty", 0.1, 10),
            ("presence_penalty", -10, 10),
            ("frequency_penalty", -10, 10),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise RequestInvalid(f"{name} is {value}; allowed are {low} to {high}.")
        for token_id, bias in self.logit_bias:
            if not 0 <= token_id < vocab_size:
                raise RequestInvalid(
                    f"logit_bias names token {token_id}; there are {vocab_size} from 0 on."
                )
            if not -1000 <= bias <= 1000:
                raise RequestInvalid(f"logit_bias has {bias}; allowed are -1000 to 1000.")


GREEDY: Final = Sampling()


@dataclass(frozen=True)
class Behind:
    """What stands before a row."""

    prompt_ids: Sequence[int]
    written_ids: Sequence[int]
    """Of the text so far, with the drafted tokens before the row."""
    allowed: torch.Tensor | None = None
    """Ids that a forced text allows, or None for all."""


def processed(logits: torch.Tensor, behind: Sequence[Behind], sampling: Sampling) -> torch.Tensor:
    """Return logits with all wishes applied but the temperature; what is excluded is -inf.

    Shapes:  logits [T, V], float32; as many of ``behind``; result [T, V].
    """
    if not (_changes_rows(sampling) or any(each.allowed is not None for each in behind)):
        return logits
    rows = [_processed(row, each, sampling) for row, each in zip(logits, behind, strict=True)]
    return torch.stack(rows)


def choose(rows: torch.Tensor, positions: Sequence[int], sampling: Sampling) -> list[int]:
    """Return the target's token for each row.

    Shapes:  rows [T, V] as ``processed`` gives them; positions are those of the chosen tokens.
    Source:  Gumbel-max: argmax(logits / temperature + noise) is a sample of the softmax. Scaling
        the noise instead gives the same id, and no temperature is too small for it.
    """
    if not sampling.is_greedy:
        noise = [gumbel(rows.shape[1], sampling.seed, at, Stream.TOKEN) for at in positions]
        rows = rows + sampling.temperature * torch.stack(noise).to(rows.device, torch.float32)
    if rows.device.type == "cpu":
        # A tenth of the time that torch takes; the first of equal scores wins in both.
        return cast("list[int]", rows.numpy().argmax(-1).tolist())
    return cast("list[int]", rows.argmax(-1).tolist())  # pyright: ignore[reportUnknownMemberType]


def probabilities(rows: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return the distribution that each row is drawn from, [T, V], float64; greedy ones have one 1.

    Shapes:  rows [T, V] as ``processed`` gives them.
    """
    if sampling.is_greedy:
        best = rows.argmax(-1, keepdim=True)
        return torch.zeros_like(rows, dtype=torch.float64).scatter_(1, best, 1.0)
    return _tempered(rows, sampling).softmax(-1)


def _tempered(rows: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return scores over the temperature, the best one 0, so that none is too small for it."""
    wide = rows.double()
    return (wide - wide.amax(-1, keepdim=True)) / sampling.temperature


def _changes_rows(sampling: Sampling) -> bool:
    is_limited = sampling.has_limits and not sampling.is_greedy
    return bool(sampling.logit_bias) or sampling.has_penalties or is_limited


def _processed(row: torch.Tensor, behind: Behind, sampling: Sampling) -> torch.Tensor:
    if sampling.logit_bias or sampling.has_penalties:
        row = _penalized(_biased(row.clone(), sampling), behind, sampling)
    if behind.allowed is not None:
        kept = torch.full_like(row, NEVER)
        kept[behind.allowed] = row[behind.allowed]
        row = kept
    if sampling.has_limits and not sampling.is_greedy:
        row = _limited(row, sampling)
    return row


def _biased(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    for token_id, bias in sampling.logit_bias:
        row[token_id] += bias
    return row


def _penalized(row: torch.Tensor, behind: Behind, sampling: Sampling) -> torch.Tensor:
    counts = Counter(behind.written_ids)
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(sorted({*behind.prompt_ids, *counts}), dtype=torch.long)
        values = row[seen]
        penalty = sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if counts:
        ids, numbers = torch.tensor(list(counts)), torch.tensor(list(counts.values()))
        taken = sampling.presence_penalty + sampling.frequency_penalty * numbers
        row[ids] -= taken.to(row.dtype).to(row.device)
    return row


def _limited(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Exclude what is unlikely at the request's temperature; among equals the lowest ids stay."""
    ordered, ids = torch.sort(_tempered(row, sampling), descending=True, stable=True)
    if sampling.top_k:
        ordered[sampling.top_k :] = NEVER
    shares = ordered.softmax(-1)
    is_kept = shares.cumsum(-1) - shares < sampling.top_p
    is_kept &= shares >= sampling.min_p * shares[0]
    is_kept &= ordered > NEVER
    is_kept[0] = True
    limited = torch.full_like(row, NEVER)
    limited[ids[is_kept]] = row[ids[is_kept]]
    return limited
