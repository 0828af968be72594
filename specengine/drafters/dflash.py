"""Drafts of a block of tokens by one pass over masks beside the target's own features.

It is what ``parallel`` runs when the head is of this kind.

Source:  DFlash, Chen et al. 2026, arXiv 2602.06036.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, Draft
from specengine.heads.candidates import from_positions
from specengine.heads.dflash import DFlashNetwork
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.heads.reader import MOST_ROWS
from specengine.sampling import GREEDY, Sampling

BREADTH: Final = 3
LEAST_CONFIDENCE: Final = 0.1


class DFlashDrafts:
    """Source that owns the network."""

    name = "parallel"

    def __init__(self, network: DFlashNetwork, store: HeadStore) -> None:
        self._network, self._store = network, store

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> DFlashDrafter:
        """Return a drafter with the context that an earlier text has left."""
        return DFlashDrafter(self._network, self._store, prompt_ids)


class DFlashDrafter:
    """The network on one request."""

    def __init__(self, network: DFlashNetwork, store: HeadStore, prompt_ids: Sequence[int]) -> None:
        self._network, self._store = network, store
        self._draft_ids = network.head.ids()
        self._caches: list[HeadCache] = store.lease(prompt_ids)
        self._context: list[tuple[int, torch.Tensor]] = []
        """Positions and rows that are not in the caches yet."""
        self._read_ids = list(prompt_ids)
        self.layers = tuple(sorted(set(network.head.layers)))

    @torch.inference_mode()
    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Take the context of committed tokens."""
        newest = {layer: rows[-MOST_ROWS:] for layer, rows in streams.items()}
        rows = self._network.context(newest)
        first = start + len(next(iter(streams.values()))) - len(rows)
        self._context += [(first + at, row) for at, row in enumerate(rows)]
        del self._context[:-MOST_ROWS]

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the best tree of guesses for the next block."""
        self._read(token_ids)
        positions = self._caches[0].positions
        if max_tokens <= 0 or not positions or positions[-1] != len(token_ids) - 2:
            return NOTHING
        for cache in self._caches:
            cache.make_room(self._network.block_size)
        committed = self._caches[0].length
        scores = self._network.guess(token_ids[-1], len(token_ids) - 1, self._caches)
        for cache in self._caches:
            cache.truncate(committed)
        return from_positions(
            scores[:max_tokens].softmax(-1),
            self._draft_ids,
            max_tokens,
            DFlashDrafts.name,
            LEAST_CONFIDENCE,
            BREADTH,
        )

    def close(self) -> None:
        """Leave the context to the next request."""
        self._store.release(self._caches, self._read_ids)

    def _read(self, token_ids: Sequence[int]) -> None:
        self._read_ids = list(token_ids)
        if not self._context:
            return
        positions = [position for position, _ in self._context]
        for cache in self._caches:
            # The end of a stored text may come again.
            cache.truncate(sum(position < positions[0] for position in cache.positions))
            cache.make_room(len(positions))
        self._network.remember(
            torch.stack([row for _, row in self._context]), positions, self._caches
        )
        self._context = []
