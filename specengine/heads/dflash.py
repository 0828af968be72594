"""A network that guesses a block of tokens in one pass, from masks and the target's streams.

Every position that the target has computed gives one row of *context*, whose keys and values enter
each layer beside the block's own. The block is the last known token, the anchor, and masks behind
it; its rows see the context and all of each other.

Source:  DFlash, Chen et al. 2026, arXiv 2602.06036.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from specengine.errors import LoadError
from specengine.heads.block import Block, turns_of
from specengine.heads.head import Head, MakeProduct, norm
from specengine.heads.head_cache import HeadCache
from specengine.models.weights import Product


class DFlashNetwork:
    """A head of the kind ``dflash``; each of its layers has a cache."""

    def __init__(
        self,
        head: Head,
        embedding: torch.Tensor,
        make: MakeProduct,
        output: Product | None = None,
    ) -> None:
        """Take a head, and the target's embedding [V, hidden] and output layer.

        Raises:  LoadError when a tensor is missing or of another shape.
        """
        self.head = head
        hidden = head.sizes.hidden_size
        self._embedding = embedding
        if head.has("embed_tokens.weight"):
            self._embedding = head.tensor("embed_tokens.weight", *embedding.shape)
        if not 0 <= head.variant.mask_id < len(self._embedding):
            raise LoadError(
                f"the dflash head masks with token {head.variant.mask_id}; its target embeds "
                f"{len(self._embedding)}.",
                hint="It was trained for another model.",
            )
        self.num_layers = len(
            {name.split(".")[1] for name in head.tensors if name[:7] == "layers."}
        )
        names = [f"layers.{number}" for number in range(self.num_layers)]
        self._blocks = [Block.of(head, name, hidden, make) for name in names]
        self._norms = [head.tensor(f"{name}.input_layernorm.weight", hidden) for name in names]
        self._fuser = make(head.tensor("fc.weight", hidden, len(head.layers) * hidden), None)
        self._context_norm = head.tensor("hidden_norm.weight", hidden)
        self._norm = head.tensor("norm.weight", hidden)
        if output is None:
            output = make(head.tensor("lm_head.weight", len(head.draft_ids), hidden), None)
        self._output = output

    @property
    def block_size(self) -> int:
        """Return the rows of a pass: the anchor and masks."""
        return self.head.depth + (not self.head.variant.guesses_at_anchor)

    def context(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return the rows of positions that the target has computed, [T, hidden]."""
        read = torch.cat([streams[layer].float() for layer in self.head.layers], -1)
        return norm(self._fuser(read), self._context_norm, self.head.sizes.norm_eps)

    def remember(
        self, rows: torch.Tensor, positions: Sequence[int], caches: Sequence[HeadCache]
    ) -> None:
        """Store the context's keys and values of each layer."""
        turns = turns_of(self.head.sizes, torch.tensor(positions, device=rows.device))
        for block, cache in zip(self._blocks, caches, strict=True):
            _, keys, values = block.queries_keys_values(rows, turns)
            cache.append(positions, keys, values)

    def guess(self, anchor_id: int, position: int, caches: Sequence[HeadCache]) -> torch.Tensor:
        """Return the scores of the tokens behind an anchor, [depth, Vd].

        The block's rows are in the caches afterwards.
        """
        num_masks = self.block_size - 1
        token_ids = torch.tensor([anchor_id, *[self.head.variant.mask_id] * num_masks])
        stream = self._embedding[token_ids].float()
        positions = list(range(position, position + self.block_size))
        turns = turns_of(self.head.sizes, torch.tensor(positions, device=stream.device))
        sees = torch.ones(self.block_size, self.block_size, dtype=torch.bool)
        for block, weight, cache in zip(self._blocks, self._norms, caches, strict=True):
            entering = norm(stream, weight, self.head.sizes.norm_eps)
            stream = block(entering, stream, turns, cache.appending(positions, sees))
        rows = norm(stream, self._norm, self.head.sizes.norm_eps)
        return self._output(rows[self.block_size - self.head.depth :])
