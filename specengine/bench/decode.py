"""Decoding speed with and without speculation, ours and that of transformers, side by side.

All contestants get the same tokens on the same weights and threads in one process, in turn at each
prompt, so that a slow moment of the machine hits all of them. Prefill and decode are timed apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from specengine.bench.contestants import Contestant, Named, Remembering, Written, added

PLAIN: Final = "none"

OnPrompt = Callable[[float, str], None]
"""Called with the share that is done and what comes next."""


class DecodeRow(msgspec.Struct, frozen=True):
    """One contestant on one set; rates are medians over the runs."""

    engine: str
    set: str
    model: str
    precision: str
    drafter: str
    prefill_tok_s: float
    decode_tok_s: float
    tokens_per_pass: float
    acceptance: float | None
    """Share of drafted tokens that were accepted."""
    accepted_at: tuple[float, ...]
    """Share of drafts that came so far, by place: their first token accepted, the second, …"""
    draft_ms: float | None
    """Of a pass. None where nobody tells."""
    speedup_vs_plain: float
    """Of decode_tok_s, against plain decoding of the same engine in the same run."""
    worst_speedup: float
    """The same of the prompt where it is least; each prompt's is the median over the runs."""
    ms_per_pass: float
    texts_differ: int
    """Texts that are not those of plain decoding of the same engine."""
    texts: int
    runs: int
    spread: float
    """Largest less smallest decode_tok_s of the runs, as a share of the median."""


@dataclass(frozen=True)
class TokenSet:
    """Prompts of one set as tokens, and how many are to be written behind each."""

    name: str
    prompts: Sequence[Sequence[int]]
    num_tokens: int


@dataclass(frozen=True)
class Conditions:
    """What all rows have in common."""

    model: str
    precision: str
    runs: int


Run = list[Written]
"""What one contestant wrote in one run, prompt by prompt."""


def measure(
    sets: Sequence[TokenSet],
    contestants: Sequence[Contestant],
    conditions: Conditions,
    on_prompt: OnPrompt,
) -> list[DecodeRow]:
    """Let all contestants write all prompts; return a row for each of them and each set.

    The first contestant of an engine is its plain decoding.
    """
    for contestant in contestants:
        # The first call of a shape is slow.
        contestant.write([0] * 40, 8)
    rows: list[DecodeRow] = []
    total, done = conditions.runs * sum(len(one_set.prompts) for one_set in sets), 0
    for one_set in sets:
        runs: list[list[Run]] = [[] for _ in contestants]
        for number in range(conditions.runs):
            for mine, contestant in zip(runs, contestants, strict=True):
                mine.append([])
                if isinstance(contestant, Remembering):
                    contestant.forget()
            for prompt_ids in one_set.prompts:
                on_prompt(done / total, f"{one_set.name}, run {number + 1} of {conditions.runs}")
                _write_all(prompt_ids, contestants, one_set.num_tokens, runs)
                done += 1
        rows += _rows(one_set.name, contestants, conditions, runs)
    on_prompt(1.0, "done")
    return rows


def summarise(
    name: str,
    contestant: Named,
    conditions: Conditions,
    runs: Sequence[Run],
    plain: Sequence[Run],
) -> DecodeRow:
    """Return the row of one contestant on one set, held against plain decoding in the same runs."""
    rates = list(map(decode_rate, runs))
    median = statistics.median(rates)
    speedups = [rate / decode_rate(base) for rate, base in zip(rates, plain, strict=True)]
    written = [one for run in runs for one in run]
    num_passes = sum(one.passes for one in written) or 1
    num_drafted = sum(one.drafted for one in written)
    num_accepted = sum(one.accepted for one in written)
    return DecodeRow(
        engine=contestant.engine,
        set=name,
        model=conditions.model,
        precision=conditions.precision,
        drafter=contestant.drafter,
        prefill_tok_s=rounded(statistics.median(map(prefill_rate, runs))),
        decode_tok_s=rounded(median),
        tokens_per_pass=rounded(sum(one.num_decoded for one in written) / num_passes),
        acceptance=rounded(num_accepted / num_drafted) if num_drafted else None,
        accepted_at=_accepted_at(written),
        draft_ms=_draft_ms(written),
        speedup_vs_plain=rounded(statistics.median(speedups)),
        worst_speedup=rounded(min(_speedups_by_prompt(runs, plain))),
        ms_per_pass=rounded(sum(one.decode_ms for one in written) / num_passes),
        texts_differ=_num_different(runs, plain),
        texts=len(runs[0]),
        runs=len(runs),
        spread=rounded((max(rates) - min(rates)) / median),
    )


def decode_rate(run: Run) -> float:
    """Return the tokens per second that were written behind the first pass."""
    return _rate(sum(one.num_decoded for one in run), sum(one.decode_ms for one in run))


def prefill_rate(run: Run) -> float:
    """Return the tokens per second of the prompts that were read."""
    return _rate(sum(one.num_prompt for one in run), sum(one.prefill_ms for one in run))


def rounded(value: float) -> float:
    """Return a figure as it stands in a row."""
    return round(value, 3)


def _write_all(
    prompt_ids: Sequence[int],
    contestants: Sequence[Contestant],
    num_tokens: int,
    runs: list[list[Run]],
) -> None:
    for mine, contestant in zip(runs, contestants, strict=True):
        written = contestant.write(prompt_ids, num_tokens)
        assert len(written.token_ids) == num_tokens, f"{contestant.engine} stopped early"
        mine[-1].append(written)


def _rows(
    name: str,
    contestants: Sequence[Contestant],
    conditions: Conditions,
    runs: Sequence[Sequence[Run]],
) -> list[DecodeRow]:
    rows: list[DecodeRow] = []
    plain: dict[str, Sequence[Run]] = {}
    for contestant, mine in zip(contestants, runs, strict=True):
        base = plain.setdefault(contestant.engine, mine)
        assert base is not mine or contestant.drafter == PLAIN, "plain decoding comes first"
        rows.append(summarise(name, contestant, conditions, mine, base))
    return rows


def _accepted_at(written: Sequence[Written]) -> tuple[float, ...]:
    num_drafts = sum(one.drafts for one in written)
    totals = added(one.accepted_at for one in written)
    return tuple(rounded(total / num_drafts) for total in totals)


def _draft_ms(written: Sequence[Written]) -> float | None:
    told = [one.draft_ms for one in written if one.draft_ms is not None]
    num_passes = sum(one.passes for one in written)
    return rounded(sum(told) / num_passes) if told and num_passes else None


def _speedups_by_prompt(runs: Sequence[Run], plain: Sequence[Run]) -> list[float]:
    return [
        statistics.median(
            decode_rate([run[at]]) / decode_rate([base[at]])
            for run, base in zip(runs, plain, strict=True)
        )
        for at in range(len(runs[0]))
    ]


def _rate(num_tokens: int, ms: float) -> float:
    return num_tokens / ms * 1000


def _num_different(runs: Sequence[Run], plain: Sequence[Run]) -> int:
    """Return how many prompts gave, in any run, another text than plain decoding's first run."""
    return sum(
        any(run[at].token_ids != base.token_ids for run in runs) for at, base in enumerate(plain[0])
    )
