from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specengine.bench import lineup, sandbox
from specengine.bench import run as bench
from specengine.bench.contestants import Written
from specengine.bench.own import OwnEngine
from specengine.bench.peer_process import Recipe
from specengine.errors import SettingsInvalid
from tests.specengine.tiny import save_tiny_model


class Row(msgspec.Struct, frozen=True):
    engine: str
    speed: float


def options(**changes: Any) -> argparse.Namespace:
    names = ("model", "drafter", "draft_model", "precision", "device", "limit", "json", "plot")
    fixed = {"runs": 3, "sets": None, "no_heal": False, "run_tests": False, "shapes": None}
    fixed |= {"alone": False, "drafters": None}
    return argparse.Namespace(**{**dict.fromkeys(names), **fixed, **changes})


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch, tiny_engine: OwnEngine) -> None:
    monkeypatch.setattr(bench, "load_own", lambda settings, on_progress: tiny_engine)


@pytest.fixture
def _fake_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BENCHMARKS", {"decode": lambda settings, options: [Row("us", 2.0)]})


@pytest.mark.usefixtures("_fake_benchmark")
def test_rows_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "rows.json"
    bench.run("decode", options(json=file, limit=2))
    assert capsys.readouterr().out == "\nengine  speed\nus       2.00\n"
    content = json.loads(file.read_text("utf-8"))
    assert content["rows"] == [{"engine": "us", "speed": 2.0}]
    assert content["command"] == "specengine bench decode --limit 2 --runs 3"
    assert content["machine"]["cpu"]


@pytest.mark.usefixtures("_fake_benchmark")
def test_wrong_setting_is_refused_before_anything_runs():
    with pytest.raises(SettingsInvalid, match="precision"):
        bench.run("decode", options(precision="int3"))


@pytest.mark.usefixtures("_fake_benchmark")
@pytest.mark.parametrize("name", ["limit", "runs"])
def test_nothing_to_measure_is_refused(name: str):
    with pytest.raises(SettingsInvalid, match=f"--{name} is 0"):
        bench.run("decode", options(**{name: 0}))


@pytest.mark.usefixtures("_fake_benchmark")
def test_picture_that_there_is_not_is_refused(tmp_path: Path):
    with pytest.raises(SettingsInvalid, match="no picture of typing"):
        bench.run("typing", options(plot=tmp_path / "rows.svg"))


def test_command_names_only_what_was_given():
    text = bench.command_text("infill", options(draft_model="my model", precision="float32"))
    assert text == ("specengine bench infill --draft-model 'my model' --precision float32 --runs 3")


def test_command_names_the_options_of_infill():
    text = bench.command_text("infill", options(sets="span", no_heal=True, run_tests=True))
    assert text == "specengine bench infill --runs 3 --sets span --no-heal --run-tests"


@pytest.mark.usefixtures("_tiny")
def test_decoding_is_measured_on_the_sets_that_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(bench, "load_transformers", None)
    file = tmp_path / "rows.json"
    bench.run("decode", options(limit=1, runs=1, sets="noise,json", alone=True, json=file))
    report = json.loads(file.read_text("utf-8"))
    auto = ("auto", "auto, with history")
    assert [(row["set"], row["drafter"]) for row in report["rows"]] == [
        (name, drafter) for name in ("noise", "json") for drafter in ("none", *auto)
    ]
    assert report["command"].endswith("--limit 1 --runs 1 --sets noise,json --alone")


@pytest.mark.usefixtures("_tiny")
def test_nothing_that_a_model_writes_is_run_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("subprocess.Popen", None)
    monkeypatch.setattr(bench, "describe", dict)
    file = tmp_path / "rows.json"
    bench.run("infill", options(limit=1, sets="single,span", json=file))
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [row["set"] for row in rows] == ["single", "single", "span"]
    assert [row["pass_rate"] for row in rows] == [None] * 3


@pytest.mark.usefixtures("_tiny")
def test_tests_are_run_if_asked(tmp_path: Path):
    file = tmp_path / "rows.json"
    bench.run("infill", options(limit=1, sets="single", run_tests=True, json=file))
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [row["pass_rate"] for row in rows] == [0.0, 0.0]


@pytest.mark.usefixtures("_tiny")
def test_tests_are_not_run_where_a_process_cannot_be_limited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(sandbox, "is_available", lambda: False)
    file = tmp_path / "rows.json"
    bench.run("infill", options(limit=1, sets="span", run_tests=True, json=file))
    assert json.loads(file.read_text("utf-8"))["rows"][0]["pass_rate"] is None
    assert "cannot limit a process" in capsys.readouterr().err


def test_unknown_set_is_named_with_those_that_there_are():
    with pytest.raises(SettingsInvalid, match=r"'lines'.*single, multi, span"):
        bench.run("infill", options(sets="span,lines"))


class FakePeer:
    """Writes at once, whoever it stands for."""

    build = "fake"
    start_up_s = 1.0

    def __init__(self, recipe: Recipe) -> None:
        self.engine, self.drafter = recipe.engine, recipe.drafter

    def write(self, prompt_ids: Sequence[int], num_tokens: int) -> Written:
        num_decoded = num_tokens - 1
        return Written((9,) * num_tokens, len(prompt_ids), 1.0, 1.0, num_decoded, num_decoded, 0, 0)

    def resume_ms(self, prompt_ids: Sequence[int]) -> float:
        return 1.0

    def peak_bytes(self) -> int | None:
        return None

    def close(self) -> None:
        pass


def test_engines_are_compared_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    drawn: list[tuple[Path, int]] = []
    monkeypatch.setattr(bench, "PeerProcess", FakePeer)
    monkeypatch.setattr(lineup.peers, "has_transformers", lambda: True)
    monkeypatch.setattr(lineup.llama_cpp, "find_server", lambda: None)
    monkeypatch.setattr(bench.plots, "check_plots", lambda file: None)
    picture = {"peers": lambda file, rows: drawn.append((file, len(rows)))}
    monkeypatch.setattr(bench, "PICTURES", picture)
    model, file = save_tiny_model(tmp_path / "tiny"), tmp_path / "rows.json"
    wishes = options(limit=2, runs=None, json=file, plot=tmp_path / "rows.svg")
    wishes.model, wishes.precision = str(model), "float32"
    bench.run("peers", wishes)
    shown = capsys.readouterr()
    assert "Reading, start and memory" in shown.out
    assert "llama.cpp is left out" in shown.err
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [(row["set"], row["engine"], row["drafter"]) for row in rows] == [
        (name, engine, drafter)
        for name in ("humaneval", "edits")
        for engine, drafter in (
            ("transformers", "none"),
            ("transformers", "prompt_lookup 10"),
            ("specengine", "none"),
            ("specengine", "auto"),
        )
    ]
    assert {(row["runs"], row["texts"], row["model"]) for row in rows} == {(5, 2, "tiny")}
    assert drawn == [(tmp_path / "rows.svg", 8)]


@pytest.mark.model
def test_speculation_changes_no_text_of_the_default_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr(bench, "has_transformers", lambda: False)
    file = tmp_path / "rows.json"
    bench.run("decode", options(limit=1, runs=1, json=file))
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [(row["set"], row["drafter"]) for row in rows] == [
        (name, drafter)
        for name in ("humaneval", "infilling", "edits")
        for drafter in ("none", "auto", "auto, with history")
    ]
    assert [row["texts_differ"] for row in rows] == [0] * 9
    assert "pip install" in capsys.readouterr().err
