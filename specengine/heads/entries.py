"""How a token and a feature of the target enter a network's layer.

Source:  EAGLE, Li et al. 2024, arXiv 2401.15077, section 4.1; EAGLE-3, Li et al. 2025, arXiv
    2503.01840, section 3.1; DeepSeek-V3, arXiv 2412.19437, eq. 21.
"""

from __future__ import annotations

from typing import Protocol

import torch

from specengine.heads.head import Head, MakeProduct, norm


class Entry(Protocol):
    """The front of a network's module."""

    num_in: int
    """Width of the rows that attention reads."""

    def fuse(self, streams: list[torch.Tensor]) -> torch.Tensor:
        """Return the features of positions, [..., T, hidden], from the target's streams there."""
        ...

    def __call__(
        self, embedded: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what attention reads, [..., T, num_in], and the residual, [..., T, hidden]."""
        ...


def entry_of(head: Head, module: int, make: MakeProduct) -> Entry:
    """Return the front of a module.

    Raises:  LoadError when a tensor is missing or of another shape.
    """
    if head.kind == "mtp":
        return NormedAndFused(head, f"layers.{module}", make)
    if head.kind == "eagle1":
        return Fused(head, make)
    return SideBySide(head, make)


class SideBySide:
    """Of EAGLE-3: a feature is several streams fused; attention reads it beside the token."""

    def __init__(self, head: Head, make: MakeProduct) -> None:
        hidden, num_streams = head.sizes.hidden_size, len(head.layers)
        self.num_in = 2 * hidden
        self._eps = head.sizes.norm_eps
        self._fuser = make(head.tensor("fc.weight", hidden, num_streams * hidden), None)
        self._stream_norms = [
            head.tensor(f"fc_norm.{number}.weight", hidden)
            for number in range(num_streams if head.has("fc_norm.0.weight") else 0)
        ]
        self._joined_norm = None
        if head.has("input_norm.weight"):
            self._joined_norm = head.tensor("input_norm.weight", num_streams * hidden)
        self._token_norm = head.tensor("layers.0.input_layernorm.weight", hidden)
        self._feature_norm = head.tensor("layers.0.hidden_norm.weight", hidden)
        self._has_normed_residual = head.variant.norm_before_residual

    def fuse(self, streams: list[torch.Tensor]) -> torch.Tensor:
        """Return one feature of several streams."""
        if self._stream_norms:
            pairs = zip(streams, self._stream_norms, strict=True)
            streams = [norm(stream, weight, self._eps) for stream, weight in pairs]
        joined = torch.cat(streams, -1)
        if self._joined_norm is not None:
            joined = norm(joined, self._joined_norm, self._eps)
        return self._fuser(joined)

    def __call__(
        self, embedded: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm both by themselves."""
        normed = norm(features, self._feature_norm, self._eps)
        entering = torch.cat((norm(embedded, self._token_norm, self._eps), normed), -1)
        return entering, normed if self._has_normed_residual else features


class Fused:
    """Of the first EAGLE: a feature is the row that the target scores; nothing is normed."""

    def __init__(self, head: Head, make: MakeProduct) -> None:
        hidden = head.sizes.hidden_size
        self.num_in = hidden
        bias = head.tensor("fc.bias", hidden) if head.has("fc.bias") else None
        self._fuser = make(head.tensor("fc.weight", hidden, 2 * hidden), bias)
        self._scored_norm = head.tensor("norm.weight", hidden)
        self._eps = head.sizes.norm_eps

    def fuse(self, streams: list[torch.Tensor]) -> torch.Tensor:
        """Norm the last stream as the target does."""
        return norm(streams[0], self._scored_norm, self._eps)

    def __call__(
        self, embedded: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Fuse both."""
        stream = self._fuser(torch.cat((embedded, features), -1))
        return stream, stream


class NormedAndFused:
    """Of multi-token prediction: a feature is the stream of the target, or of the module before."""

    def __init__(self, head: Head, name: str, make: MakeProduct) -> None:
        hidden = head.sizes.hidden_size
        self.num_in = hidden
        self._eps = head.sizes.norm_eps
        self._fuser = make(head.tensor(f"{name}.eh_proj.weight", hidden, 2 * hidden), None)
        self._token_norm = head.tensor(f"{name}.enorm.weight", hidden)
        self._feature_norm = head.tensor(f"{name}.hnorm.weight", hidden)
        self._layer_norm = head.tensor(f"{name}.input_layernorm.weight", hidden)

    def fuse(self, streams: list[torch.Tensor]) -> torch.Tensor:
        """Take the last stream as it is."""
        return streams[0]

    def __call__(
        self, embedded: torch.Tensor, features: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Norm both, fuse them, and norm that for attention."""
        token = norm(embedded, self._token_norm, self._eps)
        stream = self._fuser(torch.cat((token, norm(features, self._feature_norm, self._eps)), -1))
        return norm(stream, self._layer_norm, self._eps), stream
