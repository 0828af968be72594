"""From what engines needed to rows: medians, spreads, and ratios of figures of the same run.

Absolute figures are of one machine; what is said of engines are the ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from specengine.bench.compare import FIRST_TOKEN_LENGTH, Sample
from specengine.bench.contestants import Written
from specengine.bench.decode import PLAIN, Conditions, DecodeRow, decode_rate, rounded, summarise
from specengine.bench.peer_process import Recipe
from specengine.bench.report import table_of

PREFILL_LENGTHS: Final = (256, 1024, 4096)
"""Of the prompts that reading is measured at."""

Figures = Mapping[str, Sequence[float]]
"""What one contestant needed, run by run, under the names of a row's fields."""


class PeerRow(DecodeRow, frozen=True, kw_only=True):
    """One contestant on one set; figures are medians over the runs.

    Those of memory, start-up and prompts of a given length are the same in all sets.
    """

    threads: int
    build: str
    """What the engine was compiled to use."""
    prefill_256_tok_s: float | None = None
    """Of prompts of so many tokens, of which nothing is stored. None: too long for the model."""
    prefill_1024_tok_s: float | None = None
    prefill_4096_tok_s: float | None = None
    first_token_cold_ms: float | None = None
    """Of a prompt of 1,024 tokens, of which nothing is stored."""
    first_token_warm_ms: float | None = None
    """Of the same, when all of it but its last token is stored."""
    end_to_end_ms: float
    """Of one completion, with its prompt, of which nothing is stored."""
    peak_memory_mb: float | None = None
    """Resident memory of its process, mapped files included. None: the system does not tell."""
    start_up_s: float
    """From the start of its process to its answer to a first short prompt."""
    spreads: dict[str, float]
    """Largest less smallest figure of the runs, as a share of the median, for each of these."""
    against_transformers: dict[str, float]
    """How many times as good as plain decoding of transformers; empty where that is missing."""
    against_llama_cpp: dict[str, float]
    """The same for llama.cpp, on the GGUF file as it is."""


def rows_of(
    samples: Mapping[Recipe, Sequence[Sample]], model: str, sets: Sequence[str]
) -> list[PeerRow]:
    """Return a row for each contestant and each set."""
    return [_row(name, recipe, samples, model) for name in sets for recipe in samples]


def shown(rows: Sequence[PeerRow]) -> str:
    """Return rows as tables that fit on a screen: by set, by contestant, and ratios."""
    once = [row for row in rows if row.set == rows[0].set] if rows else []
    tables = {
        "Writing": table_of([_picked(row, _WRITING) for row in rows]),
        "Reading, start and memory": table_of([_picked(row, _READING) for row in once]),
    }
    for name, ratios in (
        ("transformers", [row.against_transformers for row in rows]),
        ("llama.cpp on the GGUF file as it is", [row.against_llama_cpp for row in rows]),
    ):
        if any(ratios):
            records = [
                {**_picked(row, _NAMES), **one} for row, one in zip(rows, ratios, strict=True)
            ]
            tables[f"Times as good as {name}, without drafts"] = table_of(records)
    return "\n\n".join(f"{title}\n{text}" for title, text in tables.items())


_NAMES: Final = ("set", "engine", "precision", "drafter")
_WRITING: Final = (
    *("model", "threads", "texts", "runs", *_NAMES, "prefill_tok_s", "decode_tok_s", "spread"),
    *("tokens_per_pass", "acceptance", "speedup_vs_plain", "texts_differ", "end_to_end_ms"),
)
_READING: Final = (
    *("engine", "precision", "drafter", "build"),
    *(f"prefill_{length}_tok_s" for length in PREFILL_LENGTHS),
    *("first_token_cold_ms", "first_token_warm_ms", "start_up_s", "peak_memory_mb"),
)


def _picked(row: PeerRow, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}


def _row(
    name: str,
    recipe: Recipe,
    samples: Mapping[Recipe, Sequence[Sample]],
    model: str,
) -> PeerRow:
    mine = samples[recipe]
    runs = [sample.written[name] for sample in mine]
    plain = _plain_of(recipe.engine, samples, recipe.precision) or recipe
    plain_runs = [sample.written[name] for sample in samples[plain]]
    row = summarise(name, recipe, Conditions(model, recipe.precision, len(mine)), runs, plain_runs)
    figures = _figures(mine, name)
    fields: dict[str, Any] = {
        **msgspec.structs.asdict(row),
        **{key: rounded(statistics.median(values)) for key, values in figures.items()},
    }
    return PeerRow(
        **fields,
        threads=recipe.threads,
        build=mine[-1].build,
        spreads={key: _spread(values) for key, values in figures.items()},
        against_transformers=_ratios(figures, "transformers", samples, name),
        against_llama_cpp=_ratios(figures, "llama.cpp", samples, name),
    )


def _plain_of(
    engine: str, samples: Mapping[Recipe, object], precision: str | None = None
) -> Recipe | None:
    """Return plain decoding of an engine, in its first precision where none is named."""
    for recipe in samples:
        is_wanted = precision in (None, recipe.precision)
        if recipe.engine == engine and recipe.drafter == PLAIN and is_wanted:
            return recipe
    return None


def _figures(samples: Sequence[Sample], name: str) -> dict[str, list[float]]:
    """Return the figures of a contestant on a set, run by run."""
    figures: dict[str, list[float]] = {
        "decode_tok_s": [decode_rate(sample.written[name]) for sample in samples],
        "end_to_end_ms": [_end_to_end_ms(sample.written[name]) for sample in samples],
        "first_token_warm_ms": [sample.resume_ms for sample in samples],
        "start_up_s": [sample.start_up_s for sample in samples],
    }
    for length in samples[0].prefill_ms:
        times = [sample.prefill_ms[length] for sample in samples]
        figures[f"prefill_{length}_tok_s"] = [length / ms * 1000 for ms in times]
    first_length = max(length for length in samples[0].prefill_ms if length <= FIRST_TOKEN_LENGTH)
    figures["first_token_cold_ms"] = [sample.prefill_ms[first_length] for sample in samples]
    peaks = [sample.peak_bytes for sample in samples if sample.peak_bytes is not None]
    if len(peaks) == len(samples):
        figures["peak_memory_mb"] = [peak / 1e6 for peak in peaks]
    return figures


def _end_to_end_ms(written: Sequence[Written]) -> float:
    return statistics.mean(one.prefill_ms + one.decode_ms for one in written)


def _ratios(
    figures: Figures, engine: str, samples: Mapping[Recipe, Sequence[Sample]], name: str
) -> dict[str, float]:
    """Return medians of how many times as good each figure is as that of the same run."""
    plain = _plain_of(engine, samples)
    if plain is None:
        return {}
    theirs = _figures(samples[plain], name)
    return {
        key: rounded(statistics.median(_better(key, mine, theirs[key])))
        for key, mine in figures.items()
        if key in theirs
    }


def _better(key: str, mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return quotients above 1 where mine is better: more of a rate, less of all else."""
    pairs = zip(mine, theirs, strict=True)
    if key.endswith("_tok_s"):
        return [one / other for one, other in pairs]
    return [other / one for one, other in pairs]


def _spread(values: Sequence[float]) -> float:
    return rounded((max(values) - min(values)) / statistics.median(values))
