"""Products with weights in 4 bits."""

from __future__ import annotations

import pytest
import torch

from specengine.errors import LoadError
from specengine.models import int4
from specengine.models.int4 import GROUP, Int4Linear, inner_tiles


def some(num_rows: int, num_in: int, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, num_in, generator=torch.Generator().manual_seed(seed))


def test_weights_on_sixteen_levels_come_through() -> None:
    """As those of a Q4_1 file are: each group has a scale and a least value of its own."""
    levels = torch.randint(0, 16, (32, 4, GROUP), generator=torch.Generator().manual_seed(1))
    levels[:, :, :2] = torch.tensor([0, 15])
    scales = 2.0 ** torch.randint(-6, 0, (32, 4, 1), generator=torch.Generator().manual_seed(2))
    weight = (scales * (levels - 4)).view(32, 4 * GROUP)
    product = Int4Linear.of(weight)(torch.eye(4 * GROUP))
    assert torch.equal(product, weight.T)


def test_other_weights_lie_within_half_a_level() -> None:
    weight = some(32, 64, 3)
    product = Int4Linear.of(weight)(torch.eye(64)).T
    groups = weight.view(32, -1, GROUP)
    step = ((groups.amax(2) - groups.amin(2)) / 15)[..., None].expand_as(groups).reshape(32, 64)
    assert bool(((product - weight).abs() < 0.56 * step + 0.02).all())


@pytest.mark.parametrize("width", [1, 5, 8, 32])
def test_a_row_has_the_same_bits_in_every_width(width: int) -> None:
    linear = Int4Linear.of(some(64, 96, 4), torch.arange(64.0))
    rows = some(32, 96, 5).to(torch.bfloat16)
    assert torch.equal(torch.cat([linear(part) for part in rows.split(width)]), linear(rows))


def test_rounding_some_outputs_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, rows = some(200, 96, 7), some(8, 96, 8)
    whole = Int4Linear.of(weight)(rows)
    monkeypatch.setattr(int4, "ROWS_AT_ONCE", 64)
    assert torch.equal(Int4Linear.of(weight)(rows), whole)


@pytest.mark.parametrize(("num_in", "tiles"), [(4096, 8), (576, 4), (96, 2)])
def test_layout_fits_the_inputs(num_in: int, tiles: int) -> None:
    assert inner_tiles(num_in) == tiles


def test_a_bias_is_added() -> None:
    linear = Int4Linear.of(some(32, 32, 6), torch.arange(32.0))
    assert torch.equal(linear(torch.zeros(1, 32))[0], torch.arange(32.0))


def test_inputs_that_make_no_whole_groups_are_refused() -> None:
    with pytest.raises(LoadError, match="whole groups of 32") as error:
        Int4Linear.of(torch.zeros(4, 40))
    assert "int8" in str(error.value.hint)
