"""The sizes of a Llama-family decoder, read from a Hugging Face ``config.json``.

Llama, Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k) are one architecture with options.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import torch

from specengine.errors import LoadError
from specengine.models.families import SUPPORTED, Family, refusal


@dataclass(frozen=True)
class Llama3Scaling:
    """Rope frequencies of Llama 3.1: low ones divided, high ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class LinearScaling:
    """All rope frequencies divided, as in models that were trained on to longer texts."""

    factor: float


@dataclass(frozen=True)
class Architecture:
    """Everything about a decoder but its weights."""

    family: Family
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
    rope_scaling: Llama3Scaling | LinearScaling | None
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
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LoadError(f"cannot read {path}: {error}.") from error
    _check_supported(config, path)
    rope = config.rope_parameters or config.rope_scaling or Rope()
    return Architecture(
        family=SUPPORTED[config.architectures[0]],
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=_head_dim(config),
        context_len=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        rope_theta=rope.rope_theta or config.rope_theta or 10_000.0,
        rope_scaling=scaling_of(rope, path),
        has_tied_embeddings=config.tie_word_embeddings,
    )


class Rotation(Protocol):
    """What says how heads are turned."""

    @property
    def head_dim(self) -> int:
        """Return the dimensions of a head."""
        ...

    @property
    def rope_theta(self) -> float:
        """Return the base of the frequencies."""
        ...

    @property
    def rope_scaling(self) -> Llama3Scaling | LinearScaling | None:
        """Return how they are scaled."""
        ...


def rope_frequencies(architecture: Rotation) -> torch.Tensor:
    """Return the angle per position of each pair of dimensions, float64 [D / 2].

    Source:  Su et al. 2021, arXiv 2104.09864, eq. 15; linear scaling is Chen et al. 2023, arXiv
             2306.15595; the Llama 3.1 ramp as its authors publish it.
    """
    half = torch.arange(0, architecture.head_dim, 2, dtype=torch.float64) / architecture.head_dim
    frequencies = architecture.rope_theta**-half
    scaling = architecture.rope_scaling
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    turns = scaling.original_context * frequencies / (2 * torch.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = ramp.clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


class Rope(msgspec.Struct):
    """What a ``config.json`` says of rope, in its older and newer forms."""

    rope_theta: float | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None


Positive = Annotated[int, msgspec.Meta(gt=0)]


class _Config(msgspec.Struct):
    """What is read of a ``config.json``; other keys do not matter to the decoder."""

    architectures: Annotated[list[str], msgspec.Meta(min_length=1)]
    vocab_size: Positive
    hidden_size: Positive
    intermediate_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    max_position_embeddings: Positive
    rms_norm_eps: float
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    hidden_act: str = "silu"
    rope_theta: float | None = None
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None
    tie_word_embeddings: bool = False
    use_sliding_window: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False


def _check_supported(config: _Config, path: Path) -> None:
    name = config.architectures[0]
    if name not in SUPPORTED:
        raise refusal(f"{path} is a {name}, which this engine does not run yet.")
    if config.mlp_bias or (config.attention_bias and SUPPORTED[name] != "qwen2"):
        raise refusal(f"{path} wants a bias in linear layers, which this engine does not add yet.")
    if config.use_sliding_window:
        raise LoadError(f"{path} wants sliding-window attention, which this engine does not have.")
    if config.hidden_act != "silu":
        raise LoadError(f"{path} wants the activation {config.hidden_act!r}; this engine has silu.")
    if config.num_attention_heads % (config.num_key_value_heads or 1):
        raise LoadError(f"{path} has heads that do not divide evenly over K/V heads.")
    if config.rms_norm_eps < 0 or (config.rope_theta or 1) <= 0:
        raise LoadError(f"{path} has a negative rms_norm_eps or rope_theta.")
    head_dim = _head_dim(config)
    if head_dim % 2 or head_dim == 0:
        raise LoadError(f"{path} has the head size {head_dim}; rope turns pairs of dimensions.")


def _head_dim(config: _Config) -> int:
    return config.head_dim or config.hidden_size // config.num_attention_heads


def scaling_of(rope: Rope, path: Path) -> Llama3Scaling | LinearScaling | None:
    """Return how frequencies are scaled; ``path`` is what error messages name.

    Raises:  LoadError for a way that is not known.
    """
    if rope.rope_theta is not None and rope.rope_theta <= 0:
        raise LoadError(f"{path} has the rope_theta {rope.rope_theta}; it must be positive.")
    kind = rope.rope_type or rope.type or "default"
    if kind == "default":
        return None
    if kind == "linear":
        if rope.factor is None or rope.factor <= 0:
            raise LoadError(f"{path} scales rope by 'linear' without a positive factor.")
        return LinearScaling(rope.factor)
    numbers = (
        rope.factor,
        rope.low_freq_factor,
        rope.high_freq_factor,
        rope.original_max_position_embeddings,
    )
    if kind != "llama3" or None in numbers:
        raise LoadError(f"{path} scales rope by {kind!r}; this engine knows linear and llama3.")
    factor, low, high, original = (number or 0 for number in numbers)
    if factor <= 0 or not 0 < low < high or original <= 0:
        raise LoadError(f"{path} has rope factors that give no frequencies: {numbers}.")
    return Llama3Scaling(factor, low, high, int(original))
