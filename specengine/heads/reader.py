"""Keeps the rows of a feature network in step with the text of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch

from specengine.heads.features import FeatureNetwork
from specengine.heads.head_cache import HeadCache, HeadStore

MOST_ROWS: Final = 256
"""Rows that are read in one go; of a longer prompt the last ones, which is where a head looks."""


class Reader:
    """What a drafter knows of one text.

    Module m reads, for position i, what module m - 1 made of it and token i + m + 1. So each waits
    for tokens that the one before it does not need.
    """

    def __init__(
        self, network: FeatureNetwork, store: HeadStore, prompt_ids: Sequence[int]
    ) -> None:
        self._network, self._store = network, store
        self.caches: list[HeadCache] = store.lease(prompt_ids)
        self._waiting: list[list[tuple[int, torch.Tensor]]] = [[] for _ in self.caches]
        """For each module positions and features that are not read yet."""
        self._read_ids: list[int] = list(prompt_ids)
        self._last: tuple[int, torch.Tensor] | None = None

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        """Take the streams of committed tokens; see ``Observer``."""
        features = self._network.fuse(streams)
        waiting = self._waiting[0]
        waiting += [(start + at, feature) for at, feature in enumerate(features)]
        del waiting[:-MOST_ROWS]

    def read(self, token_ids: Sequence[int]) -> torch.Tensor | None:
        """Return what the first module makes of the last position but one, [hidden].

        It is what guesses the next token. None where the target has not shown that position.
        """
        self._read_ids = list(token_ids)
        for module in range(len(self.caches)):
            self._read_module(module, token_ids)
        if self._last is None or self._last[0] != len(token_ids) - 2:
            return None
        return self._last[1]

    def close(self) -> None:
        """Give the caches back."""
        self._store.release(self.caches, self._read_ids)

    def _read_module(self, module: int, token_ids: Sequence[int]) -> None:
        waiting, cache = self._waiting[module], self.caches[module]
        ready = [row for row in waiting if row[0] + module + 1 < len(token_ids)]
        if not ready:
            return
        self._waiting[module] = waiting[len(ready) :]
        positions = [position for position, _ in ready]
        # The end of a stored text may come again, with what really followed.
        cache.truncate(sum(position < positions[0] for position in cache.positions))
        cache.make_room(len(ready))
        features = torch.stack([feature for _, feature in ready])
        following = [token_ids[position + module + 1] for position in positions]
        both = torch.tensor([following, positions], device=features.device)
        rows = self._network.run(
            both[0],
            features,
            both[1],
            cache.appending(positions),
            module,
        )
        if module == 0:
            self._last = (positions[-1], rows[-1])
        if module + 1 < len(self.caches):
            self._waiting[module + 1] += zip(positions, rows, strict=True)
