"""A step that would spoil the weights is not taken."""

import pytest
import torch

from specengine.errors import TrainingFailed
from specengine.train.gradients import clip_gradients


def weight_with_gradient(*values: float) -> torch.Tensor:
    weight = torch.zeros(len(values), requires_grad=True)
    weight.grad = torch.tensor(values)
    return weight


def test_gradients_are_scaled_to_the_greatest_norm_allowed() -> None:
    weight = weight_with_gradient(3.0, 4.0)
    clip_gradients([weight], 1.0, 0)
    assert weight.grad is not None
    assert weight.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_no_number_ends_the_run(value: float) -> None:
    sound, broken = weight_with_gradient(1.0), weight_with_gradient(value)
    with pytest.raises(TrainingFailed, match="step 8 is no number"):
        clip_gradients([sound, broken], 1.0, 7)
