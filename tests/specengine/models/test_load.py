from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specengine.cache.kv_cache import KVCache
from specengine.errors import LoadError
from specengine.models import targets
from specengine.models.architecture import Architecture
from specengine.models.decoder import Decoder
from specengine.models.linear import Linear
from specengine.models.load import paired
from specengine.models.targets import Precision, decoder_from, device_named
from tests.specengine.tiny import (
    load_decoder,
    save_tiny_model,
    tiny_architecture,
    tiny_config,
    tiny_tensors,
)

LLAMA = tiny_architecture()
ONE_LAYER = tiny_architecture(num_layers=1)
TIED = tiny_architecture(num_layers=1, has_tied_embeddings=True)
QWEN2 = tiny_architecture(num_layers=1, family="qwen2")
QWEN3 = tiny_architecture(num_layers=1, family="qwen3")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model", architecture=ONE_LAYER)


def logits(decoder: Decoder) -> torch.Tensor:
    cache = KVCache(decoder.kv_shape, 16)
    return decoder.forward([5, 9, 200, 9], cache, num_logits=4)


def made(
    architecture: Architecture, tensors: dict[str, torch.Tensor], precision: Precision = "float32"
) -> torch.Tensor:
    return logits(decoder_from(architecture, tensors, precision))


def refused(architecture: Architecture, tensors: dict[str, torch.Tensor]) -> str:
    with pytest.raises(LoadError) as caught:
        decoder_from(architecture, tensors, "float32")
    return str(caught.value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", [LLAMA, TIED, QWEN2, QWEN3])
def test_folder_gives_the_decoder_of_its_tensors(
    tmp_path: Path, architecture: Architecture, precision: Precision
) -> None:
    folder = save_tiny_model(tmp_path / "model", seed=3, architecture=architecture)
    loaded = load_decoder(folder, precision)
    assert loaded.architecture == architecture
    assert loaded.dtype == getattr(torch, precision)
    assert torch.equal(logits(loaded), made(architecture, tiny_tensors(architecture, 3), precision))


def test_weights_in_several_files_are_found_by_the_index(tmp_path: Path, folder: Path) -> None:
    expected = logits(load_decoder(folder, "float32"))
    (folder / "model.safetensors").unlink()
    names = sorted(tiny_tensors(ONE_LAYER))
    files = {name: f"part-{at % 2}.safetensors" for at, name in enumerate(names)}
    for file in set(files.values()):
        tensors = tiny_tensors(ONE_LAYER)
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    write_index(folder, {"weight_map": files})
    assert torch.equal(logits(load_decoder(folder, "float32")), expected)


def write_index(folder: Path, content: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(content), "utf-8")


def test_tied_head_is_the_embedding() -> None:
    tensors = tiny_tensors(TIED)
    assert "lm_head.weight" not in tensors
    untied = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    assert torch.equal(made(TIED, tensors), made(ONE_LAYER, untied))


def test_untied_head_is_its_own() -> None:
    tensors = tiny_tensors(ONE_LAYER)
    other = {**tensors, "lm_head.weight": tensors["lm_head.weight"].roll(1, 0)}
    assert torch.equal(made(ONE_LAYER, other), made(ONE_LAYER, tensors).roll(1, 1))


def test_bias_of_zero_changes_nothing_and_any_other_does() -> None:
    tensors = tiny_tensors(ONE_LAYER)
    plain = made(ONE_LAYER, tensors)
    biases = {
        f"model.layers.0.self_attn.{part}_proj.bias": torch.zeros(size)
        for part, size in (("q", 64), ("k", 32), ("v", 32))
    }
    assert torch.equal(made(QWEN2, {**tensors, **biases}), plain)
    for name, bias in biases.items():
        # A bias shared by all keys cancels in the softmax, but for the rotation.
        other = {**biases, name: bias + torch.linspace(-2, 2, len(bias))}
        assert not torch.allclose(made(QWEN2, {**tensors, **other}), plain, atol=1e-3)


@pytest.mark.parametrize("part", ["q", "k"])
def test_norms_of_heads_change_the_logits(part: str) -> None:
    tensors = tiny_tensors(QWEN3)
    name = f"model.layers.0.self_attn.{part}_norm.weight"
    other = {**tensors, name: tensors[name] * torch.linspace(0, 3, 16)}
    assert not torch.allclose(made(QWEN3, other), made(QWEN3, tensors), atol=1e-3)


def test_rotated_dimensions_become_neighbours() -> None:
    rows = torch.arange(12)[:, None].expand(12, 3)
    assert paired(rows, 6)[:, 0].tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]


def test_matrices_take_the_precision_and_norms_stay_float32() -> None:
    weights = decoder_from(QWEN3, tiny_tensors(QWEN3), "bfloat16").weights
    layer = weights.layers[0]
    products = [layer.qkv, layer.down, weights.head]
    matrices = [weights.embedding, *(each.weight for each in products if isinstance(each, Linear))]
    norms = [weights.final_norm, layer.attention_norm, layer.mlp_norm, layer.query_norm]
    assert [matrix.dtype for matrix in matrices] == [torch.bfloat16] * 4
    assert [norm.dtype for norm in norms if norm is not None] == [torch.float32] * 4


@pytest.mark.parametrize("name", tiny_tensors(ONE_LAYER))
def test_missing_weight_is_named(name: str) -> None:
    tensors = tiny_tensors(ONE_LAYER)
    del tensors[name]
    assert refused(ONE_LAYER, tensors) == f"the weights lack {name}."


@pytest.mark.parametrize("architecture", [QWEN2, QWEN3])
def test_one_missing_bias_or_norm_is_noticed(architecture: Architecture) -> None:
    tensors = tiny_tensors(architecture)
    optional = [name for name in tensors if "proj.bias" in name or "_attn.q_norm" in name]
    optional += [name for name in tensors if "_attn.k_norm" in name]
    assert len(optional) >= 2
    for name in optional:
        refused(architecture, {key: value for key, value in tensors.items() if key != name})


@pytest.mark.parametrize("name", [*tiny_tensors(QWEN2), *tiny_tensors(QWEN3)])
def test_misshapen_weight_is_named_with_both_shapes(name: str) -> None:
    architecture = QWEN3 if "norm" in name else QWEN2
    tensors = tiny_tensors(architecture)
    wanted = tuple(tensors[name].shape)
    tensors[name] = tensors[name][:-1]
    given = (wanted[0] - 1, *wanted[1:])
    expected = f"{name} has shape {given}; config.json wants {wanted}."
    assert refused(architecture, tensors) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "name", ["model.norm.weight", *(name for name in tiny_tensors(QWEN2) if "bias" in name)]
)
def test_norm_or_bias_that_is_no_number_is_named(name: str, value: float) -> None:
    tensors = tiny_tensors(QWEN2)
    tensors[name][3] = value
    assert refused(QWEN2, tensors) == f"{name} holds values that are no numbers."


def test_a_row_of_an_embedding_by_itself_that_is_no_number_is_named() -> None:
    """Nobody would see it before a text has the token."""
    sizes = tiny_architecture(has_tied_embeddings=False)
    tensors = tiny_tensors(sizes)
    tensors["model.embed_tokens.weight"][7, 3] = math.nan
    expected = "model.embed_tokens.weight holds values that are no numbers."
    assert refused(sizes, tensors) == expected


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_integers_hide_no_value_that_is_no_number(value: float) -> None:
    """Attention and limbs of the native pass would go on with it as with any number."""
    tensors = tiny_tensors(ONE_LAYER)
    tensors["model.layers.0.self_attn.v_proj.weight"][3, 5] = value
    with pytest.raises(LoadError, match=r"a weight of 128 x 64 holds values that are no numbers"):
        decoder_from(ONE_LAYER, tensors, "int8")


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.mlp.up_proj.bias", "model.layers.1.mlp.up_proj.weight", "visual.weight"],
)
def test_weight_without_a_place_is_refused(name: str) -> None:
    """The model was trained with it, and would write nonsense without a warning."""
    what = refused(ONE_LAYER, {**tiny_tensors(ONE_LAYER), name: torch.zeros(2)})
    assert f"1 weights have no place in this architecture, {name} among them." in what


def test_derived_weights_may_lie_unused() -> None:
    tensors = tiny_tensors(TIED)
    derived = {
        "lm_head.weight": torch.zeros(2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
    }
    assert torch.equal(made(TIED, {**tensors, **derived}), made(TIED, tensors))


def test_missing_weight_in_a_folder_is_named(folder: Path) -> None:
    tensors = tiny_tensors(ONE_LAYER)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"the weights lack model\.norm\.weight"):
        load_decoder(folder)


def test_missing_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match="cannot read the weights"):
        load_decoder(folder)


@pytest.mark.parametrize("num_bytes", [0, 4, 100, -100])
def test_cut_weights_are_refused(folder: Path, num_bytes: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:num_bytes])
    with pytest.raises(LoadError, match="cannot read the weights"):
        load_decoder(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"{}", b"5", b'{"weight_map": []}', b'{"weight_map": {"a": 5}}'],
)
def test_broken_index_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(LoadError, match="cannot read the weights"):
        load_decoder(folder)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/hostname", "a/b.safetensors", "..", ".", "", "a\0b"]
)
def test_index_names_files_of_its_own_folder_only(folder: Path, name: str) -> None:
    write_index(folder, {"weight_map": dict.fromkeys(tiny_tensors(ONE_LAYER), name)})
    with pytest.raises(LoadError, match=r"is no \.safetensors file of its own"):
        load_decoder(folder)


def test_file_that_the_index_names_but_is_not_there_is_refused(folder: Path) -> None:
    write_index(folder, {"weight_map": dict.fromkeys(tiny_tensors(ONE_LAYER), "no.safetensors")})
    with pytest.raises(LoadError, match=r"cannot read model\.embed_tokens\.weight from .*no\.safe"):
        load_decoder(folder)


def test_weight_that_the_index_names_but_is_not_there_is_refused(folder: Path) -> None:
    names = dict.fromkeys([*tiny_tensors(ONE_LAYER)], "part.safetensors")
    write_index(folder, {"weight_map": names})
    save_file({"model.norm.weight": torch.zeros(64)}, folder / "part.safetensors")
    with pytest.raises(LoadError, match=r"cannot read model\.embed_tokens\.weight from .*part"):
        load_decoder(folder)


def test_progress_rises_to_one(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    fractions: list[float] = []
    load_decoder(folder, on_fraction=fractions.append)
    assert fractions == [0.5, 1.0]


def test_memory_that_runs_out_while_loading_is_a_load_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(targets, "read_weights", fail)
    with pytest.raises(LoadError, match=f"not enough memory on cpu for the model in {folder}"):
        load_decoder(folder)


def test_config_is_read_from_the_folder(folder: Path) -> None:
    config = {**tiny_config(ONE_LAYER), "intermediate_size": 95}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(LoadError, match=r"config\.json wants \(95, 64\)"):
        load_decoder(folder)


@pytest.mark.parametrize("name", ["meta", "cuda:99", "a device"])
def test_a_device_that_cannot_compute_is_refused_before_loading(name: str) -> None:
    with pytest.raises(LoadError, match=f"the device '{name}' cannot be used: .*[^.]\\.$") as error:
        device_named(name)
    assert "Choose cpu" in str(error.value.hint)
