"""Matrix products whose rows do not depend on how many rows are computed together.

A BLAS picks another kernel, hence another rounding, for another number of rows. Two verify widths
would then give two texts. So rows are computed in blocks of proven widths: widths at which this
machine, for these very weights, gives bitwise the same row wherever it stands.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.nn.functional as F

logger = logging.getLogger(__name__)

ROW_BLOCK: Final = 8
"""Rows are padded to a multiple of this; a verify of 1 to 8 rows is one block."""

CANDIDATE_WIDTHS: Final = (32, 16)
"""Wider calls that prefill would like to use, widest first."""

PROOF_ROWS: Final = 256
"""Random rows that are compared before a wider call is trusted."""


@dataclass(frozen=True)
class Linear:
    """A weight, an optional bias and the row widths that are safe for it."""

    weight: torch.Tensor
    """[N, K], plain or as ``pack`` returns it."""
    bias: torch.Tensor | None = None
    widths: tuple[int, ...] | None = field(default=(ROW_BLOCK,))
    """Descending; the last is ``ROW_BLOCK``. None where whoever calls keeps to one width."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows @ weight.T + bias``.

        Shapes:  rows [T, K] with T a multiple of ``ROW_BLOCK``; result [T, N].
        """
        num_rows = rows.shape[0]
        if self.widths is None or num_rows in self.widths:
            return product(rows, self.weight, self.bias)
        result = rows.new_empty(num_rows, self.weight.shape[0])
        start = 0
        for width in self.widths:
            while num_rows - start >= width:
                block = slice(start, start + width)
                result[block] = product(rows[block], self.weight, self.bias)
                start += width
        assert start == num_rows, f"{num_rows} rows are not whole blocks of {ROW_BLOCK}"
        return result


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight laid out for the CPU's bfloat16 units, or as it is where there are none.

    Otherwise the layout is made anew in every call, which nearly doubles its time.
    """
    is_packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    if not is_packable or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return weight
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROW_BLOCK)


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return ``rows @ weight.T + bias`` in one call for all rows."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return F.linear(rows, weight, bias)


def proven_widths(weight: torch.Tensor, bias: torch.Tensor | None) -> tuple[int, ...]:
    """Return the row widths at which this weight gives bitwise the same rows, descending.

    The proof is by trial on this machine: random rows, computed in blocks of ``ROW_BLOCK`` and in
    each wider block, must agree in every bit.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(PROOF_ROWS, weight.shape[1], generator=generator)
    rows = rows.to(weight.device, weight.dtype)
    reference = Linear(weight, bias)(rows)
    shifted = Linear(weight, bias)(rows.roll(1, 0)).roll(-1, 0)
    if not torch.equal(shifted, reference):
        logger.warning(
            "linear %s: rows depend on their place, so texts may change", tuple(weight.shape)
        )
    widths: list[int] = []
    for width in CANDIDATE_WIDTHS:
        wide = torch.cat([product(block, weight, bias) for block in torch.split(rows, width)])
        if torch.equal(wide, reference):
            widths.append(width)
        else:
            logger.info("linear %s: %d rows round differently", tuple(weight.shape), width)
    return (*widths, ROW_BLOCK)
