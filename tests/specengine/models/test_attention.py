from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import TILE
from specengine.models.attention import HIDDEN, _attend_tiles, attend, reference_tiles, visibility
from specengine.models.linear import ROW_BLOCK

CPU = torch.device("cpu")
HEAD_DIM = 16
DTYPES = (torch.float32, torch.bfloat16)
NUM_TILES = 9
POSITIONS = (7, 60, TILE - 1, TILE, TILE + 3, 2 * TILE + 5)
"""Of rows that are looked at: in the first tile, at its borders, and later."""


class Text:
    """Queries, keys and values of many positions."""

    def __init__(self, dtype: torch.dtype, num_heads: int = 4, num_kv_heads: int = 2) -> None:
        generator = torch.Generator().manual_seed(5)
        length = NUM_TILES * TILE

        def rows(heads: int) -> torch.Tensor:
            return torch.randn(length, heads, HEAD_DIM, generator=generator).to(dtype)

        self.queries, self.keys, self.values = (
            rows(num_heads),
            rows(num_kv_heads),
            rows(num_kv_heads),
        )
        self.dtype = dtype
        self.groups = num_heads // num_kv_heads

    def block(self, start: int, num_tiles: int | None = None) -> torch.Tensor:
        """Return the attention of a block, over some tiles or as many as it needs."""
        mask = visibility(start, ROW_BLOCK, self.groups, self.dtype, CPU)
        num_tiles = num_tiles or mask.shape[0]
        more = max(0, num_tiles - mask.shape[0])
        mask = F.pad(mask, (0, 0, 0, 0, 0, 0, 0, 0, 0, more), value=HIDDEN)
        keys, values = _tiles(self.keys)[:num_tiles], _tiles(self.values)[:num_tiles]
        return attend(self.queries[start : start + ROW_BLOCK], keys, values, mask)

    def row(self, position: int, start: int) -> torch.Tensor:
        """Return the attention of a position as a member of the block that begins at ``start``."""
        return self.block(start)[position - start]


def _tiles(rows: torch.Tensor) -> torch.Tensor:
    return rows.unflatten(0, (NUM_TILES, TILE)).transpose(1, 2)


def softmax_attention(text: Text, position: int) -> torch.Tensor:
    """Return what the definition says, in float64."""
    keys, values = (
        rows[: position + 1].double().repeat_interleave(text.groups, dim=1)
        for rows in (text.keys, text.values)
    )
    scores = torch.einsum("hd,thd->ht", text.queries[position].double(), keys)
    weights = (scores / math.sqrt(HEAD_DIM)).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, values).flatten()


@pytest.mark.parametrize("heads", [(4, 2), (3, 1), (2, 2), (9, 3)])
@pytest.mark.parametrize("start", [0, 5, TILE - 4, TILE, 2 * TILE + 9])
def test_rows_are_softmax_attention(heads: tuple[int, int], start: int) -> None:
    text = Text(torch.float32, *heads)
    expected = [softmax_attention(text, start + row) for row in range(ROW_BLOCK)]
    torch.testing.assert_close(text.block(start), torch.stack(expected).float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("position", POSITIONS)
def test_row_has_the_same_bits_wherever_it_stands(dtype: torch.dtype, position: int) -> None:
    """Some of these blocks reach into another tile, and others do not."""
    text = Text(dtype)
    first = text.row(position, position)
    rows = [text.row(position, position - offset) for offset in range(ROW_BLOCK)]
    assert all(torch.equal(row, first) for row in rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 2), (9, 3), (3, 1)])
@pytest.mark.parametrize("start", [100, TILE - ROW_BLOCK, TILE + 1, 5 * TILE])
def test_rows_have_the_same_bits_whatever_the_window(
    dtype: torch.dtype, heads: tuple[int, int], start: int
) -> None:
    text = Text(dtype, *heads)
    alone = text.block(start)
    fewest = (start + ROW_BLOCK - 1) // TILE + 1
    windows = [text.block(start, num_tiles) for num_tiles in range(fewest, NUM_TILES + 1)]
    assert all(torch.equal(rows, alone) for rows in windows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", [0, TILE - 4, TILE + 9])
def test_what_lies_behind_a_row_does_not_matter(dtype: torch.dtype, start: int) -> None:
    text, other = Text(dtype), Text(dtype)
    other.keys[start + 1 :] *= -3
    other.values[start + 1 :] += 5
    assert torch.equal(text.block(start)[0], other.block(start)[0])
    assert not torch.equal(text.block(start)[1], other.block(start)[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 2), (9, 3)])
@pytest.mark.parametrize("start", [0, TILE - 20, 2 * TILE - 8])
def test_blocks_have_the_same_bits_alone_and_together(
    dtype: torch.dtype, heads: tuple[int, int], start: int
) -> None:
    """Four blocks of a prompt, also where they lie on both sides of a tile's border."""
    text = Text(dtype, *heads)
    num_rows = 4 * ROW_BLOCK
    mask = visibility(start, num_rows, text.groups, dtype, CPU)
    tiles = _tiles(text.keys)[: mask.shape[0]], _tiles(text.values)[: mask.shape[0]]
    together = attend(text.queries[start : start + num_rows], *tiles, mask)
    alone = [text.block(start + offset) for offset in range(0, num_rows, ROW_BLOCK)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_padding_may_lie_behind_the_last_tile(dtype: torch.dtype, num_rows: int) -> None:
    """The last rows of a full cache stand in a block that reaches past its end."""
    text = Text(dtype)
    start = 2 * TILE - num_rows
    assert torch.equal(text.block(start, 2)[:num_rows], text.block(start)[:num_rows])


@pytest.mark.parametrize("start", [0, 3, TILE - ROW_BLOCK, TILE - ROW_BLOCK + 1, TILE, 700])
def test_row_sees_itself_and_what_is_before_it(start: int) -> None:
    mask = visibility(start, ROW_BLOCK, 3, torch.float32, CPU)
    num_tiles = (start + ROW_BLOCK - 1) // TILE + 1
    assert mask.shape == (num_tiles, 1, 1, 3 * ROW_BLOCK, TILE)
    seen = (mask == 0)[:, 0, 0].transpose(0, 1).flatten(1)
    expected = torch.arange(num_tiles * TILE) <= torch.arange(start, start + ROW_BLOCK)[:, None]
    assert torch.equal(seen, expected.repeat(3, 1))
    assert set(mask.unique().tolist()) <= {0.0, float(torch.tensor(HIDDEN))}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("start", [3, TILE - 2, TILE + 50])
def test_cpu_kernel_does_what_the_reference_does(
    dtype: torch.dtype, tolerance: float, start: int
) -> None:
    text = Text(dtype)
    mask = visibility(start, ROW_BLOCK, text.groups, dtype, CPU)[:, 0]
    queries = text.queries[start : start + ROW_BLOCK].unflatten(1, (2, text.groups))
    queries = queries.permute(1, 2, 0, 3).flatten(1, 2).expand(mask.shape[0], -1, -1, -1)
    tiles = _tiles(text.keys)[: mask.shape[0]], _tiles(text.values)[: mask.shape[0]]
    outputs, sums = _attend_tiles(queries, *tiles, mask)
    expected_outputs, expected_sums = reference_tiles(queries, *tiles, mask)
    is_seen = (mask == 0).any(-1).expand_as(sums)
    assert outputs.dtype == expected_outputs.dtype == dtype
    assert sums.dtype == expected_sums.dtype == torch.float32
    torch.testing.assert_close(
        outputs[is_seen], expected_outputs[is_seen], atol=tolerance, rtol=tolerance
    )
    torch.testing.assert_close(sums[is_seen], expected_sums[is_seen], atol=tolerance, rtol=1e-3)


@pytest.mark.parametrize("attend_tiles", [_attend_tiles, reference_tiles])
def test_tile_without_visible_keys_is_finite_and_weighs_nothing(attend_tiles) -> None:
    queries, keys = torch.ones(1, 1, ROW_BLOCK, HEAD_DIM), torch.ones(1, 1, TILE, HEAD_DIM)
    mask = torch.full((1, 1, ROW_BLOCK, TILE), HIDDEN)
    outputs, sums = attend_tiles(queries, keys, keys, mask)
    assert outputs.isfinite().all()
    assert (sums < -1e29).all()
