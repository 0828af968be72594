"""Products in 8-bit integers by torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.models import limbs
from specengine.models.integer import IntegerMatrix
from specengine.models.limbs import LARGEST, LimbLinear, to_integers


def some(shape: tuple[int, int], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    num_rows=st.integers(1, 40),
    num_out=st.integers(1, 70),
    num_in=st.integers(1, 300),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_a_product_is_the_exact_sum_of_its_integers(
    num_rows: int, num_out: int, num_in: int, seed: int
) -> None:
    linear = LimbLinear.of(some((num_out, num_in), seed))
    rows = some((num_rows, num_in), seed + 1)
    largest = rows.abs().amax(1, keepdim=True)
    integers = (rows * (LARGEST / largest)).round().long()
    high = (integers + 128) >> 8
    weight = linear.weight[:num_out, :num_in].long().T
    sums = (high @ weight).float() * 256 + ((integers - (high << 8)) @ weight).float()
    expected = sums * (linear.scales * (largest / LARGEST))
    assert torch.equal(linear(rows), expected)


@pytest.mark.parametrize("width", [1, 2, 8, 17])
def test_a_row_has_the_same_bits_in_every_width(width: int) -> None:
    linear = LimbLinear.of(some((48, 96), 1), torch.arange(48.0))
    rows = some((34, 96), 2)
    assert torch.equal(torch.cat([linear(part) for part in rows.split(width)]), linear(rows))


def test_sixteen_bits_lose_nothing_that_eight_bit_weights_have() -> None:
    weight, rows = some((64, 256), 3), some((9, 256), 4)
    linear = LimbLinear.of(weight)
    exact = rows.double() @ (linear.weight[:, :256].double() * linear.scales.double()[:, None]).T
    error = (linear(rows).double() - exact).abs().max() / exact.abs().max()
    assert float(error) < 1e-4


def test_weights_are_rounded_as_for_the_native_pass() -> None:
    weight = some((20, 70), 5)
    matrix, linear = IntegerMatrix.of(weight), LimbLinear.of(weight)
    integers = matrix.weights.permute(0, 3, 1, 2, 4).reshape(32, 128)
    assert torch.equal(integers[:20, :70], linear.weight[:20, :70])
    assert torch.equal(matrix.scales[:20], linear.scales)


def test_rounding_some_outputs_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = some((70, 33), 6)
    whole = to_integers(weight)
    monkeypatch.setattr(limbs, "ROWS_AT_ONCE", 32)
    assert all(torch.equal(*pair) for pair in zip(to_integers(weight), whole, strict=True))


def test_zeros_give_zeros() -> None:
    linear = LimbLinear.of(torch.zeros(4, 8))
    assert not linear(torch.zeros(2, 8)).any()
    assert not linear(torch.ones(2, 8)).any()


def test_the_result_has_the_precision_of_the_rows() -> None:
    rows = some((2, 8), 6).to(torch.bfloat16)
    assert LimbLinear.of(some((4, 8), 7), torch.ones(4))(rows).dtype == torch.bfloat16
