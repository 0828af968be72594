"""What a model needs beside what is free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specengine.cache.kv_cache import TILE, KVCache
from specengine.errors import LoadError
from specengine.models import memory
from specengine.models.graphs import PROMPT_ROWS
from specengine.models.memory import (
    DEVICE_SPARE,
    Need,
    Sequences,
    check_memory,
    check_memory_of_files,
)
from specengine.models.targets import load_target
from tests.specengine.tiny import save_tiny_model, tiny_architecture, tiny_decoder

CPU = torch.device("cpu")
SIZES = tiny_architecture()
PER_POSITION = 2 * SIZES.num_layers * SIZES.num_kv_heads * SIZES.head_dim


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    ("precision", "bytes_per_weight", "bytes_per_value"),
    [("float32", 4, 4), ("bfloat16", 2, 2), ("int8", 1, 2), ("int4", 0.625, 2)],
)
def test_weights_and_every_position_of_every_sequence_count(
    precision: str, bytes_per_weight: float, bytes_per_value: int, is_tied: bool
) -> None:
    sizes = tiny_architecture(has_tied_embeddings=is_tied)
    embedding = sizes.vocab_size * sizes.hidden_size
    products = sizes.num_parameters - (0 if is_tied else embedding)
    # In 8 and 4 bits a tied head is no longer the embedding, which stays in 16.
    own = 0 if is_tied and bytes_per_weight >= 2 else embedding
    own_bytes = own * max(2, round(bytes_per_weight))
    need = Need.of(sizes, precision, CPU, Sequences(3, 512))
    assert need.weights == round(products * bytes_per_weight) + own_bytes
    assert need.kv == 3 * 512 * PER_POSITION * bytes_per_value
    assert need.total == need.weights + need.kv


def test_an_accelerator_needs_room_beside_them() -> None:
    need = Need.of(SIZES, "bfloat16", torch.device("cuda"), Sequences())
    assert need.total == need.weights + DEVICE_SPARE


@pytest.mark.parametrize("device", [CPU, torch.device("cuda")])
def test_keys_and_values_are_counted_as_a_cache_allocates_them(device: torch.device) -> None:
    need = Need.of(SIZES, "bfloat16", device, Sequences(2, 1000))
    shape = tiny_decoder(architecture=SIZES).kv_shape
    if device.type == "cuda":
        shape = replace(shape, spare_rows=PROMPT_ROWS)
    cache = KVCache(replace(shape, dtype=torch.bfloat16), 1000)
    assert need.kv == 2 * cache.num_bytes
    assert need.positions_within(need.total) == cache.capacity
    assert need.positions_within(need.total - 1) == cache.capacity - TILE


def free_is(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: num_bytes)


def test_what_just_fits_is_loaded_and_one_byte_less_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequences = Sequences(2, 1000)
    need = Need.of(SIZES, "bfloat16", CPU, sequences)
    free_is(monkeypatch, need.total)
    check_memory(SIZES, "bfloat16", CPU, sequences)
    free_is(monkeypatch, need.total - 1)
    message = f"needs {need.total:,} bytes in bfloat16, {need.weights:,} .*{need.total - 1:,} are"
    with pytest.raises(LoadError, match=message) as error:
        check_memory(SIZES, "bfloat16", CPU, sequences)
    assert "Sequences of 768 tokens fit" in str(error.value.hint)


def test_when_not_even_a_short_sequence_fits_another_model_is_advised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free_is(monkeypatch, Need.of(SIZES, "bfloat16", CPU, Sequences()).weights)
    with pytest.raises(LoadError) as error:
        check_memory(SIZES, "bfloat16", CPU, Sequences(1, 4096))
    assert "int4" in str(error.value.hint)


@pytest.mark.parametrize(
    ("precision", "advice"),
    [("float32", "bfloat16 or int8 or int4 or a model"), ("int4", "Choose a model of less than")],
)
def test_only_smaller_precisions_are_advised(
    monkeypatch: pytest.MonkeyPatch, precision: str, advice: str
) -> None:
    free_is(monkeypatch, 1)
    with pytest.raises(LoadError) as error:
        check_memory(SIZES, precision, CPU)
    assert advice in str(error.value.hint)


def test_memory_is_checked_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_model(tmp_path)
    (folder / "model.safetensors").unlink()
    free_is(monkeypatch, 10)
    with pytest.raises(LoadError, match="10 are free on cpu"):
        load_target(folder)


def test_a_head_larger_than_what_is_free_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    free_is(monkeypatch, 1000)
    check_memory_of_files(tmp_path, CPU)
    free_is(monkeypatch, 999)
    with pytest.raises(LoadError, match="need 1,000 bytes; 999 are free on cpu"):
        check_memory_of_files(tmp_path, CPU)


def test_machine_that_does_not_tell_its_memory_may_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", fail)
    assert memory.free_bytes(CPU) is None
    check_memory(SIZES, "float32", CPU)


def test_free_memory_is_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = "MemTotal:  9 kB\nMemAvailable:      7 kB\nHugePages_Total:  0\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: meminfo)
    assert memory.free_bytes(CPU) == 7 * 1024
