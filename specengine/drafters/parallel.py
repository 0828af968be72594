"""Drafts of several tokens by one pass of a small layer: masks stand for what is not known yet.

Source:  P-EAGLE, arXiv 2602.01469; the idea is An et al. 2025, arXiv 2504.18583.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, Draft
from specengine.drafters.feature_drafter import FeatureDrafter
from specengine.heads.candidates import from_positions

NAME: Final = "parallel"
BREADTH: Final = 3
LEAST_CONFIDENCE: Final = 0.1


class ParallelDrafter(FeatureDrafter):
    """The layer on one request."""

    @functools.cached_property
    def _draft_ids(self) -> list[int]:
        return self._network.head.ids()

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the best tree over guesses for each of the next positions."""
        row = self._reader.read(token_ids) if max_tokens > 0 else None
        if row is None:
            return NOTHING
        rows = row[None]
        num_masks = min(self._network.head.depth, max_tokens) - 1
        if num_masks:
            rows = torch.cat((rows, self._masked(len(token_ids) - 1, num_masks)))
        return from_positions(
            self._network.logits(rows).softmax(-1),
            self._draft_ids,
            max_tokens,
            NAME,
            LEAST_CONFIDENCE,
            BREADTH,
        )

    def _masked(self, start: int, num_masks: int) -> torch.Tensor:
        """Return the rows of so many masks from a position on."""
        cache = self._reader.caches[0]
        committed = cache.length
        cache.make_room(num_masks)
        positions = list(range(start, start + num_masks))
        embedding, features = self._network.masks()
        rows = self._network.run_embedded(
            embedding.expand(num_masks, -1),
            features[:num_masks],
            torch.tensor(positions),
            cache.appending(positions),
        )
        cache.truncate(committed)
        return rows
