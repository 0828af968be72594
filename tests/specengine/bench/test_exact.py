"""Texts with and without drafts, compared."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from specengine.bench import run as bench
from specengine.bench.exact import SAMPLINGS, measure
from specengine.bench.own import OwnEngine
from specengine.errors import SettingsInvalid
from specengine.models.target import Rows, Target

TEXTS = ["def f(self):\n    return self\n\ndef g(self):\n    ret", "class A:\n    def"]


class Unsteady:
    """A target whose rows come out differently in wide passes, as some kernels' rows do."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        logits = self._target.forward_batch(parts)
        return [-own if len(own) > 4 else own for own in logits]


def rows_of(own: OwnEngine, drafters: Sequence[str] = ("suffix",)) -> list[Any]:
    return measure(own, drafters, TEXTS, 40, lambda fraction, detail: None)


def test_speculation_changes_no_text_of_an_exact_target(tiny_engine: OwnEngine) -> None:
    rows = rows_of(tiny_engine, ["none", "suffix"])
    assert [(row.sampling, row.drafter) for row in rows] == [
        (sampling, drafter) for sampling in SAMPLINGS for drafter in ("none", "suffix")
    ]
    for row in rows:
        assert (row.n, row.num_differing, row.first_difference) == (2, 0, "")
        assert row.tokens > 40
    assert rows[1].drafted > rows[1].accepted > 0
    assert rows[0].drafted == 0


def test_a_target_that_is_not_exact_is_found_out(tiny_engine: OwnEngine) -> None:
    unsteady: Any = Unsteady(tiny_engine.models.target)
    own = replace(tiny_engine, models=replace(tiny_engine.models, target=unsteady))
    row = rows_of(own)[0]
    assert row.num_differing > 0
    assert "without drafts" in row.first_difference
    assert row.first_difference.startswith("prompt ")


def options(**changes: Any) -> argparse.Namespace:
    names = ("model", "drafter", "draft_model", "precision", "device", "json")
    return argparse.Namespace(**{**dict.fromkeys(names), "limit": 2, "tokens": 24, **changes})


def test_rows_are_shown_and_written(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_engine: OwnEngine,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(bench, "load_own", lambda settings, on_progress: tiny_engine)
    assert bench.check_exact(options(json=tmp_path / "rows.json"))
    assert "num_differing" in capsys.readouterr().out
    report = msgspec.json.decode((tmp_path / "rows.json").read_bytes())
    assert [row["sampling"] for row in report["rows"]] == list(SAMPLINGS)
    assert report["command"].startswith("specengine check exact")


def test_the_command_names_all_that_was_given() -> None:
    given = options(model="m", precision="int8", tokens=9)
    command = bench.command_text("exact", given, "check")
    assert command == "specengine check exact --model m --precision int8 --limit 2 --tokens 9"


@pytest.mark.parametrize("name", ["limit", "tokens"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(SettingsInvalid, match=f"--{name} is 0"):
        bench.check_exact(options(**{name: 0}))
