"""Products in 8-bit integers by torch: the arithmetic of ``native/pass.c`` where that cannot run.

A weight is 8-bit integers with one scale for each output. A row of activations is a vector of
16-bit integers with one scale, and its high and low bytes, the limbs, are two rows of an 8-bit
product. Sums of integers have no order: a row's result has the same bits in every width, on every
device, and in the native pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

from specengine.errors import LoadError

LARGEST: Final = 32512.0
"""Of the 16-bit integers: 127 * 256, so that the high limb has 8 bits."""
LEAST_ROWS: Final = 32
"""CUDA's product refuses 16 rows and fewer."""
STEP: Final = 16
"""Inputs and outputs are padded by zeros to a multiple of this: CUDA's product wants that, and the
CPU's gives wrong sums of a single input."""
ROWS_AT_ONCE: Final = 2048
"""Outputs that are rounded together: what that takes is four times their size."""


@dataclass(frozen=True)
class LimbLinear:
    """A weight in 8 bits."""

    weight: torch.Tensor
    """int8 [N', K'], padded."""
    scales: torch.Tensor
    """float32 [N]."""
    bias: torch.Tensor | None = None
    """float32 [N]."""

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LimbLinear:
        """Round a weight [N, K] to 8 bits."""
        integers, scales = to_integers(weight)
        padding = (0, -weight.shape[1] % STEP, 0, -weight.shape[0] % STEP)
        return cls(F.pad(integers, padding), scales, None if bias is None else bias.float())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias`` in the precision of the rows, [T, K] to [T, N]."""
        num_rows, num_in = rows.shape
        wide = rows.float()
        largest = wide.abs().amax(1, keepdim=True)
        inverse = torch.where(largest > 0, LARGEST / largest, 0.0)
        integers = (wide * inverse).round().to(torch.int32)
        high = (integers + 128) >> 8
        limbs = torch.cat((high, integers - (high << 8))).to(torch.int8)
        padding = (0, -num_in % STEP, 0, max(0, LEAST_ROWS - 2 * num_rows))
        sums = torch.ops.aten._int_mm(F.pad(limbs, padding), self.weight.T)[:, : len(self.scales)]
        joined = sums[:num_rows].float() * 256 + sums[num_rows : 2 * num_rows].float()
        result = joined * (self.scales * (largest / LARGEST))
        if self.bias is not None:
            result += self.bias
        return result.to(rows.dtype)


def to_integers(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a weight [N, K] as 8-bit integers, the largest of each output 127, and scales [N].

    Raises:  LoadError when a value is no number: integers would hide it.
    """
    integers = torch.empty_like(weight, dtype=torch.int8)
    scales = torch.empty(len(weight), device=weight.device)
    for rows, to_rows, to_scales in zip(
        *(torch.split(each, ROWS_AT_ONCE) for each in (weight, integers, scales)), strict=True
    ):
        # Each new tensor of this size costs as much as what is computed in it.
        wide = rows.to(torch.float32, copy=True)
        least, most = wide.aminmax(dim=1)
        torch.div(torch.maximum(-least, most), 127, out=to_scales)
        divisors = to_scales.clamp_min(torch.finfo(torch.float32).tiny)
        to_rows.copy_(wide.div_(divisors[:, None]).round_())
    if not bool(scales.isfinite().all()):
        size = " x ".join(map(str, weight.shape))
        raise LoadError(f"a weight of {size} holds values that are no numbers.")
    return integers, scales
