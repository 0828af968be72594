"""Element-wise functions whose results do not depend on what is computed beside them.

Torch splits a larger call among its threads at any element. Where a part ends, its vector loop
hands over to a scalar one, and for functions such as exp the two round differently: a row's bits
would depend on the number of rows and of threads. Calls that are small enough are not split, and
each row of them meets the scalar loop at the same places.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

SERIAL_VALUES: Final = 32_768
"""Calls with fewer values than this run on one thread (at::internal::GRAIN_SIZE)."""

EXP_PART: Final = 16_384
"""Values of one call of exp."""

EXP_BLOCK: Final = 64
"""Sizes are padded to a multiple of this, so that exp never comes to its scalar loop."""


def silu(rows: torch.Tensor) -> torch.Tensor:
    """Return x * sigmoid(x) of each value.

    Shapes:  rows [T, N]; if T is not 1, a view into wider rows, so that each row is a loop.
    """
    num_rows = max(1, (SERIAL_VALUES - 1) // rows.shape[1])
    if rows.shape[0] <= num_rows or not rows.is_cpu:
        return F.silu(rows)
    return torch.cat([F.silu(part) for part in torch.split(rows, num_rows)])


def rotate(rows: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Return rows of pairs of dimensions, each pair turned by its position's angle.

    A pair of neighbouring dimensions is one complex number: rotation is one multiplication.

    Shapes:  rows [T, H, D]; rotation [T, 1, D / 2], complex64; result [T, H, D], float32.
    """
    pairs = torch.view_as_complex(torch.unflatten(rows.float(), -1, (-1, 2)))
    num_rows = max(1, (SERIAL_VALUES - 1) // pairs[0].numel())
    if pairs.shape[0] <= num_rows or not rows.is_cpu:
        return torch.view_as_real(pairs * rotation).flatten(-2)
    parts = zip(torch.split(pairs, num_rows), torch.split(rotation, num_rows), strict=True)
    return torch.view_as_real(torch.cat([part * turn for part, turn in parts])).flatten(-2)


def exp(values: torch.Tensor) -> torch.Tensor:
    """Return e to the power of each value."""
    flat = values.flatten()
    padded = F.pad(flat, (0, -flat.numel() % EXP_BLOCK))
    if padded.numel() <= EXP_PART:
        return padded.exp()[: flat.numel()].view_as(values)
    parts = [part.exp() for part in torch.split(padded, EXP_PART)]
    return torch.cat(parts)[: flat.numel()].view_as(values)
