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
from specengine.heads.head import Head, MakeProduct, norm


class FeatureNetwork:
    """A head of the kinds ``eagle``, ``parallel`` and ``mtp``."""

    def __init__(self, head: Head, embedding: torch.Tensor, make: MakeProduct) -> None:
        """Take a head, and the target's embedding [V, hidden]."""
        if head.kind not in ("eagle", "parallel", "mtp"):
            raise LoadError(f"a {head.kind} head does not draft from features.")
        self.head = head
        self._embedding = embedding
        hidden, eps = head.sizes.hidden_size, head.sizes.norm_eps
        self._eps = eps
        self.is_mtp = head.kind == "mtp"
        self.num_modules = head.depth if self.is_mtp else 1
        num_in = hidden if self.is_mtp else 2 * hidden
        names = [f"layers.{number}" for number in range(self.num_modules)]
        self._blocks = [Block.of(head, name, num_in, make) for name in names]
        if self.is_mtp:
            fusers = [head.tensor(f"{name}.eh_proj.weight", hidden, 2 * hidden) for name in names]
            self._fusers = [make(weight, None) for weight in fusers]
        else:
            fuser = head.tensor("fc.weight", hidden, len(head.layers) * hidden)
            self._fusers = [make(fuser, None)]
        self._output = make(head.tensor("lm_head.weight", len(head.draft_ids), hidden), None)

    def fuse(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return the features of positions that the target has computed, [..., T, hidden]."""
        read = [streams[layer].float() for layer in self.head.layers]
        return read[0] if self.is_mtp else self._fusers[0](torch.cat(read, -1))

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
        turns = turns_of(self.head.sizes, positions)
        block = self._blocks[module]
        token_norm, feature_norm = (
            ("enorm", "hnorm") if self.is_mtp else ("input_layernorm", "hidden_norm")
        )
        both = torch.cat(
            (
                norm(embedded, self._vector(module, token_norm), self._eps),
                norm(features, self._vector(module, feature_norm), self._eps),
            ),
            -1,
        )
        if not self.is_mtp:
            return block(both, features, turns, attend)
        stream = self._fusers[module](both)
        entering = norm(stream, self._vector(module, "input_layernorm"), self._eps)
        return block(entering, stream, turns, attend)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores of the head's own tokens, [..., T, Vd]."""
        weight = self.head.tensor("norm.weight", self.head.sizes.hidden_size)
        return self._output(norm(rows, weight, self._eps))

    def masks(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what stands for tokens and features that are not known yet, for ``parallel``.

        Shapes:  the embedding [hidden], the same in each place; features [depth - 1, hidden].
        """
        hidden = self.head.sizes.hidden_size
        return (
            self.head.tensor("mask_embedding", hidden),
            self.head.tensor("mask_features", self.head.depth - 1, hidden),
        )

    def _vector(self, module: int, name: str) -> torch.Tensor:
        return self.head.tensor(f"layers.{module}.{name}.weight", self.head.sizes.hidden_size)
