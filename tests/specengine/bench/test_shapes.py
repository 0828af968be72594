"""Passes of models without weights, here of small ones on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specengine.bench import shapes
from specengine.bench.report import table
from specengine.bench.shapes import SHAPES, Plan, RandomReader, expected_tokens, measure
from specengine.errors import LoadError
from specengine.models import memory
from specengine.models.architecture import Architecture
from specengine.models.graphs import GraphDecoder, run_again
from specengine.models.load import TensorReader
from specengine.models.targets import Precision
from tests.specengine.tiny import tiny_architecture, tiny_decoder

CPU = torch.device("cpu")
SIZES = {"tiny": tiny_architecture(family="qwen2", context_len=4096)}
PLAN = Plan(["tiny"], ["bfloat16", "int8"], CPU, contexts=(8, 300), prompt_tokens=64, repeats=2)


def test_there_is_a_row_for_each_precision_and_context() -> None:
    rows = measure(PLAN, lambda fraction, detail: None, SIZES)
    assert [(row.precision, row.context) for row in rows] == [
        ("bfloat16", 8),
        ("bfloat16", 300),
        ("int8", 8),
        ("int8", 300),
    ]
    for row in rows:
        assert list(row.ms_by_width) == [1, 8, 16]
        assert min(row.ms_by_width.values()) > 0
        assert row.prompt_tok_s > 0
        assert (row.unrecorded_ms, row.chained_ms, row.memory_gb) == (None, None, None)
        assert row.eagle_ms is None


def test_the_rows_make_a_table() -> None:
    rows = measure(PLAN, lambda fraction, detail: None, SIZES)
    assert len(table(rows).splitlines()) == len(rows) + 2


def test_what_an_accelerator_can_do_is_measured_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded(
        reader: TensorReader,
        sizes: Architecture,
        precision: Precision,
        device: torch.device,
        **_: Any,
    ) -> GraphDecoder:
        weights = tiny_decoder(architecture=sizes).weights
        return GraphDecoder(sizes, weights, precision, step_rows=16, recorder=run_again)

    monkeypatch.setattr(shapes, "target_of", recorded)
    (row, *_) = measure(PLAN, lambda fraction, detail: None, SIZES)
    assert row.unrecorded_ms is not None
    assert row.chained_ms is not None
    assert row.eagle_ms is not None
    assert min(row.unrecorded_ms, row.chained_ms, row.eagle_ms) > 0


def test_what_speculation_would_bring_follows_from_the_assumed_acceptance() -> None:
    (row, *_) = measure(PLAN, lambda fraction, detail: None, SIZES)
    expected = 1000 / row.ms_by_width[8] * (1 - 0.7**8) / 0.3
    assert row.synthetic_tok_s == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("drafted", "tokens"), [(0, 1.0), (1, 1.5), (2, 1.75)])
def test_a_pass_writes_its_own_token_and_what_it_accepts(drafted: int, tokens: float) -> None:
    assert expected_tokens(drafted, 0.5) == tokens


def test_a_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1000)
    with pytest.raises(LoadError, match="1,000 are free"):
        measure(PLAN, lambda fraction, detail: None, SIZES)


def test_the_shapes_have_the_sizes_of_their_names() -> None:
    billions = {name: sizes.num_parameters / 1e9 for name, sizes in SHAPES.items()}
    assert billions == pytest.approx(
        {"0.5b": 0.49, "1.5b": 1.54, "3b": 3.09, "7b": 7.6, "14b": 14.8}, rel=0.02
    )
    assert all(sizes.hidden_size % 64 == 0 for sizes in SHAPES.values())


def test_random_weights_are_the_same_each_time_and_small() -> None:
    first, again = (RandomReader(torch.float32, CPU).matrix("a", 64, 64) for _ in range(2))
    assert torch.equal(first, again)
    assert float(first.std()) == pytest.approx(shapes.WEIGHT_SPREAD, rel=0.1)
