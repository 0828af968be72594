"""Perplexity is that of the text, in every precision that can be had."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from specengine.bench import perplexity
from specengine.errors import LoadError
from tests.specengine.tiny import load_decoder, save_tiny_model

TEXTS = [list(range(5, 75)), [7, 8, 9]]


def say_nothing(fraction: float, detail: str) -> None:
    """Take progress."""


def test_the_score_is_the_mean_loss_of_all_tokens_but_the_first(tmp_path: Path) -> None:
    decoder = load_decoder(save_tiny_model(tmp_path), "float32")
    loss, choices = perplexity.score(decoder, TEXTS)
    alone = [perplexity.score(decoder, [text]) for text in TEXTS]
    sizes = [len(text) - 1 for text in TEXTS]
    expected = sum(size * each[0] for size, each in zip(sizes, alone, strict=True)) / sum(sizes)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert torch.equal(choices, torch.cat([each[1] for each in alone]))
    assert loss > math.log(2)


def test_each_precision_is_held_against_float32(tmp_path: Path) -> None:
    rows = perplexity.measure("tiny", save_tiny_model(tmp_path), TEXTS, say_nothing)
    assert rows[0].precision == "float32"
    assert rows[0].against_float32 == rows[0].same_choice == 1.0
    for row in rows:
        assert row.num_tokens == 71
        # Random weights lose more by 4 bits than trained ones.
        is_coarse = row.precision == "int4"
        assert row.against_float32 == pytest.approx(1.0, abs=0.5 if is_coarse else 0.1)
        assert row.same_choice > (0.3 if is_coarse else 0.8)


def test_a_precision_that_cannot_be_had_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = perplexity.load_target

    def refuse(folder: Path, precision: perplexity.AnyPrecision) -> object:
        if precision == "int8":
            raise LoadError("int8 cannot be had.")
        return load(folder, precision)

    monkeypatch.setattr(perplexity, "load_target", refuse)
    rows = perplexity.measure("tiny", save_tiny_model(tmp_path), TEXTS, say_nothing)
    assert [row.precision for row in rows] == ["float32", "bfloat16", "int4"]
