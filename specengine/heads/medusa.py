"""Medusa heads: each guesses a token at its own distance from the target's last hidden state.

Ours share one output layer over a reduced vocabulary, which is most of the cost, and have a norm of
their own. Those of others have an output layer each, and the target's norm in front.

Source:  Cai et al. 2024, arXiv 2401.10774, section 2.1.1 (residual block and output layer).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from specengine.heads.head import Head, MakeProduct, norm


class MedusaNetwork:
    """``depth`` residual blocks on one row, and output layers."""

    def __init__(self, head: Head, make: MakeProduct) -> None:
        """Take a head.

        Raises:  LoadError when a tensor is missing or of another shape.
        """
        self.head = head
        hidden, num_ids = head.sizes.hidden_size, len(head.draft_ids)
        numbers = range(head.depth)
        blocks = [
            (
                head.tensor(f"heads.{number}.linear.weight", hidden, hidden),
                head.tensor(f"heads.{number}.linear.bias", hidden),
            )
            for number in numbers
        ]
        # One product for all heads: [depth x hidden, hidden].
        self._blocks = make(
            torch.cat([each[0] for each in blocks]), torch.cat([each[1] for each in blocks])
        )
        self._norm = head.tensor("norm.weight", hidden)
        self._output = None
        self._outputs = []
        if head.has("heads.0.lm_head.weight"):
            self._outputs = [
                make(head.tensor(f"heads.{number}.lm_head.weight", num_ids, hidden), None)
                for number in numbers
            ]
        else:
            self._output = make(head.tensor("lm_head.weight", num_ids, hidden), None)

    def logits(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return each head's scores, [T, depth, Vd]; head 0 guesses the token after the next."""
        own = self.rows(streams)
        if self._output is not None:
            return self._output(own.flatten(0, -2)).view(*own.shape[:-1], -1)
        return torch.stack([self.scores(at, row) for at, row in enumerate(own.unbind(-2))], -2)

    def rows(self, streams: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return what each head makes of the streams, [..., T, depth, hidden]."""
        (layer,) = self.head.layers
        rows = norm(streams[layer], self._norm, self.head.sizes.norm_eps)
        changes = self._blocks(rows).view(*rows.shape[:-1], self.head.depth, rows.shape[-1])
        return rows[..., None, :] + F.silu(changes)

    def scores(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores of one head's rows, [..., Vd]."""
        return (self._output or self._outputs[number])(rows)
