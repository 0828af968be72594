"""Products with weights in 4 bits: half the memory of int8, for models that barely fit.

Each group of neighbouring inputs has a scale and a zero of its own, as in the GGUF's Q4_1, whose
weights come through unchanged. Activations are bfloat16 or float32 and sums are floats, so rows are
exact where torch's kernel takes them one by one; a test says that it does on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F

from specengine.errors import LoadError

GROUP: Final = 32
"""Inputs that share a scale."""
LEVELS: Final = 15
MIDDLE: Final = 8
"""The level that stands for a group's zero."""
STEP: Final = 16
"""Outputs are padded by zeros to a multiple of this, as torch's kernels want it."""
INNER_TILES: Final = (8, 4, 2)
"""Layouts of torch's CUDA kernel, the fastest first; its CPU kernel ignores them."""
ROWS_AT_ONCE: Final = 2048
"""Outputs that are rounded together: what that takes is several times their size."""


@dataclass(frozen=True)
class Int4Linear:
    """A weight in 4 bits."""

    num_out: int
    packed: torch.Tensor
    """As torch's kernel of the device wants it."""
    scales_and_zeros: torch.Tensor
    """bfloat16 [K / GROUP, N, 2]."""
    bias: torch.Tensor | None = None

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Int4Linear:
        """Round a weight [N, K] to 4 bits.

        Raises:  LoadError when K is no multiple of ``GROUP``.
        """
        num_out, num_in = weight.shape
        if num_in % GROUP:
            raise LoadError(
                f"a weight of {num_out} x {num_in} has no whole groups of {GROUP} inputs.",
                hint="Choose --precision int8.",
            )
        parts = [_rounded(rows) for rows in torch.split(weight, ROWS_AT_ONCE)]
        packed, scales_and_zeros = zip(*parts, strict=True)
        return cls(num_out, torch.cat(packed), torch.cat(scales_and_zeros, 1), bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias`` in the precision of the rows, [T, K] to [T, N]."""
        product = (
            torch.ops.aten._weight_int4pack_mm_for_cpu
            if rows.device.type == "cpu"
            else torch.ops.aten._weight_int4pack_mm
        )
        wide = product(rows.to(torch.bfloat16), self.packed, GROUP, self.scales_and_zeros)
        result = wide[:, : self.num_out]
        if self.bias is not None:
            result = result + self.bias
        return result.to(rows.dtype)


def _rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return some rows as torch's kernel wants them, and their scales and zeros."""
    num_in = weight.shape[1]
    padded = F.pad(weight.float(), (0, 0, 0, -len(weight) % STEP))
    groups = padded.view(-1, num_in // GROUP, GROUP)
    least, most = groups.amin(2), groups.amax(2)
    scales = ((most - least) / LEVELS).clamp_min(torch.finfo(torch.bfloat16).tiny)
    levels = ((groups - least[..., None]) / scales[..., None]).round().clamp(0, LEVELS)
    both = torch.stack((scales, least + scales * MIDDLE), -1)
    packed = _packed(levels.to(torch.int32).view(-1, num_in))
    return packed, both.transpose(0, 1).contiguous().to(torch.bfloat16)


def _packed(levels: torch.Tensor) -> torch.Tensor:
    tiles = inner_tiles(levels.shape[1])
    if levels.device.type == "cpu":
        return torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, tiles)
    pairs = (levels[:, ::2] << 4 | levels[:, 1::2]).to(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(pairs, tiles)


def inner_tiles(num_in: int) -> int:
    """Return the fastest layout for so many inputs, of which there are whole groups."""
    return next(tiles for tiles in INNER_TILES if num_in % (16 * tiles) == 0)
