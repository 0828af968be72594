"""Keys and values of a head's layers for one text, and a store of those of earlier texts.

Rows carry their positions, as some may be missing: a head sees only what the target has computed
since somebody asked for its streams.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch

from specengine.heads.block import Attend, weigh
from specengine.heads.head import HeadSizes


class HeadCache:
    """Rows of one layer, the last of them perhaps a draft that is forgotten again.

    A row depends on the text up to ``lag`` tokens behind its position.
    """

    def __init__(self, sizes: HeadSizes, capacity: int, device: torch.device, lag: int = 1) -> None:
        self.lag = lag
        shape = (capacity, sizes.num_kv_heads, sizes.head_dim)
        self._keys = torch.zeros(shape, device=device)
        self._values = torch.zeros(shape, device=device)
        self.positions: list[int] = []
        """Of the rows, ascending in what is committed."""

    @property
    def length(self) -> int:
        """Return the number of rows."""
        return len(self.positions)

    @property
    def capacity(self) -> int:
        """Return how many rows fit."""
        return self._keys.shape[0]

    @property
    def num_bytes(self) -> int:
        """Return the memory of keys and values."""
        return 2 * self._keys.nbytes

    def truncate(self, length: int) -> None:
        """Forget the rows from ``length`` on."""
        del self.positions[length:]

    def make_room(self, num_rows: int) -> None:
        """Forget the oldest rows, half of all at least, when so many more would not fit."""
        assert num_rows <= self.capacity // 2
        if self.length + num_rows <= self.capacity:
            return
        kept = min(self.length, self.capacity // 2 - 1)
        for tensor in (self._keys, self._values):
            tensor[:kept] = tensor[self.length - kept : self.length].clone()
        self.positions = self.positions[self.length - kept :]

    def append(self, positions: Sequence[int], keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows; shapes [T, KV, D]."""
        start, end = self.length, self.length + len(positions)
        self._keys[start:end], self._values[start:end] = keys, values
        self.positions += positions

    def appending(self, positions: Sequence[int], sees: torch.Tensor | None = None) -> Attend:
        """Return how rows at these positions attend, which then are part of the cache.

        All of them see all rows before. Among themselves a row sees those before it, or with
        ``sees`` [T, n], bool, of the last n rows those that it says: earlier nodes of a tree.
        """
        start, num_rows = self.length, len(positions)

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            end = start + num_rows
            self.append(positions, keys, values)
            hidden = torch.zeros(num_rows, end, dtype=torch.bool, device=keys.device)
            if sees is None:
                own = torch.ones(num_rows, num_rows, dtype=torch.bool, device=keys.device)
                hidden[:, start:] = own.triu_(1)
            else:
                hidden[:, end - sees.shape[1] :] = ~sees
            return weigh(queries, self._keys[:end], self._values[:end], hidden)

        return attend

    def drafting(self, length: torch.Tensor, sees: torch.Tensor) -> Attend:
        """Return how the last of some drafted rows attend, in shapes that are always the same.

        The drafted rows stand behind ``length`` [1] committed ones, which only the device knows,
        and do not become part of the cache. Each row sees all that are committed and of the n
        drafted ones those that ``sees`` [T, n], bool, says. The others are multiplied by zero, so
        what the cache holds is finite.
        """
        num_rows, num_drafted = sees.shape

        def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            places = length + torch.arange(num_drafted, device=keys.device)
            self._keys.index_copy_(0, places[-num_rows:], keys)
            self._values.index_copy_(0, places[-num_rows:], values)
            is_behind = torch.arange(self.capacity, device=keys.device) >= length
            hidden = is_behind.repeat(num_rows, 1).index_copy_(1, places, ~sees)
            return weigh(queries, self._keys, self._values, hidden)

        return attend


class HeadStore:
    """Caches that requests take over from each other, as typing goes on from what was there."""

    def __init__(self, new_caches: Callable[[], list[HeadCache]], num_kept: int) -> None:
        """``new_caches`` makes those of one text, one for each layer; so many texts are kept."""
        self._new_caches, self._num_kept = new_caches, num_kept
        self._kept: list[tuple[int, list[int], list[HeadCache]]] = []
        self._clock = itertools.count()

    @property
    def num_bytes(self) -> int:
        """Return the memory of the caches that no request holds."""
        return sum(cache.num_bytes for _, _, caches in self._kept for cache in caches)

    def fill(self) -> list[list[HeadCache]]:
        """Make the caches of all texts that are kept, and return them."""
        while len(self._kept) < self._num_kept:
            self.release(self._new_caches(), [])
        return [caches for _, _, caches in self._kept]

    def lease(self, token_ids: Sequence[int]) -> list[HeadCache]:
        """Return caches with the rows of the longest text that this one shares."""
        best = max(self._kept, key=lambda kept: (shared(kept[1], token_ids), kept[0]), default=None)
        if best is None or not shared(best[1], token_ids):
            if len(self._kept) < self._num_kept:
                return self._new_caches()
            best = min(self._kept, key=lambda kept: kept[0])
        self._kept = [kept for kept in self._kept if kept is not best]
        length = shared(best[1], token_ids)
        for cache in best[2]:
            cache.truncate(sum(position + cache.lag < length for position in cache.positions))
        return best[2]

    def release(self, caches: list[HeadCache], token_ids: Sequence[int]) -> None:
        """Take caches back, with the text that their rows belong to."""
        self._kept.append((next(self._clock), list(token_ids), caches))
        if len(self._kept) > self._num_kept:
            self._kept.remove(min(self._kept, key=lambda kept: kept[0]))


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike."""
    limit = min(len(first), len(second))
    return next((at for at in range(limit) if first[at] != second[at]), limit)
