"""Medusa heads: each guesses a token at its own distance from the target's last hidden state.

Source:  Cai et al. 2024, arXiv 2401.10774, section 2.1.1 (residual block and output layer). Here
    all heads share one output layer over a reduced vocabulary, which is most of the cost.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from specengine.heads.head import Head, MakeProduct, norm


class MedusaNetwork:
    """``depth`` residual blocks on one row, and output layers."""

    def __init__(self, head: Head, make: MakeProduct) -> None:
        self.head = head
        hidden = head.sizes.hidden_size
        blocks = [
            (
                head.tensor(f"heads.{number}.linear.weight", hidden, hidden),
                head.tensor(f"heads.{number}.linear.bias", hidden),
            )
            for number in range(head.depth)
        ]
        # One product for all heads: [depth x hidden, hidden].
        self._blocks = make(
            torch.cat([each[0] for each in blocks]), torch.cat([each[1] for each in blocks])
        )
        self._norm = head.tensor("norm.weight", hidden)
        self._output = make(head.tensor("lm_head.weight", len(head.draft_ids), hidden), None)

    def logits(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return each head's scores, [T, depth, Vd]; head 0 guesses the token after the next."""
        (layer,) = self.head.layers
        rows = norm(streams[layer], self._norm, self.head.sizes.norm_eps)
        changes = self._blocks(rows).view(*rows.shape[:-1], self.head.depth, rows.shape[-1])
        own = rows[..., None, :] + F.silu(changes)
        return self._output(own.flatten(0, -2)).view(*own.shape[:-1], -1)
