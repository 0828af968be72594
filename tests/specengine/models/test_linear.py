from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from specengine.models.linear import (
    CANDIDATE_WIDTHS,
    ROW_BLOCK,
    Linear,
    pack,
    product,
    proven_widths,
)

Layout = Callable[[torch.Tensor], torch.Tensor]


def plain(weight: torch.Tensor) -> torch.Tensor:
    return weight


LAYOUTS = [(torch.float32, plain), (torch.bfloat16, plain), (torch.bfloat16, pack)]
PLAIN: Callable[..., torch.Tensor] = F.linear


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def proven(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    return Linear(weight, bias, proven_widths(weight, bias))


def round_differently_at(
    width: int, monkeypatch: pytest.MonkeyPatch, *, row: int | None = None
) -> None:
    """Make calls of one width add one unit in the last place, to all rows or to one."""

    def linear(
        rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        result = PLAIN(rows, weight, bias)
        if rows.shape[0] == width:
            at = slice(None) if row is None else slice(row, row + 1)
            result[at] = torch.nextafter(result[at], torch.tensor(torch.inf))
        return result

    monkeypatch.setattr(F, "linear", linear)


@pytest.mark.parametrize("num_rows", [0, 8, 16, 24, 32, 40, 56, 120])
@pytest.mark.parametrize("has_bias", [False, True])
def test_rows_are_products(num_rows: int, has_bias: bool) -> None:
    weight, rows = random(24, 48), random(num_rows, 48, seed=1)
    bias = random(24, seed=2) if has_bias else None
    expected = rows @ weight.T + (0 if bias is None else bias)
    torch.testing.assert_close(proven(weight, bias)(rows), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(192, 64), (64, 96), (287, 64), (33, 50)])
def test_row_has_the_same_bits_whatever_the_number_of_rows(
    dtype: torch.dtype, layout: Layout, has_bias: bool, shape: tuple[int, int]
) -> None:
    weight, rows = random(*shape, dtype=dtype), random(72, shape[1], dtype=dtype, seed=1)
    linear = proven(layout(weight), random(shape[0], dtype=dtype, seed=2) if has_bias else None)
    every_row = torch.cat([linear(block) for block in torch.split(rows, ROW_BLOCK)])
    for num_rows in range(ROW_BLOCK, 73, ROW_BLOCK):
        assert torch.equal(linear(rows[:num_rows]), every_row[:num_rows])
        assert torch.equal(linear(rows[72 - num_rows :]), every_row[72 - num_rows :])


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS)
def test_row_has_the_same_bits_wherever_it_stands_and_whatever_the_others(
    dtype: torch.dtype, layout: Layout
) -> None:
    linear = proven(layout(random(64, 96, dtype=dtype)))
    row = random(1, 96, dtype=dtype, seed=3)
    results: list[torch.Tensor] = []
    for at in range(2 * ROW_BLOCK):
        rows = random(2 * ROW_BLOCK, 96, dtype=dtype, seed=at)
        rows[at] = row
        results.append(linear(rows)[at])
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_weight_gives_the_same_products(has_bias: bool) -> None:
    weight, rows = (random(*shape, dtype=torch.bfloat16) for shape in ((24, 48), (8, 48)))
    bias = random(24, dtype=torch.bfloat16) if has_bias else None
    packed = product(rows, pack(weight), bias)
    torch.testing.assert_close(packed, product(rows, weight, bias), atol=0.05, rtol=0.02)


def test_float32_weights_are_not_packed() -> None:
    weight = random(24, 48)
    assert pack(weight) is weight


def test_equal_columns_tie_exactly() -> None:
    """Logits of equal weights must be equal, or the lowest id would not win a tie."""
    weight = random(4, 64).repeat(8, 1)
    logits = proven(weight)(random(16, 64, seed=1))
    assert torch.equal(logits.unflatten(1, (8, 4)), logits[:, None, :4].expand(-1, 8, -1))


@pytest.mark.parametrize("width", CANDIDATE_WIDTHS)
@pytest.mark.parametrize("row", [None, 0, 7])
def test_width_that_rounds_differently_is_rejected(
    width: int, row: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = random(24, 48)
    round_differently_at(width, monkeypatch, row=row)
    widths = proven_widths(weight, None)
    assert width not in widths
    assert widths == tuple(sorted(widths, reverse=True))
    assert widths[-1] == ROW_BLOCK


def test_rejected_width_is_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing but blocks of 8 is safe, 40 rows are five calls."""
    widths: list[int] = []

    def linear(rows: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        widths.append(rows.shape[0])
        return PLAIN(rows, *rest)

    monkeypatch.setattr(F, "linear", linear)
    rows = random(40, 48)
    Linear(random(24, 48))(rows)
    assert widths == [8, 8, 8, 8, 8]
    widths.clear()
    Linear(random(24, 48), widths=(32, 16, 8))(rows)
    Linear(random(24, 48), widths=(16, 8))(rows)
    assert widths == [32, 8, 16, 16, 8]


@pytest.mark.parametrize("num_rows", [1, 9, 31])
def test_rows_that_are_no_whole_blocks_are_a_bug(num_rows: int) -> None:
    with pytest.raises(AssertionError, match="not whole blocks of 8"):
        proven(random(24, 48))(random(num_rows, 48))
