"""The weights of a Llama-family decoder, whatever its matrices are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

M = TypeVar("M")
"""What a matrix is kept as."""


class Product(Protocol):
    """A weight that rows can be multiplied with, by torch."""

    def __call__(self, rows: torch.Tensor, /) -> torch.Tensor:
        """Return the rows times the weight, plus the bias; shapes [T, K] to [T, N]."""
        ...


@dataclass(frozen=True)
class Layer(Generic[M]):
    """One layer; q, k, v are one matrix, gate and up another. Norms are float32."""

    attention_norm: torch.Tensor
    qkv: M
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: M
    mlp_norm: torch.Tensor
    gate_up: M
    down: M


@dataclass(frozen=True)
class Weights(Generic[M]):
    """All of a decoder."""

    embedding: torch.Tensor
    """[V, hidden]."""
    layers: tuple[Layer[M], ...]
    final_norm: torch.Tensor
    head: M
