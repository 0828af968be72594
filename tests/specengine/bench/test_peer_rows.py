from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from specengine.bench.compare import Sample
from specengine.bench.contestants import Written
from specengine.bench.peer_process import Recipe
from specengine.bench.peer_rows import PeerRow, rows_of, shown

OURS = Recipe("specengine", "int8", "none", "/model", 2, 4352)
OURS_FAST = msgspec.structs.replace(OURS, drafter="suffix")
OURS_EXACT = msgspec.structs.replace(OURS, precision="float32")
THEIRS = msgspec.structs.replace(OURS, engine="transformers", precision="bfloat16")
LLAMA = msgspec.structs.replace(OURS, engine="llama.cpp", precision="Q4_1")
LLAMA_LARGE = msgspec.structs.replace(LLAMA, precision="bfloat16")


def sample(ms: float, peak_bytes: int | None = 400_000_000) -> Sample:
    """Return what one needs that takes so long for each token."""
    written = Written((9,) * 5, 10, 10 * ms, 4 * ms, 4, 4, 0, 0)
    return Sample(
        start_up_s=ms,
        build="fake",
        prefill_ms={256: 256 * ms, 1024: 1024 * ms, 4096: 4096 * ms},
        resume_ms=ms,
        written={"one": [written, written], "other": [written]},
        peak_bytes=peak_bytes,
    )


def by_recipe(samples: dict[Recipe, Sequence[Sample]], name: str = "one") -> dict[Recipe, PeerRow]:
    rows = rows_of(samples, "tiny", [name])
    return dict(zip(samples, rows, strict=True))


def test_figures_are_medians_with_their_spread() -> None:
    row = by_recipe({OURS: [sample(ms) for ms in (1, 2, 2, 4, 5)]})[OURS]
    assert row.decode_tok_s == 500.0
    assert row.prefill_256_tok_s == row.prefill_1024_tok_s == row.prefill_4096_tok_s == 500.0
    assert row.first_token_cold_ms == 2048.0
    assert row.first_token_warm_ms == 2.0
    assert row.end_to_end_ms == 28.0
    assert row.start_up_s == 2.0
    assert row.peak_memory_mb == 400.0
    assert (row.threads, row.build, row.runs, row.texts) == (2, "fake", 5, 2)
    assert row.spread == row.spreads["decode_tok_s"] == pytest.approx((1000 - 200) / 500)
    assert row.spreads["start_up_s"] == 2.0
    assert row.spreads["peak_memory_mb"] == 0.0


def test_ratios_are_of_the_same_run_and_above_1_for_the_better() -> None:
    rows = by_recipe(
        {
            THEIRS: [sample(10, 800_000_000), sample(40, 800_000_000), sample(10, 800_000_000)],
            OURS: [sample(5), sample(10), sample(10)],
        }
    )
    ratios = rows[OURS].against_transformers
    assert ratios["decode_tok_s"] == ratios["prefill_4096_tok_s"] == 2.0
    assert ratios["end_to_end_ms"] == ratios["first_token_cold_ms"] == ratios["start_up_s"] == 2.0
    assert ratios["peak_memory_mb"] == 2.0
    assert set(rows[THEIRS].against_transformers.values()) == {1.0}
    assert rows[OURS].against_llama_cpp == {}


def test_llama_cpp_stands_for_the_file_as_it_is() -> None:
    rows = by_recipe({LLAMA: [sample(4)], LLAMA_LARGE: [sample(8)], OURS: [sample(1)]})
    assert rows[OURS].against_llama_cpp["decode_tok_s"] == 4.0
    assert rows[LLAMA_LARGE].against_llama_cpp["decode_tok_s"] == 0.5
    assert rows[LLAMA_LARGE].speedup_vs_plain == 1.0


def test_drafts_are_held_against_plain_decoding_in_the_same_precision() -> None:
    rows = by_recipe({OURS_EXACT: [sample(8)], OURS: [sample(4)], OURS_FAST: [sample(1)]})
    assert rows[OURS_FAST].speedup_vs_plain == 4.0
    assert rows[OURS_EXACT].speedup_vs_plain == 1.0


def test_plain_decoding_that_was_left_out_is_missed_by_nobody_else() -> None:
    rows = by_recipe({OURS_FAST: [sample(1)]})
    assert rows[OURS_FAST].speedup_vs_plain == 1.0
    assert rows[OURS_FAST].against_transformers == {}


def test_what_could_not_be_measured_has_no_figure() -> None:
    short = sample(1, peak_bytes=None)
    del short.prefill_ms[4096]
    row = by_recipe({OURS: [sample(1, None)], OURS_FAST: [short]})[OURS_FAST]
    assert row.prefill_4096_tok_s is None
    assert row.peak_memory_mb is None
    assert "peak_memory_mb" not in row.spreads


def test_rows_keep_the_names_that_others_rely_on() -> None:
    rows = rows_of({OURS: [sample(1)]}, "tiny", ["one", "other"])
    records = json.loads(msgspec.json.encode(rows))
    names = "engine set model precision drafter prefill_tok_s decode_tok_s tokens_per_pass"
    for record in records:
        assert {*names.split(), *["acceptance", "speedup_vs_plain", "runs", "spread"]} <= set(
            record
        )
    assert [record["set"] for record in records] == ["one", "other"]


def test_tables_say_each_figure_once() -> None:
    samples = {THEIRS: [sample(10)], OURS: [sample(5)], OURS_FAST: [sample(1)]}
    text = shown(rows_of(samples, "tiny", ["one", "other"]))
    writing, reading, ratios = text.split("\n\n")
    assert writing.splitlines()[0] == "Writing"
    assert len(writing.splitlines()) == 3 + 6
    assert reading.splitlines()[0] == "Reading, start and memory"
    assert len(reading.splitlines()) == 3 + 3
    assert ratios.splitlines()[0] == "Times as good as transformers, without drafts"
    assert "10.00" in ratios


def test_nobody_is_no_table() -> None:
    assert "Writing" in shown([])
