"""``specengine train heads`` from its options to a head that the engine can use."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from specengine import cli
from specengine.drafters.trained import trained_drafts
from specengine.errors import ConfigError, LoadError, SettingsInvalid
from specengine.heads.files import load
from specengine.models.targets import load_target
from specengine.models.tokenizer import Tokenizer
from specengine.train import heads_run
from specengine.train.heads_loop import HeadStep, read_head_history
from specengine.train.streams import LENGTH, ROWS
from tests.specengine.tiny import save_tiny_model


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(heads_run, "MEASURED_SHARDS", 1)
    monkeypatch.setattr(heads_run, "VOCABULARY_TEXTS", 20)
    monkeypatch.setattr(heads_run, "cache_root", lambda: tmp_path / "cache")


def write_files(folder: Path, number: int, start: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(start, start + number):
        lines = [f"def f{at}_{n}(self):\n    return self + {n}\n\n\n" for n in range(30)]
        (folder / f"code{at}.py").write_text("".join(lines))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return forty packages with a file each."""
    for at in range(40):
        write_files(tmp_path / "data" / f"package{at}", 1, at)
    return tmp_path / "data"


def options(tmp_path: Path, data: Path | None, **changes: object) -> argparse.Namespace:
    given: dict[str, object] = {
        "kind": "medusa",
        "model": str(save_tiny_model(tmp_path / "model")),
        "data": None if data is None else [data],
        "workspace": None,
        "out": tmp_path / "out",
        "init": None,
        "tokens": 2 * ROWS * LENGTH,
        "stream_tokens": ROWS * LENGTH,
        "rate": 1e-3,
        "depth": 2,
        "seed": 0,
        "precision": "float32",
        "device": "cpu",
    }
    return argparse.Namespace(**{**given, **changes})


def train(given: argparse.Namespace) -> Path:
    return heads_run.train_heads(given, [], "a machine", lambda fraction, detail: None)


@pytest.mark.parametrize("kind", ["medusa", "eagle", "mtp", "parallel", "draft_model"])
def test_the_engine_takes_the_head_and_its_card_says_how_it_was_made(
    tmp_path: Path, data: Path, kind: str
) -> None:
    given = options(tmp_path, data, kind=kind)
    head = train(given)
    folder = Path(given.model)
    source = trained_drafts(head, load_target(folder, "float32"), Tokenizer.load(folder), 2)
    assert source.name == kind
    card = (head / "README.md").read_text("utf-8")
    for fact in (f"specengine train heads --kind {kind}", "a machine", "package", "tokens a pass"):
        assert fact in card, fact
    assert (head / "acceptance.svg").read_text("utf-8").count("<path") > 5
    steps = [line for line in read_head_history(given.out) if isinstance(line, HeadStep)]
    assert steps[-1].tokens >= given.tokens


def test_a_head_is_tuned_on_a_workspace(tmp_path: Path, data: Path) -> None:
    first = train(options(tmp_path, data))
    write_files(tmp_path / "own", 40, 100)
    given = options(tmp_path, None, workspace=tmp_path / "own", init=first, out=tmp_path / "tuned")
    second = train(given)
    before, after = load(first), load(second)
    assert after.draft_ids.equal(before.draft_ids)
    name = "heads.0.linear.weight"
    assert not after.tensors[name].equal(before.tensors[name])
    card = (second / "README.md").read_text("utf-8")
    assert f"--workspace {shlex.quote(str(tmp_path / 'own'))}" in card
    assert f"--init {shlex.quote(str(first))}" in card


def test_streams_are_computed_once_for_all_kinds(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(options(tmp_path, data))

    def load_again(*_: object, **__: object) -> None:
        raise AssertionError("the target is loaded again")

    monkeypatch.setattr(heads_run, "load_target", load_again)
    train(options(tmp_path, data, kind="eagle", out=tmp_path / "second"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"kind": "dflash"}, "dflash"),
        ({"tokens": 100}, "--tokens"),
        ({"stream_tokens": 100}, "--stream-tokens"),
        ({"rate": 2.0}, "--rate"),
        ({"depth": 0}, "--depth"),
    ],
)
def test_a_wrong_option_is_named(
    tmp_path: Path, data: Path, changes: dict[str, object], part: str
) -> None:
    with pytest.raises(SettingsInvalid, match=part):
        train(options(tmp_path, data, **changes))


def test_a_folder_without_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="0 files to learn from"):
        train(options(tmp_path, None, workspace=tmp_path / "empty"))
    with pytest.raises(ConfigError, match="no folder"):
        train(options(tmp_path, None, workspace=tmp_path / "none"))


def test_a_head_of_another_target_is_no_beginning(tmp_path: Path, data: Path) -> None:
    first = train(options(tmp_path, data, kind="eagle"))
    (first / "model.safetensors").write_bytes(b"")
    with pytest.raises(LoadError):
        train(options(tmp_path, data, kind="eagle", init=first, out=tmp_path / "second"))


def test_the_command_line_reaches_the_trainer(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[argparse.Namespace] = []

    def note(given: argparse.Namespace, *_: object) -> Path:
        seen.append(given)
        return tmp_path

    monkeypatch.setattr(heads_run, "train_heads", note)
    monkeypatch.setattr("sys.argv", ["specengine", "train", "heads", "--workspace", str(data)])
    cli.main()
    (given,) = seen
    assert (given.kind, given.workspace) == ("eagle", data)
    expected = vars(options(tmp_path, data))
    assert set(expected) <= set(vars(given))
