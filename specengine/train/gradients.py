"""The last look at a step's gradients before weights follow them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specengine.errors import TrainingFailed


def clip_gradients(parameters: Sequence[torch.Tensor], max_norm: float, step: int) -> None:
    """Scale the gradients so that their common norm is ``max_norm`` at most.

    Raises:  TrainingFailed when it is no number: one such step would spoil every weight for good.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    if not torch.isfinite(norm):
        raise TrainingFailed(
            f"The gradient of step {step + 1} is no number; the last checkpoint stands as it was.",
            hint="Try a lower --rate. If it happens at the first step, it is a fault of ours or of "
            "torch on this processor: please report it.",
        )
