"""A draft model cut out of the target: a few of its layers, over a reduced vocabulary.

It reads tokens alone. What it lacks beside heads on the target's streams, it has in freedom: it can
read text that the target has never computed here, and is a model like any other.

Source:  pruning whole layers and distilling, Sreenivas et al. 2024, arXiv 2408.11796; as a draft
    model, Leviathan et al. 2023, arXiv 2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specengine.heads.block import Attend, Block, turns_of
from specengine.heads.head import Head, MakeProduct, norm


class PrunedNetwork:
    """A head of the kind ``draft_model``: ``layers.0.*`` and so on, ``norm``, ``lm_head``."""

    def __init__(self, head: Head, embedding: torch.Tensor, make: MakeProduct) -> None:
        """Take a head and the target's embedding [V, hidden].

        Raises:  LoadError when a tensor is missing or of another shape.
        """
        self.head = head
        self._embedding = embedding
        hidden = head.sizes.hidden_size
        self.num_layers = 0
        self._blocks: list[Block] = []
        self._norms: list[torch.Tensor] = []
        while not self._blocks or head.has(f"layers.{self.num_layers}.input_layernorm.weight"):
            name = f"layers.{self.num_layers}"
            self._norms.append(head.tensor(f"{name}.input_layernorm.weight", hidden))
            self._blocks.append(Block.of(head, name, hidden, make))
            self.num_layers += 1
        self.draft_ids = head.draft_ids.to(embedding.device)
        self.norm = head.tensor("norm.weight", hidden)
        self._output = make(head.tensor("lm_head.weight", len(head.draft_ids), hidden), None)

    def run(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attends: Sequence[Attend]
    ) -> torch.Tensor:
        """Return the rows behind the last layer.

        Shapes:  token_ids [..., T] at the positions [T]; result [..., T, hidden].
        """
        stream = self._embedding[token_ids.to(self._embedding.device)].float()
        turns = turns_of(self.head.sizes, positions.to(stream.device))
        for block, weight, attend in zip(self._blocks, self._norms, attends, strict=True):
            entering = norm(stream, weight, self.head.sizes.norm_eps)
            stream = block(entering, stream, turns, attend)
        return stream

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores of its own tokens, [..., T, Vd]."""
        return self._output(norm(rows, self.norm, self.head.sizes.norm_eps))
