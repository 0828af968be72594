"""``specengine train`` from its options to an adapter that the engine can use."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from pathlib import Path

import pytest

from specengine import cli
from specengine.errors import ConfigError, LoadError, SettingsInvalid
from specengine.models.adapters import Adapter
from specengine.models.convert import ensure_model
from specengine.models.registry import ModelEntry
from specengine.train import run
from specengine.train.loop import Measurement, Step, read_history
from tests.specengine.tiny import END, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, save_tiny_model

SENTINELS = f"{FIM_PREFIX},{FIM_SUFFIX},{FIM_MIDDLE},{END}"


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny layers would take longer to compile than to run."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("specengine.train.batches.NUM_MEASURED", 4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return forty packages with a file each."""
    for at in range(40):
        file = tmp_path / "data" / f"package{at}" / "code.py"
        file.parent.mkdir(parents=True)
        file.write_text(
            "".join(f"def f{at}_{n}(self):\n    return self + {n}\n\n\n" for n in range(30))
        )
    return tmp_path / "data"


def options(tmp_path: Path, data: Path, **changes: object) -> argparse.Namespace:
    given: dict[str, object] = {
        "model": str(save_tiny_model(tmp_path / "model")),
        "data": [data],
        "out": tmp_path / "out",
        "init": None,
        "tokens": 9_000,
        "rate": 1e-3,
        "rank": 2,
        "seed": 0,
        "device": "cpu",
        "batch_tokens": 4096,
        "sentinels": SENTINELS,
    }
    return argparse.Namespace(**{**given, **changes})


def train(given: argparse.Namespace) -> Path:
    return run.train_fim(given, [], "a machine", lambda fraction, detail: None)


def test_the_adapter_can_be_merged_and_its_card_says_how_it_was_made(
    tmp_path: Path, data: Path
) -> None:
    given = options(tmp_path, data)
    adapter = train(given)
    entry = ModelEntry("tuned", f"adapter:{adapter}", base=ModelEntry("tiny", given.model))
    assert (ensure_model(entry, cache_dir=tmp_path / "cache") / "model.safetensors").is_file()
    card = (adapter / "README.md").read_text("utf-8")
    for fact in ("specengine train fim", "--tokens 9000", "a machine", FIM_PREFIX, "package", "%"):
        assert fact in card, fact
    assert (adapter / "loss.svg").read_text("utf-8").count("<path") > 5
    history = read_history(given.out)
    assert sum(line.tokens > 0 for line in history if isinstance(line, Step)) > 0
    assert {line.layout for line in history if isinstance(line, Measurement)} == set(run.MEASURED)


def test_an_interrupt_ends_the_step_and_saves(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("step 1 "):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(run, "say", interrupt)
    given = options(tmp_path, data, tokens=10**9)
    train(given)
    assert [line.step for line in read_history(given.out) if isinstance(line, Step)] == [1]
    assert (given.out / "state.safetensors").is_file()


def test_training_goes_on_from_an_adapter(tmp_path: Path, data: Path) -> None:
    first = train(options(tmp_path, data))
    before = Adapter.load(first)
    second = train(options(tmp_path, data, out=tmp_path / "more", init=first, rate=1e-9))
    after = Adapter.load(second)
    name = next(iter(before.factors))
    assert before.factors[name].up.equal(after.factors[name].up)
    assert before.factors[name].up.abs().sum() > 0
    assert f"--init {first}" in (second / "README.md").read_text("utf-8")


def test_middles_are_measured_without_training(tmp_path: Path, data: Path) -> None:
    lines = run.measure_middles(options(tmp_path, data), [], lambda fraction, detail: None)
    assert [line.split()[0] for line in lines] == ["plain", "suffix_first"]
    assert all("perplexity" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "error", "what"),
    [
        ({"tokens": 0}, SettingsInvalid, "--tokens"),
        ({"rate": 0.0}, SettingsInvalid, "--rate"),
        ({"sentinels": "<a>,<b>"}, SettingsInvalid, "four"),
        ({"sentinels": "<a>,<b>,<c>,<d>"}, ConfigError, "<a>"),
        ({"data": [Path("/nowhere")]}, ConfigError, "/nowhere"),
        ({"init": Path("/nowhere")}, LoadError, "/nowhere"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, data: Path, changes: dict[str, object], error: type[Exception], what: str
) -> None:
    with pytest.raises(error, match=what):
        train(argparse.Namespace(**{**vars(options(tmp_path, data)), **changes}))


def test_too_few_packages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(ConfigError, match="both are needed"):
        train(options(tmp_path, tmp_path / "data"))


def test_the_command_line_reaches_training(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = options(tmp_path, data)
    words = ["train", "fim", "--model", given.model, "--data", str(data), "--out", str(given.out)]
    cli.main([*words, "--tokens", "5000", "--rank", "2", "--sentinels", SENTINELS])
    assert f"adapter:{given.out / 'adapter'}" in capsys.readouterr().out
