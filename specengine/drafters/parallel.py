"""Drafts of several tokens by one pass of a small layer: masks stand for what is not known yet.

Source:  P-EAGLE, arXiv 2602.01469; the idea is An et al. 2025, arXiv 2504.18583.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, Draft
from specengine.heads.candidates import from_positions
from specengine.heads.features import FeatureNetwork
from specengine.heads.head_cache import HeadStore
from specengine.heads.reader import Reader
from specengine.sampling import GREEDY, Sampling

BREADTH: Final = 3
LEAST_CONFIDENCE: Final = 0.1


class ParallelDrafts:
    """Source that owns the network."""

    name = "parallel"

    def __init__(self, network: FeatureNetwork, store: HeadStore) -> None:
        self._network, self._store = network, store

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> ParallelDrafter:
        """Return a drafter with the rows that an earlier text has left."""
        return ParallelDrafter(self._network, self._store, prompt_ids)


class ParallelDrafter:
    """The layer on one request."""

    def __init__(
        self, network: FeatureNetwork, store: HeadStore, prompt_ids: Sequence[int]
    ) -> None:
        self._network = network
        self._reader = Reader(network, store, prompt_ids)
        self._draft_ids = network.head.ids()
        self.layers = tuple(sorted(set(network.head.layers)))

    @torch.inference_mode()
    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Take the features of committed tokens."""
        self._reader.observe(streams, start)

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
            ParallelDrafts.name,
            LEAST_CONFIDENCE,
            BREADTH,
        )

    def close(self) -> None:
        """Leave the rows to the next request."""
        self._reader.close()

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
