"""Keys and values of one sequence: preallocated tensors and a length.

The cache knows positions, not tokens. Rows lie in *tiles* of ``TILE`` positions, because attention
always reads whole tiles in calls of one constant shape (see models/attention.py).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

TILE: Final = 256
"""Positions in a tile."""


@dataclass(frozen=True)
class KVShape:
    """What a decoder needs of a cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    keys_by_dim: bool = False
    """Whether a tile of keys lies [D, TILE], as the native pass writes and reads it."""
    spare_rows: int = 0
    """Rows behind the capacity, for the padding of passes of one width. With any, all positions lie
    in one tile."""

    def num_bytes(self, capacity: int) -> int:
        """Return the size of a cache for ``capacity`` positions."""
        num_rows = _round_up(capacity) + self.spare_rows
        return (
            2 * self.num_layers * self.num_kv_heads * self.head_dim * num_rows * self.dtype.itemsize
        )


class KVCache:
    """Keys and values of positions 0 to ``length`` - 1, in tensors that never grow."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        num_tiles, tile = _round_up(capacity) // TILE, TILE
        if shape.spare_rows:
            num_tiles, tile = 1, _round_up(capacity) + shape.spare_rows
        size = (shape.num_layers, num_tiles, shape.num_kv_heads, tile, shape.head_dim)
        self._tile = tile
        self._keys_by_dim = shape.keys_by_dim
        # Zeros, not empty: masked positions are multiplied by zero and must be finite.
        self._keys = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self._values = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self.capacity: Final = _round_up(capacity)
        self.length = 0

    @property
    def num_bytes(self) -> int:
        """Return the size of both tensors."""
        return 2 * self._keys.nbytes

    @property
    def pointers(self) -> tuple[int, int]:
        """Return where keys and values lie, [L, tiles, KV, …], for the native pass."""
        return self._keys.data_ptr(), self._values.data_ptr()

    def layers(self, first: int, last: int) -> KVCache:
        """Return a view of some layers, numbered from 0 on: the same rows, a length of its own.

        The length begins as this one's. Rows that are written behind it stand behind this one's
        too, so whoever appends here writes over them, and none that is stored is touched as long as
        the view is not truncated.
        """
        assert 0 <= first < last <= self._keys.shape[0], f"layers {first} to {last}"
        view = copy.copy(self)
        view._keys, view._values = self._keys[first:last], self._values[first:last]
        return view

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store rows behind ``length`` for one layer; ``length`` itself does not move.

        Shapes:  keys, values [T, KV, D].
        """
        assert not self._keys_by_dim, "the native pass writes its rows itself"
        start, end = self.length, self.length + keys.shape[0]
        assert end <= self.capacity, f"{end} positions in a cache of {self.capacity}"
        while start < end:
            tile, offset = divmod(start, self._tile)
            num_rows = min(end - start, self._tile - offset)
            source = slice(start - self.length, start - self.length + num_rows)
            target = slice(offset, offset + num_rows)
            self._keys[layer, tile, :, target] = keys[source].transpose(0, 1)
            self._values[layer, tile, :, target] = values[source].transpose(0, 1)
            start += num_rows

    def write_at(
        self, layer: int, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store rows of one layer at positions that only the device knows, spare ones among them.

        Shapes:  positions [T]; keys, values [T, KV, D].
        """
        self._keys[layer, 0].index_copy_(1, positions, keys.transpose(0, 1))
        self._values[layer, 0].index_copy_(1, positions, values.transpose(0, 1))

    def tiles(self, layer: int, num_tiles: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the first tiles of a layer: keys and values, [tiles, KV, TILE, D]."""
        return self._keys[layer, :num_tiles], self._values[layer, :num_tiles]

    def advance(self, num_rows: int) -> None:
        """Make the rows that every layer has written part of the cache."""
        assert self.length + num_rows <= self.capacity
        self.length += num_rows

    def truncate(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        assert 0 <= length <= self.length, f"truncate {self.length} rows to {length}"
        self.length = length

    def wipe(self, num_rows: int) -> None:
        """Set so many rows behind ``length`` to zero.

        A masked position is multiplied by zero, so what a drafter leaves there must be finite.
        """
        end = self.length + num_rows
        assert end <= self.capacity, f"{end} positions in a cache of {self.capacity}"
        start = self.length
        while start < end:
            tile, offset = divmod(start, self._tile)
            num = min(end - start, self._tile - offset)
            for tensor in (self._keys_by_row, self._values):
                tensor[:, tile, :, offset : offset + num] = 0
            start += num

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Let some of the rows from ``start`` on follow it in this order, and forget the others.

        ``rows`` count from ``start`` and ascend: the accepted path of a tree.
        """
        assert start + max(rows, default=-1) < self.length
        assert all(at <= row for at, row in enumerate(rows)), f"{rows} do not ascend"
        for at, row in enumerate(rows):
            if at != row:
                new, old = divmod(start + at, self._tile), divmod(start + row, self._tile)
                for tensor in (self._keys_by_row, self._values):
                    tensor[:, new[0], :, new[1]] = tensor[:, old[0], :, old[1]]
        self.truncate(start + len(rows))

    def copy_prefix(self, source: KVCache, length: int) -> None:
        """Become a copy of the first ``length`` positions of another cache of the same shape."""
        assert length <= min(source.length, self.capacity)
        num_tiles, num_rows = -(-length // self._tile), min(length, self._tile)
        own, other = ((each._keys_by_row, each._values) for each in (self, source))
        for target, origin in zip(own, other, strict=True):
            target[:, :num_tiles, :, :num_rows] = origin[:, :num_tiles, :, :num_rows]
        self.length = length

    def rows(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the stored keys and values of a layer, [length, KV, D], for tests."""
        keys, values = (_flat(tensor[layer]) for tensor in (self._keys_by_row, self._values))
        return keys[: self.length], values[: self.length]

    @property
    def _keys_by_row(self) -> torch.Tensor:
        """Return a view of the keys that lies as the values do, [L, tiles, KV, TILE, D]."""
        if not self._keys_by_dim:
            return self._keys
        *others, tile, dim = self._keys.shape
        return self._keys.view(*others, dim, tile).transpose(3, 4)


def _flat(tiles: torch.Tensor) -> torch.Tensor:
    return tiles.transpose(1, 2).flatten(0, 1)


def _round_up(num_positions: int) -> int:
    return -(-num_positions // TILE) * TILE
