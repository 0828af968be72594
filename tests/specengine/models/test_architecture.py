from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specengine.errors import LoadError
from specengine.models.architecture import (
    Architecture,
    LinearScaling,
    Llama3Scaling,
    read_architecture,
    rope_frequencies,
)
from specengine.models.families import SUPPORTED
from tests.specengine.tiny import tiny_architecture, tiny_config, tiny_tensors

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(folder: Path, **changes: Any) -> Architecture:
    """Return the architecture of a config with some keys changed; None leaves a key out."""
    config = {**tiny_config(tiny_architecture()), **changes}
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept), "utf-8")
    return read_architecture(folder)


def refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(LoadError) as caught:
        read(folder, **changes)
    assert str(folder / "config.json") in caught.value.what
    return str(caught.value)


@pytest.mark.parametrize("family", SUPPORTED.values())
def test_sizes_are_those_of_the_config(tmp_path: Path, family: str) -> None:
    written = tiny_architecture(family=family, num_layers=3, has_tied_embeddings=True)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(written)), "utf-8")
    assert read_architecture(tmp_path) == written


def test_keys_that_do_not_matter_are_left_alone(tmp_path: Path) -> None:
    assert read(tmp_path, torch_dtype="bfloat16", new_key={"a": [1]}) == tiny_architecture()


def test_left_out_sizes_follow_from_the_others(tmp_path: Path) -> None:
    left_out = dict.fromkeys(("num_key_value_heads", "head_dim", "tie_word_embeddings"))
    assert read(tmp_path, **left_out) == tiny_architecture(num_kv_heads=4, head_dim=16)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "rms_norm_eps"])
def test_missing_size_is_named(tmp_path: Path, key: str) -> None:
    assert key in refused(tmp_path, **{key: None})


@pytest.mark.parametrize("value", [0, -2, 1.5, "many", [4]])
@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "head_dim"])
def test_size_that_is_no_positive_number_is_named(tmp_path: Path, key: str, value: object) -> None:
    assert key in refused(tmp_path, **{key: value})


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"vocab_size": "\xff"}', b"\xff"])
def test_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(LoadError, match="cannot read"):
        read_architecture(tmp_path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot read"):
        read_architecture(tmp_path)


@pytest.mark.parametrize("names", [["MixtralForCausalLM"], ["GPT2LMHeadModel", "LlamaForCausalLM"]])
def test_other_architecture_is_refused_with_those_that_run(
    tmp_path: Path, names: list[str]
) -> None:
    what = refused(tmp_path, architectures=names)
    assert names[0] in what
    assert all(name in what for name in SUPPORTED)


def test_config_of_no_architecture_is_refused(tmp_path: Path) -> None:
    assert "architectures" in refused(tmp_path, architectures=[])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"use_sliding_window": True}, "sliding-window"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"num_key_value_heads": 3}, "divide evenly"),
        ({"head_dim": 15}, "head size 15"),
        ({"head_dim": None, "hidden_size": 60}, "head size 15"),
        ({"head_dim": None, "num_attention_heads": 128}, "head size 0"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' without a positive factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "'linear' without a positive factor"),
        ({"attention_bias": True}, "bias"),
        ({"mlp_bias": True}, "bias"),
        ({"rope_scaling": {**LLAMA3, "factor": None}}, "'llama3'"),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    """A model that runs without what it was trained with writes nonsense, without a warning."""
    assert what in refused(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": 500_000}, 500_000.0),
        ({"rope_theta": None}, 10_000.0),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 7.5}}, 7.5),
        ({"rope_theta": 3.0, "rope_parameters": {"rope_type": "default"}}, 3.0),
        ({"rope_theta": 3.0, "rope_scaling": {"rope_type": "default"}}, 3.0),
        ({"rope_theta": 3.0, "rope_parameters": {"rope_theta": 7.5}}, 7.5),
    ],
)
def test_rope_theta_is_found_in_old_and_new_configs(
    tmp_path: Path, changes: dict[str, Any], theta: float
) -> None:
    architecture = read(tmp_path, **changes)
    assert architecture.rope_theta == theta
    assert architecture.rope_scaling is None


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_llama3_scaling_is_read(tmp_path: Path, key: str) -> None:
    assert read(tmp_path, **{key: LLAMA3}).rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_scaling_is_read(tmp_path: Path, key: str) -> None:
    """DeepSeek-Coder has it."""
    scaling = read(tmp_path, rope_scaling={key: "linear", "factor": 4.0}).rope_scaling
    assert scaling == LinearScaling(4.0)


def test_qwen2_names_its_attention_biases_or_not(tmp_path: Path) -> None:
    for is_named in (False, True):
        changes = {"architectures": ["Qwen2ForCausalLM"], "attention_bias": is_named}
        assert read(tmp_path, **changes).family == "qwen2"


def test_frequencies_fall_from_one_by_powers_of_theta() -> None:
    frequencies = rope_frequencies(tiny_architecture(head_dim=8, rope_theta=10_000.0))
    expected = torch.tensor([1, 0.1, 0.01, 0.001], dtype=torch.float64)
    torch.testing.assert_close(frequencies, expected, atol=0, rtol=1e-12)


def test_llama3_divides_low_frequencies_and_keeps_high_ones() -> None:
    """Between one and four turns in the original context there is a ramp."""
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    plain = rope_frequencies(tiny_architecture(head_dim=128, rope_theta=500_000.0))
    scaled = rope_frequencies(
        tiny_architecture(head_dim=128, rope_theta=500_000.0, rope_scaling=scaling)
    )
    turns = 8192 * plain / (2 * torch.pi)
    assert torch.equal(scaled[turns >= 4], plain[turns >= 4])
    torch.testing.assert_close(scaled[turns <= 1], plain[turns <= 1] / 8)
    ramp = (turns > 1) & (turns < 4)
    smooth = (turns[ramp] - 1) / 3
    torch.testing.assert_close(scaled[ramp], (1 - smooth) * plain[ramp] / 8 + smooth * plain[ramp])
    assert ramp.sum() > 3


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (6, 3)])
def test_number_of_parameters_is_that_of_the_matrices(
    is_tied: bool, heads: tuple[int, int]
) -> None:
    architecture = tiny_architecture(
        num_heads=heads[0], num_kv_heads=heads[1], has_tied_embeddings=is_tied
    )
    tensors = tiny_tensors(architecture).values()
    matrices = [tensor for tensor in tensors if tensor.ndim == 2]
    assert architecture.num_parameters == sum(matrix.numel() for matrix in matrices)
