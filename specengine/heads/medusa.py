"""Medusa heads: each guesses a token at its own distance from the target's last hidden state.

Ours share one output layer over a reduced vocabulary, which is most of the cost, and have a norm of
their own. They also see the token that was chosen by that state, which says more than all that can
be guessed without it and costs next to nothing. Those of others have an output layer each, the
target's norm in front, and see no token.

Source:  Cai et al. 2024, arXiv 2401.10774, section 2.1.1 (residual block and output layer); Ankner
    et al. 2024, arXiv 2402.05109, section 3 (heads that see tokens, here the one that is known).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from specengine.heads.head import Head, MakeProduct, norm


class MedusaNetwork:
    """``depth`` residual blocks on one row, and output layers."""

    def __init__(self, head: Head, embedding: torch.Tensor, make: MakeProduct) -> None:
        """Take a head and the target's embedding, [V, hidden].

        Raises:  LoadError when a tensor is missing or of another shape.
        """
        self.head = head
        hidden, num_ids = head.sizes.hidden_size, len(head.draft_ids)
        numbers = range(head.depth)
        parts = ["linear"]
        self._embedding, self._token_norm = embedding, None
        if any("token" in name for name in head.tensors):
            parts.append("token")
            self._token_norm = head.tensor("token_norm.weight", hidden)
        blocks = [
            torch.cat(
                [head.tensor(f"heads.{number}.{part}.weight", hidden, hidden) for part in parts], 1
            )
            for number in numbers
        ]
        biases = [head.tensor(f"heads.{number}.linear.bias", hidden) for number in numbers]
        # One product for all heads: [depth x hidden, hidden or twice that].
        self._blocks = make(torch.cat(blocks), torch.cat(biases))
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

    def logits(self, streams: Mapping[int, torch.Tensor], following: torch.Tensor) -> torch.Tensor:
        """Return each head's scores, [T, depth, Vd]; head 0 guesses the token after the next.

        Shapes:  following [T]: the next tokens.
        """
        own = self.rows(streams, following)
        if self._output is not None:
            return self._output(own.flatten(0, -2)).view(*own.shape[:-1], -1)
        return torch.stack([self.scores(at, row) for at, row in enumerate(own.unbind(-2))], -2)

    def rows(self, streams: Mapping[int, torch.Tensor], following: torch.Tensor) -> torch.Tensor:
        """Return what each head makes of the streams, [..., T, depth, hidden].

        Shapes:  following [..., T]: the tokens behind those of the streams.
        """
        (layer,) = self.head.layers
        eps = self.head.sizes.norm_eps
        rows = seen = norm(streams[layer], self._norm, eps)
        if self._token_norm is not None:
            tokens = norm(self._embedding[following], self._token_norm, eps)
            seen = torch.cat((rows, tokens), -1)
        changes = self._blocks(seen).view(*rows.shape[:-1], self.head.depth, rows.shape[-1])
        return rows[..., None, :] + F.silu(changes)

    def scores(self, number: int, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores of one head's rows, [..., Vd]."""
        return (self._output or self._outputs[number])(rows)
