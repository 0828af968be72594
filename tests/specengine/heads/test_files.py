"""Heads that are saved are loaded again, by others too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from specengine.errors import LoadError
from specengine.heads import files
from specengine.heads.head import Head, Kind
from specengine.models.architecture import LinearScaling, Llama3Scaling
from tests.specengine.heads.tiny_heads import DEPTH, NUM_DRAFT_IDS, tiny_head
from tests.specengine.tiny import VOCAB_SIZE, tiny_architecture

TARGET = tiny_architecture()
VERIFIER = files.Verifier("tiny/target", TARGET)
KINDS: tuple[Kind, ...] = ("eagle", "medusa", "mtp", "parallel")


def saved(folder: Path, kind: Kind = "eagle", **changes: Any) -> Path:
    head = tiny_head(kind, TARGET)
    files.save(Head(**{**vars(head), **changes}), folder, VERIFIER)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text("utf-8"))


def change_config(folder: Path, **changes: Any) -> None:
    config = config_of(folder) | changes
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors") | changes
    kept = {name: each for name, each in tensors.items() if each is not None}
    save_file(kept, folder / "model.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_comes_back_rounded_to_bfloat16(tmp_path: Path, kind: Kind) -> None:
    head = tiny_head(kind, TARGET)
    files.save(head, tmp_path, VERIFIER)
    found = files.load(tmp_path)
    assert (found.kind, found.layers, found.depth) == (head.kind, head.layers, head.depth)
    assert (found.sizes, found.variant) == (head.sizes, head.variant)
    assert torch.equal(found.draft_ids, head.draft_ids)
    assert found.tensors.keys() == head.tensors.keys()
    for name, tensor in head.tensors.items():
        assert torch.equal(found.tensors[name].float(), tensor.bfloat16().float()), name


@pytest.mark.parametrize("scaling", [LinearScaling(4.0), Llama3Scaling(8.0, 1.0, 4.0, 8192)])
def test_scaled_rope_comes_back(tmp_path: Path, scaling: LinearScaling | Llama3Scaling) -> None:
    head = tiny_head("eagle", TARGET)
    sizes = type(head.sizes)(**{**vars(head.sizes), "rope_scaling": scaling})
    assert files.load(saved(tmp_path, sizes=sizes)).sizes == sizes


def test_eagle_has_the_tensors_and_keys_that_vllm_reads(tmp_path: Path) -> None:
    """Names and types as vLLM's EAGLE-3 loader maps them: all but t2d must be known to it."""
    saved(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    attention = {f"layers.0.self_attn.{part}_proj.weight" for part in "qkvo"}
    mlp = {f"layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    norms = {
        f"layers.0.{part}.weight"
        for part in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    others = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    assert tensors.keys() == attention | mlp | norms | others
    assert (tensors["d2t"].dtype, tensors["t2d"].dtype) == (torch.int64, torch.bool)
    assert {each.dtype for name, each in tensors.items() if name not in ("d2t", "t2d")} == {
        torch.bfloat16
    }
    targets = torch.arange(NUM_DRAFT_IDS) + tensors["d2t"]
    assert torch.equal(targets, tiny_head("eagle", TARGET).draft_ids)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), targets)
    config = config_of(tmp_path)
    assert config["speculators_model_type"] == "eagle3"
    assert config["draft_vocab_size"] == NUM_DRAFT_IDS
    assert config["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    # Left out, vLLM takes it to be true.
    assert config["norm_before_residual"] is False
    method = config["speculators_config"]
    assert method["algorithm"] == "eagle3"
    assert method["default_proposal_method"] == method["proposal_methods"][0]["proposal_type"]
    assert method["proposal_methods"][0]["speculative_tokens"] == DEPTH
    assert method["verifier"] == {
        "name_or_path": "tiny/target",
        "architectures": ["LlamaForCausalLM"],
    }


def test_transformers_reads_the_layer_s_sizes(tmp_path: Path) -> None:
    layer = LlamaConfig(**config_of(saved(tmp_path))["transformer_layer_config"])
    sizes = tiny_head("eagle", TARGET).sizes
    assert (layer.hidden_size, layer.head_dim) == (sizes.hidden_size, sizes.head_dim)
    assert (layer.num_attention_heads, layer.num_key_value_heads) == (4, 2)
    assert layer.to_dict()["rope_parameters"]["rope_theta"] == sizes.rope_theta
    assert layer.num_hidden_layers == 1
    assert (layer.vocab_size, layer.max_position_embeddings) == (VOCAB_SIZE, 2048)


def test_a_head_that_knows_all_tokens_needs_no_maps(tmp_path: Path) -> None:
    tensors = dict(tiny_head("eagle", TARGET).tensors)
    tensors["lm_head.weight"] = torch.ones(VOCAB_SIZE, TARGET.hidden_size)
    saved(tmp_path, tensors=tensors, draft_ids=torch.arange(VOCAB_SIZE))
    assert not {"d2t", "t2d"} & load_file(tmp_path / "model.safetensors").keys()
    assert torch.equal(files.load(tmp_path).draft_ids, torch.arange(VOCAB_SIZE))


def test_a_head_for_another_target_is_not_saved(tmp_path: Path) -> None:
    verifier = files.Verifier("other", tiny_architecture(hidden_size=128))
    with pytest.raises(LoadError, match="its target has 128"):
        files.save(tiny_head("eagle", TARGET), tmp_path, verifier)
    assert not list(tmp_path.iterdir())


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(LoadError, match=r"model\.safetensors cannot be read"):
        files.load(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    (saved(tmp_path) / name).unlink()
    with pytest.raises(LoadError, match=name):
        files.load(tmp_path)


@pytest.mark.parametrize("kind", ["peagle", "mtp", "dspark", "something"])
def test_an_unknown_kind_is_refused_with_those_that_are_known(tmp_path: Path, kind: str) -> None:
    change_config(saved(tmp_path), speculators_model_type=kind)
    with pytest.raises(LoadError, match=f"is of a '{kind}' head.*It runs eagle3, "):
        files.load(tmp_path)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("norm_before_residual", "lacks norm_before_residual"),
        ("transformer_layer_config", "transformer_layer_config"),
        ("speculators_config", "speculators_config"),
        ("eagle_aux_hidden_state_layer_ids", "which layers"),
    ],
)
def test_a_missing_key_is_refused(tmp_path: Path, key: str, message: str) -> None:
    config = config_of(saved(tmp_path))
    del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(LoadError, match=message):
        files.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("fc.weight", torch.ones(64, 192, dtype=torch.int8)),
        ("fc.weight", torch.ones(64, 192, dtype=torch.float64)),
        ("d2t", torch.zeros(NUM_DRAFT_IDS)),
        ("t2d", torch.zeros(VOCAB_SIZE, dtype=torch.int64)),
    ],
)
def test_numbers_of_another_type_are_refused(
    tmp_path: Path, name: str, tensor: torch.Tensor
) -> None:
    change_tensors(saved(tmp_path), **{name: tensor})
    with pytest.raises(LoadError, match=f"{name} in .* is .*, which a head cannot have"):
        files.load(tmp_path)


@pytest.mark.parametrize("offset", [VOCAB_SIZE, -1])
def test_a_map_that_points_outside_is_refused(tmp_path: Path, offset: int) -> None:
    d2t = torch.full((NUM_DRAFT_IDS,), offset)
    change_tensors(saved(tmp_path), d2t=d2t, t2d=None)
    with pytest.raises(LoadError, match=f"outside the target's {VOCAB_SIZE} tokens"):
        files.load(tmp_path)


def test_a_map_that_names_a_token_twice_is_refused(tmp_path: Path) -> None:
    change_tensors(saved(tmp_path), d2t=-torch.arange(NUM_DRAFT_IDS), t2d=None)
    with pytest.raises(LoadError, match="names a token twice"):
        files.load(tmp_path)


def test_maps_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    change_tensors(saved(tmp_path), t2d=torch.arange(VOCAB_SIZE) < NUM_DRAFT_IDS)
    with pytest.raises(LoadError, match="contradict"):
        files.load(tmp_path)


def test_a_map_of_another_length_is_refused(tmp_path: Path) -> None:
    change_config(saved(tmp_path), draft_vocab_size=NUM_DRAFT_IDS + 1)
    with pytest.raises(LoadError, match=f"has {NUM_DRAFT_IDS} entries; config.json says"):
        files.load(tmp_path)


def test_a_missing_map_is_refused(tmp_path: Path) -> None:
    change_tensors(saved(tmp_path), d2t=None)
    with pytest.raises(LoadError, match="lacks d2t"):
        files.load(tmp_path)


@pytest.mark.parametrize("flag", ["fc_norm", "norm_before_fc"])
def test_a_norm_that_the_config_promises_must_be_there(tmp_path: Path, flag: str) -> None:
    change_config(saved(tmp_path), **{flag: True})
    with pytest.raises(LoadError, match=f"{flag} True, but the weights do not"):
        files.load(tmp_path)


def test_a_config_of_a_megabyte_is_not_read(tmp_path: Path) -> None:
    (saved(tmp_path) / "config.json").write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(LoadError, match="more than 1048576 bytes"):
        files.load(tmp_path)
