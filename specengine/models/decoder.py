"""The forward pass of a Llama-family decoder: token ids in, logits out.

It knows no tokenizer, no sampling and no drafts. Whatever the number of rows, how the prompt was
cut into chunks, or how much of it came from a stored prefix: a position's logits have the same
bits. That is what linear.py and attention.py are shaped for.

The residual stream is float32; matrix products run in the weights' precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import KVCache, KVShape
from specengine.models.architecture import Architecture, rope_frequencies
from specengine.models.attention import attend, attend_tree, visibility
from specengine.models.linear import ROW_BLOCK
from specengine.models.rowwise import rotate, silu
from specengine.models.target import PROMPT_ROWS, Rows, Tap, Tree
from specengine.models.weights import Layer, Product, Weights


@dataclass(frozen=True)
class Pass:
    """What all layers of one forward pass know of a sequence."""

    cache: KVCache
    num_rows: int
    """Rows that are real; the others are padding."""
    rotation: torch.Tensor
    mask: torch.Tensor
    tree: Tree | None = None


class Kept:
    """Takes the residual streams that somebody wants, as they come."""

    def __init__(self, tap: Tap | None, num_rows: int) -> None:
        self._tap, self._num_rows = tap, num_rows

    def see(self, num_layers: int, hidden: torch.Tensor) -> None:
        """Keep the real rows of a stream that has passed so many layers, if they are wanted."""
        tap = self._tap
        if tap is None or num_layers not in tap.layers:
            return
        if num_layers == tap.layers[0]:
            size = (len(tap.layers), self._num_rows, hidden.shape[1])
            tap.streams = hidden.new_empty(size)
        tap.streams[tap.layers.index(num_layers)] = hidden[: self._num_rows]


class Decoder:
    """A target or a draft model; it keeps nothing between calls."""

    def __init__(
        self, architecture: Architecture, weights: Weights[Product], precision: str
    ) -> None:
        """Take weights whose rotated dimensions lie in pairs, see ``load.py``."""
        self.architecture = architecture
        self.weights = weights
        self.precision = precision
        self._frequencies = rope_frequencies(architecture)
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device

    @property
    def prompt_rows(self) -> int:
        """Return the rows of a pass that reads a prompt."""
        return PROMPT_ROWS

    @property
    def batch_rows(self) -> int:
        """Return how many rows of several sequences one pass can take."""
        return PROMPT_ROWS

    @torch.inference_mode()
    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        """Do ``forward`` for several sequences at once, each with the bits it has alone."""
        return self._forward(parts)

    @property
    def vocab_size(self) -> int:
        """Return the number of logits of a position."""
        return self.architecture.vocab_size

    @property
    def kv_shape(self) -> KVShape:
        """Return what a cache for this model must look like."""
        sizes = self.architecture
        return KVShape(
            sizes.num_layers, sizes.num_kv_heads, sizes.head_dim, self.dtype, self.device
        )

    @torch.inference_mode()
    def forward(
        self, token_ids: list[int], cache: KVCache, *, num_logits: int, tree: Tree | None = None
    ) -> torch.Tensor:
        """Append tokens to the cache and return the logits of the last ``num_logits`` of them.

        Shapes:  result [num_logits, V], float32; row i scores the token after that position.
        """
        (logits,) = self._forward([Rows(token_ids, cache, num_logits, tree)])
        return logits

    def _forward(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        """Compute some sequences together: products of all rows, attention of each by itself."""
        passes = [self._pass_of(rows) for rows in parts]
        hidden = torch.cat([self._embedded(rows) for rows in parts])
        sizes = [len(each.rotation) for each in passes]
        streams = torch.split(hidden, sizes)  # Views: what is added to the whole shows in them.
        kept = [Kept(rows.tap, len(rows.token_ids)) for rows in parts]
        for each, stream in zip(kept, streams, strict=True):
            each.see(0, stream)
        for index, layer in enumerate(self.weights.layers):
            hidden.add_(self._attention(layer, index, hidden, passes))
            hidden.add_(self._mlp(layer, hidden))
            for each, stream in zip(kept, streams, strict=True):
                each.see(index + 1, stream)
        for each in passes:
            each.cache.advance(each.num_rows)
        return [
            self._logits(stream[: each.num_rows][each.num_rows - rows.num_logits :])
            for rows, each, stream in zip(parts, passes, streams, strict=True)
        ]

    def _pass_of(self, rows: Rows) -> Pass:
        num_rows, start = len(rows.token_ids), rows.cache.length
        assert 0 <= rows.num_logits <= num_rows, f"{rows.num_logits} logits of {num_rows} rows"
        padded = num_rows + -num_rows % ROW_BLOCK
        rotation = self._rotation(start, padded)
        if rows.tree is not None:
            rotation[:num_rows] = rotation[rows.tree.depths]
        return Pass(rows.cache, num_rows, rotation, self._mask(start, padded), rows.tree)

    def _embedded(self, rows: Rows) -> torch.Tensor:
        """Return the stream of a sequence's rows as it begins, padded to whole blocks."""
        num_rows = len(rows.token_ids)
        padded = rows.token_ids + [0] * (-num_rows % ROW_BLOCK)
        hidden = self.weights.embedding[torch.tensor(padded, device=self.device)].float()
        if rows.inputs is not None:
            hidden[:num_rows] = rows.inputs
        return hidden

    def _attention(
        self, layer: Layer[Product], index: int, hidden: torch.Tensor, passes: Sequence[Pass]
    ) -> torch.Tensor:
        """Store the keys and values of a layer's rows and return what the rows attend to."""
        rotation = torch.cat([each.rotation for each in passes])
        queries, keys, values = self.project(layer, hidden, rotation)
        sizes = [len(each.rotation) for each in passes]
        pieces = zip(
            *(torch.split(each, sizes) for each in (queries, keys, values)), passes, strict=True
        )
        return layer.output(torch.cat([self._attended(index, *piece) for piece in pieces]))

    @staticmethod
    def _attended(
        index: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shared: Pass
    ) -> torch.Tensor:
        shared.cache.write(index, keys[: shared.num_rows], values[: shared.num_rows])
        tiles = shared.cache.tiles(index, shared.mask.shape[0])
        if shared.tree is not None:
            start = shared.cache.length
            return attend_tree(queries, *tiles, shared.mask, start, shared.tree.paths)
        return attend(queries, *tiles, shared.mask)

    def project(
        self, layer: Layer[Product], hidden: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries [T, H, D], keys and values [T, KV, D], the first two rotated."""
        sizes = self.architecture
        num_qk = sizes.num_heads + sizes.num_kv_heads
        qkv = layer.qkv(self._norm(hidden, layer.attention_norm))
        qkv = qkv.view(hidden.shape[0], num_qk + sizes.num_kv_heads, sizes.head_dim)
        queries_keys, values = qkv[:, :num_qk], qkv[:, num_qk:]
        if layer.query_norm is not None and layer.key_norm is not None:
            queries_keys = self._head_norms(queries_keys, layer.query_norm, layer.key_norm)
        queries_keys = rotate(queries_keys, rotation).to(self.dtype)
        return queries_keys[:, : sizes.num_heads], queries_keys[:, sizes.num_heads :], values

    def _mlp(self, layer: Layer[Product], hidden: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return layer.down(silu(gate) * up)

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows, weight.shape, weight, self.architecture.norm_eps).to(self.dtype)

    def _head_norms(
        self, queries_keys: torch.Tensor, query_norm: torch.Tensor, key_norm: torch.Tensor
    ) -> torch.Tensor:
        num_heads = self.architecture.num_heads
        rows = queries_keys.float()
        queries = self._norm(rows[:, :num_heads], query_norm)
        return torch.cat((queries, self._norm(rows[:, num_heads:], key_norm)), dim=1)

    def _rotation(self, start: int, num_rows: int) -> torch.Tensor:
        """Return cos + i sin of each position's angles, [T, 1, D / 2], complex64."""
        positions = torch.arange(start, start + num_rows, dtype=torch.float64)
        angles = torch.outer(positions, self._frequencies)
        turned = torch.polar(torch.ones_like(angles), angles)
        return turned.to(torch.complex64).to(self.device)[:, None]

    def _mask(self, start: int, num_rows: int) -> torch.Tensor:
        groups = self.architecture.num_heads // self.architecture.num_kv_heads
        return visibility(start, num_rows, groups, self.dtype, self.device)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        num_rows = hidden.shape[0]
        if num_rows == 0:
            return hidden.new_empty(0, self.vocab_size)
        padded = F.pad(hidden, (0, 0, 0, -num_rows % ROW_BLOCK))
        normed = self._norm(padded, self.weights.final_norm)
        return self.weights.head(normed)[:num_rows].float()
