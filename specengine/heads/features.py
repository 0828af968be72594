"""Networks that draft token by token from the target's hidden states: EAGLE and MTP modules.

A row stands for a position of the text: it reads the token *behind* that position and a *feature*
of the position itself, and guesses the token after that. The feature comes from the target where it
has computed the position, and is the network's own output where it has not.

Source:  EAGLE, Li et al. 2024, arXiv 2401.15077; EAGLE-3, Li et al. 2025, arXiv 2503.01840 (three
    fused layers, section 3.1); multi-token prediction, DeepSeek-V3, arXiv 2412.19437, section 2.2;
    several positions at once from masks: P-EAGLE, arXiv 2602.01469.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from specengine.errors import LoadError
from specengine.heads.block import Attend, Block, turns_of
from specengine.heads.entries import entry_of
from specengine.heads.head import Head, MakeProduct, norm
from specengine.models.weights import Product


class FeatureNetwork:
    """A head of the kinds ``eagle``, ``eagle1``, ``parallel`` and ``mtp``."""

    def __init__(
        self,
        head: Head,
        embedding: torch.Tensor,
        make: MakeProduct,
        output: Product | None = None,
    ) -> None:
        """Take a head, the target's embedding [V, hidden], and its output layer for ``eagle1``.

        Raises:  LoadError when a tensor is missing or of another shape.
        """
        if head.kind not in ("eagle", "eagle1", "parallel", "mtp"):
            raise LoadError(f"a {head.kind} head does not draft from features.")
        self.head = head
        self._embedding = embedding
        if head.has("embed_tokens.weight"):
            self._embedding = head.tensor("embed_tokens.weight", *embedding.shape)
        hidden = head.sizes.hidden_size
        self.num_modules = head.depth if head.kind == "mtp" else 1
        self._entries = [entry_of(head, module, make) for module in range(self.num_modules)]
        self._blocks = [
            Block.of(head, f"layers.{module}", entry.num_in, make)
            for module, entry in enumerate(self._entries)
        ]
        self.norm = head.tensor("norm.weight", hidden)
        self.draft_ids = head.draft_ids.to(embedding.device)
        self._masks = None
        if head.kind == "parallel":
            self._masks = (
                head.tensor("mask_embedding", hidden),
                head.tensor("mask_features", head.depth - 1, hidden),
            )
        if output is None:
            output = make(head.tensor("lm_head.weight", len(head.draft_ids), hidden), None)
        self._output = output

    def fuse(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return the features of positions that the target has computed, [..., T, hidden]."""
        return self._entries[0].fuse([streams[layer].float() for layer in self.head.layers])

    def run(
        self,
        token_ids: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        module: int = 0,
    ) -> torch.Tensor:
        """Return the network's rows, which are features of the next positions.

        Shapes:  token_ids [..., T], those behind the positions [T]; features and result
            [..., T, hidden].
        """
        return self.run_embedded(
            self._embedding[token_ids].float(), features, positions, attend, module
        )

    def run_embedded(
        self,
        embedded: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
        module: int = 0,
    ) -> torch.Tensor:
        """Do ``run`` for tokens that are embedded already."""
        entering, residual = self._entries[module](embedded, features)
        turns = turns_of(self.head.sizes, positions.to(features.device))
        rows = self._blocks[module](entering, residual, turns, attend)
        return self._normed(rows) if self.head.variant.norm_output else rows

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores of the head's own tokens, [..., T, Vd]."""
        is_scored = self.head.kind == "eagle1" or self.head.variant.norm_output
        return self._output(rows if is_scored else self._normed(rows))

    def masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what stands for tokens and features that are not known yet, for ``parallel``.

        Shapes:  the embedding [hidden], the same in each place; features [depth - 1, hidden].
        """
        assert self._masks is not None, f"a {self.head.kind} head has no masks"
        return self._masks

    def _normed(self, rows: torch.Tensor) -> torch.Tensor:
        return norm(rows, self.norm, self.head.sizes.norm_eps)
