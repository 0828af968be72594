"""Drafts by Medusa heads: a tree over what each of them guesses for its own distance.

Source:  Cai et al. 2024, arXiv 2401.10774, section 2.1.2; the tree follows the heads' confidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, Draft
from specengine.heads.candidates import from_positions
from specengine.heads.medusa import MedusaNetwork
from specengine.sampling import GREEDY, Sampling

BREADTH: Final = 3
LEAST_CONFIDENCE: Final = 0.1


class MedusaDrafts:
    """Source that owns the heads."""

    name = "medusa"

    def __init__(self, network: MedusaNetwork) -> None:
        self._network = network

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> MedusaDrafter:
        """Return a drafter, which waits for the first hidden state."""
        return MedusaDrafter(self._network)


class MedusaDrafter:
    """The heads on one request: all they need is the last hidden state and the token behind it."""

    def __init__(self, network: MedusaNetwork) -> None:
        self._network = network
        self._draft_ids = network.head.ids()
        self._last: dict[int, torch.Tensor] = {}
        self._position = -1
        self.layers = network.head.layers

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Keep the last committed token's stream."""
        self._last = {layer: rows[-1:] for layer, rows in streams.items()}
        self._position = start + len(next(iter(streams.values()))) - 1

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the best tree of what the heads guess."""
        if max_tokens <= 0 or self._position != len(token_ids) - 2:
            return NOTHING
        return from_positions(
            self._network.logits(self._last, torch.tensor([token_ids[-1]]))[0].softmax(-1),
            self._draft_ids,
            max_tokens,
            MedusaDrafts.name,
            LEAST_CONFIDENCE,
            BREADTH,
        )

    def close(self) -> None:
        """Do nothing: the stream goes with the object."""
