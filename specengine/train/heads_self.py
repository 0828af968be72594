"""What heads of the kinds ``layer_skip`` and ``streaming`` say in training, and their beginnings.

Functions of tensors only: the target's residual streams over a batch, which are computed once, and
a head whose tensors learn. What a head says here is what its drafter says of the same text; a test
holds one against the other.

Shapes, here and below:  B rows of T tokens, A places of a row from which streams begin, Vd tokens
    of the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

from specengine.heads.block import rotate
from specengine.heads.head import Head, norm
from specengine.heads.layer_skip import exit_norm, exit_output
from specengine.heads.streaming import MATRICES, SCALE, factors_of, stream_embeddings
from specengine.models.architecture import Architecture, rope_frequencies
from specengine.models.load import TensorReader, read_layer
from specengine.models.weights import Layer

RANK: Final = 16
"""Of the change of the last layers."""


def exit_logits(head: Head, stream: torch.Tensor) -> torch.Tensor:
    """Return what an exit says behind each token, [B, T, Vd].

    Shapes:  stream [B, T, hidden], behind the layers in front of the exit.
    """
    return F.linear(norm(stream, exit_norm(head), head.sizes.norm_eps), exit_output(head))


def exit_tensors(hidden_size: int) -> dict[str, torch.Tensor]:
    """Return what an exit begins with, beside the target's norm and output layer."""
    return {"adapter.weight": torch.eye(hidden_size)}


@dataclass(frozen=True)
class Affine:
    """A frozen weight [out, in] and its bias."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows times the weight, plus the bias."""
        return F.linear(rows, self.weight, self.bias)


@dataclass(frozen=True)
class LastLayers:
    """The target's last layers, which do not learn."""

    sizes: Architecture
    layers: tuple[Layer[Affine], ...]

    @classmethod
    def of(
        cls, sizes: Architecture, weights: Mapping[str, torch.Tensor], indices: Sequence[int]
    ) -> LastLayers:
        """Take them out of a checkpoint's weights, by their Hugging Face names.

        Raises:  LoadError when one is missing or of a wrong shape.
        """
        frozen = {name: weight.detach() for name, weight in weights.items()}
        reader = TensorReader(frozen, torch.float32)
        layers = [read_layer(reader, sizes, index, Affine, are_paired=False) for index in indices]
        return cls(sizes, tuple(layers))


def pass_streams(
    head: Head,
    target: LastLayers,
    streams: Mapping[int, torch.Tensor],
    anchors: torch.Tensor,
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the streams behind some positions, [B, A, depth, hidden], and what gives their scores.

    Stream j behind position t stands at t + 1 + j and guesses the token behind that.

    Shapes:  streams [B, T, hidden] each, by layers passed: what enters each of the last layers;
        anchors [A].
    """
    sizes = target.sizes
    begin = streams[head.layers[0]][:, anchors].float()
    rows = begin[:, :, None] + stream_embeddings(head)
    for index, layer in zip(head.layers, target.layers, strict=True):
        changed = _ChangedLayer(head, sizes, layer, index)
        rows = rows + changed.attend(rows, streams[index].float(), anchors)
        rows = rows + changed.mlp(rows)
    weight = head.tensor("norm.weight", sizes.hidden_size)
    output = head.tensor("lm_head.weight", len(head.draft_ids), sizes.hidden_size)
    return rows, lambda rows: F.linear(norm(rows, weight, sizes.norm_eps), output)


def stream_tensors(
    sizes: Architecture,
    layers: Sequence[int],
    depth: int,
    generator: torch.Generator,
    rank: int = RANK,
) -> dict[str, torch.Tensor]:
    """Return what streams begin with, beside the target's norm and output layer: no change."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    shapes = ((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries))
    shapes += ((inner, hidden), (inner, hidden), (hidden, inner))
    tensors = {"embeddings": 0.1 * torch.randn(depth, hidden, generator=generator)}
    for layer in layers:
        for matrix, (num_out, num_in) in zip(MATRICES, shapes, strict=True):
            name = f"layers.{layer}.{matrix}"
            down = torch.randn(rank, num_in, generator=generator) / math.sqrt(num_in)
            tensors[f"{name}.lora_A.weight"] = down
            tensors[f"{name}.lora_B.weight"] = torch.zeros(num_out, rank)
    return tensors


@dataclass(frozen=True)
class _ChangedLayer:
    """A layer of the target as streams pass it."""

    head: Head
    sizes: Architecture
    layer: Layer[Affine]
    index: int

    def attend(self, rows: torch.Tensor, main: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Return what attention adds to streams, which see the text and those before them.

        Shapes:  rows and result [B, A, depth, hidden]; main [B, T, hidden], what enters the layer.
        """
        sizes, depth, num_tokens = self.sizes, rows.shape[2], main.shape[1]
        places = anchors[:, None] + 1 + torch.arange(depth, device=anchors.device)
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        entering = norm(rows, self.layer.attention_norm, sizes.norm_eps).flatten(1, 2)
        made = self._heads(self._product(self.layer.qkv, names, entering), places.flatten())
        queries, keys, values = (torch.unflatten(each, 1, places.shape) for each in made)
        queries = torch.unflatten(queries, -2, (sizes.num_kv_heads, -1))
        text_keys, text_values = self._text(main)
        scale = sizes.head_dim**-0.5
        over_text = torch.einsum("bajkgd,bskd->bakgjs", queries, text_keys).float() * scale
        over_own = torch.einsum("bajkgd,baikd->bakgji", queries, keys).float() * scale
        behind = torch.arange(num_tokens, device=anchors.device) > anchors[:, None]
        over_text = over_text.masked_fill(behind[:, None, None, None], float("-inf"))
        later = torch.ones(depth, depth, dtype=torch.bool, device=anchors.device).triu(1)
        over_own = over_own.masked_fill(later, float("-inf"))
        shares = torch.cat((over_text, over_own), -1).softmax(-1).to(values.dtype)
        attended = torch.einsum("bakgjs,bskd->bajkgd", shares[..., :num_tokens], text_values)
        attended = attended + torch.einsum("bakgji,baikd->bajkgd", shares[..., num_tokens:], values)
        return self._product(self.layer.output, ("self_attn.o_proj",), attended.flatten(-3))

    def mlp(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the other half of the layer adds to streams."""
        entering = norm(rows, self.layer.mlp_norm, self.sizes.norm_eps)
        names = ("mlp.gate_proj", "mlp.up_proj")
        gate, up = self._product(self.layer.gate_up, names, entering).chunk(2, -1)
        return self._product(self.layer.down, ("mlp.down_proj",), F.silu(gate) * up)

    @torch.no_grad()
    def _text(self, main: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [B, T, KV, D] of the text: the target's, which do not learn."""
        projected = self.layer.qkv(norm(main, self.layer.attention_norm, self.sizes.norm_eps))
        return self._heads(projected, torch.arange(main.shape[1], device=main.device))[1:]

    def _heads(
        self, projected: torch.Tensor, places: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries [B, N, H, D], keys, values [B, N, KV, D] of rows at positions [N]."""
        sizes, layer = self.sizes, self.layer
        numbers = [sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads]
        heads = torch.unflatten(projected, -1, (-1, sizes.head_dim))
        queries, keys, values = torch.split(heads, numbers, -2)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries = norm(queries, layer.query_norm, sizes.norm_eps)
            keys = norm(keys, layer.key_norm, sizes.norm_eps)
        angles = torch.outer(places.double(), rope_frequencies(sizes).to(places.device))
        turns = (angles.cos().float(), angles.sin().float())
        return rotate(queries, turns), rotate(keys, turns), values

    def _product(self, matrix: Affine, names: Sequence[str], rows: torch.Tensor) -> torch.Tensor:
        """Return rows times a matrix with its change; the parts of it have these names."""
        changes: list[torch.Tensor] = []
        for name in names:
            factors = factors_of(self.head, self.index, name)
            changes.append(F.linear(F.linear(rows, factors.down), factors.up))
        return matrix(rows) + SCALE * torch.cat(changes, -1)
