"""Attention whose rows depend on nothing but their own query, keys and values.

Ready-made attention calls split their sums by the number of queries and by the length of the
window, so the same row gets other bits in a wider verify or a longer cache. Here every call has one
constant shape: ``ROW_BLOCK`` queries over one tile of ``TILE`` positions under a mask. A row's
tiles are then joined in order; a tile that a row may not see joins with weight zero, so the length
of the window cannot matter either.

Source: the joining of tiles by their log-sum-exp is Dao 2023, arXiv 2307.08691, section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from specengine.cache.kv_cache import TILE
from specengine.models.linear import ROW_BLOCK
from specengine.models.rowwise import exp

HIDDEN: Final = -1e30
"""Added to masked scores; finite, so that a tile without visible keys stays free of NaN."""


def visibility(
    start: int, num_rows: int, groups: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the additive mask of rows at positions ``start``, ``start`` + 1 and so on.

    Shapes:  ``num_rows`` is blocks * ROW_BLOCK; result
        [tiles, blocks, 1, groups * ROW_BLOCK, TILE], with tiles up to the last row's position.
    """
    num_tiles = (start + num_rows - 1) // TILE + 1
    positions = torch.arange(start, start + num_rows, device=device).view(-1, ROW_BLOCK, 1)
    keys = torch.arange(num_tiles * TILE, device=device).view(num_tiles, 1, 1, TILE)
    mask = torch.zeros(num_tiles, len(positions), ROW_BLOCK, TILE, dtype=dtype, device=device)
    mask.masked_fill_(keys > positions, HIDDEN)
    return mask.repeat(1, 1, groups, 1)[:, :, None]


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Return the attention of some blocks of rows.

    Shapes:  queries [blocks * ROW_BLOCK, H, D]; keys, values [tiles, KV, TILE, D]; mask as
        ``visibility`` gives it, with H = groups * KV; result [blocks * ROW_BLOCK, H * D].
    """
    num_rows, num_heads, head_dim = queries.shape
    num_tiles, num_kv_heads = keys.shape[:2]
    num_blocks, groups = num_rows // ROW_BLOCK, num_heads // num_kv_heads
    # The query heads that share a K/V head are rows of one call: K/V need no copy per head.
    folded = queries.view(num_blocks, ROW_BLOCK, num_kv_heads, groups, head_dim)
    folded = folded.permute(0, 2, 3, 1, 4).reshape(num_blocks, num_kv_heads, -1, head_dim)
    # Rows of padding may lie behind the last tile of a cache; no other row sees that far.
    outputs, sums = _attend_blocks(folded, keys, values, mask[:num_tiles])
    joined = outputs[0] if num_tiles == 1 else _join(outputs, sums)
    unfolded = joined.view(num_blocks, num_kv_heads, groups, ROW_BLOCK, head_dim)
    unfolded = unfolded.permute(0, 3, 1, 2, 4).reshape(num_rows, num_heads * head_dim)
    return unfolded.to(queries.dtype)


def attend_tree(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    start: int,
    paths: Sequence[Sequence[int]],
) -> torch.Tensor:
    """Return the attention of rows that see, from position ``start`` on, their own path only.

    For each row the keys and values of its path are laid as they would lie without the tree, and
    attention is as for the row at that position: the same bits as in plain decoding.

    Shapes:  as for ``attend``; a path has the numbers of rows, counted from ``start``.
    """
    result = torch.zeros(queries.shape[0], queries.shape[1] * queries.shape[2])
    result = result.to(queries.device, queries.dtype)
    for row, path in enumerate(paths):
        position = start + len(path) - 1
        block, at = divmod(len(path) - 1, ROW_BLOCK)
        num_tiles = position // TILE + 1
        own_keys, own_values = (_laid(each, num_tiles, start, path) for each in (keys, values))
        own_mask = mask[:num_tiles, block : block + 1]
        own_queries = torch.zeros_like(queries[:ROW_BLOCK])
        own_queries[at] = queries[row]
        result[row] = attend(own_queries, own_keys, own_values, own_mask)[at]
    return result


def _laid(tiles: torch.Tensor, num_tiles: int, start: int, path: Sequence[int]) -> torch.Tensor:
    """Return the first tiles [tiles, KV, TILE, D] with the rows of a path from ``start`` on."""
    laid = tiles[:num_tiles].clone()
    for at, row in enumerate(path):
        new, old = divmod(start + at, TILE), divmod(start + row, TILE)
        laid[new[0], :, new[1]] = tiles[old[0], :, old[1]]
    return laid


def _attend_blocks(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs [tiles, blocks, KV, G * T, D] and sums [tiles, blocks, KV, G * T].

    One call takes all tiles of a block, or all blocks of a tile: whichever needs no copy of K/V.
    Either way each pair of them is computed by itself, in the same shape.
    """
    num_blocks, num_tiles = queries.shape[0], keys.shape[0]
    if num_blocks == 1:
        per_tile = queries.expand(num_tiles, -1, -1, -1)
        outputs, sums = _attend_tiles(per_tile, keys, values, mask[:, 0])
        return outputs[:, None], sums[:, None]
    results = [
        _attend_tiles(
            queries,
            keys[tile].expand(num_blocks, -1, -1, -1),
            values[tile].expand(num_blocks, -1, -1, -1),
            mask[tile],
        )
        for tile in range(num_tiles)
    ]
    if num_tiles == 1:
        return results[0][0][None], results[0][1][None]
    return torch.stack([outputs for outputs, _ in results]), torch.stack([s for _, s in results])


def _attend_tiles(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each pair its normalised output and the log of its sum of exponentials.

    Shapes:  queries [pairs, KV, G * T, D]; keys, values [pairs, KV, TILE, D]; mask
        [pairs, 1, G * T, TILE]; outputs as queries; sums [pairs, KV, G * T], float32.
    """
    scale = queries.shape[-1] ** -0.5
    if queries.device.type == "cpu":
        # The one CPU kernel that also returns the sums; F.scaled_dot_product_attention drops them.
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, False, attn_mask=mask, scale=scale
        )
    return reference_tiles(queries, keys, values, mask)


def reference_tiles(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what the CPU kernel does in plain operators: for other devices and as its test."""
    scores = (queries @ keys.transpose(-1, -2)).float() * queries.shape[-1] ** -0.5 + mask.float()
    weights = scores.softmax(-1).to(values.dtype)
    return weights @ values, scores.logsumexp(-1)


def _join(outputs: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    weights = exp(sums - sums.amax(0))
    weighted = outputs.float() * weights[..., None]
    total, norm = weighted[0], weights[0]
    # One tile after the other: a reduction over tiles would group them by their number.
    for tile in range(1, outputs.shape[0]):
        total = total + weighted[tile]
        norm = norm + weights[tile]
    return total / norm[..., None]
