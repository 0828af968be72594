"""The sizes of a Llama-family decoder, read from a Hugging Face ``config.json``.

Llama, Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k) are one architecture with options.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from specengine.errors import LoadError

SUPPORTED: Final = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architectures that the decoder runs, by the name in ``config.json``."""


@dataclass(frozen=True)
class Llama3Scaling:
    """Rope frequencies of Llama 3.1: low ones divided, high ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class Architecture:
    """Everything about a decoder but its weights."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    has_tied_embeddings: bool

    @property
    def num_parameters(self) -> int:
        """Return the number of weights, norms and biases left out."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layers = self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)
        return layers + self.vocab_size * self.hidden_size * (2 - self.has_tied_embeddings)


def read_architecture(folder: Path) -> Architecture:
    """Return the architecture that ``folder/config.json`` describes.

    Raises:  LoadError when the file is missing, broken, or of a model that the decoder cannot run.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
        return _parse(config, path)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LoadError(f"cannot read {path}: {error}.") from error
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise LoadError(f"{path} lacks a usable {error}.") from error


def rope_frequencies(architecture: Architecture) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions, float64 [D / 2].

    Source:  Su et al. 2021, arXiv 2104.09864, eq. 15; the Llama 3.1 ramp as its authors publish it.
    """
    half = torch.arange(0, architecture.head_dim, 2, dtype=torch.float64) / architecture.head_dim
    frequencies = architecture.rope_theta**-half
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequencies
    turns = scaling.original_context * frequencies / (2 * torch.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ramp.clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _parse(config: dict[str, Any], path: Path) -> Architecture:
    name = config["architectures"][0]
    if name not in SUPPORTED:
        raise LoadError(
            f"{path} is a {name}, which this engine cannot run.",
            hint=f"It runs {', '.join(SUPPORTED)}.",
        )
    if config.get("use_sliding_window"):
        raise LoadError(f"{path} wants sliding-window attention, which this engine does not have.")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    num_heads = int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    return Architecture(
        family=SUPPORTED[name],
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden_size,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        context_len=int(config["max_position_embeddings"]),
        norm_eps=float(config["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        rope_scaling=_parse_scaling(rope, path),
        has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _parse_scaling(rope: dict[str, Any], path: Path) -> Llama3Scaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise LoadError(f"{path} scales rope by {kind!r}; this engine knows default and llama3.")
    return Llama3Scaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )
