"""Random numbers that are a function of seed, absolute position and purpose.

Nothing is drawn in order, so it does not matter what was drafted, tried or thrown away before: a
position meets the same numbers in every way of getting there. Each purpose has a stream of its own,
because a number that decides two things makes them depend on each other.

Source:  counter-based generators, Salmon et al. 2011 (Philox).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import torch

SEED_LIMIT: Final = 2**64
"""Seeds are taken modulo this."""
_LEAST: Final = float(np.finfo(np.float64).tiny)


class Stream(IntEnum):
    """What a number is for."""

    TOKEN = 0
    """The target's choice; a drafter that samples may use it too, to choose alike."""
    PROPOSAL = 1
    """A drafter's choice that must not depend on the target's."""
    COIN = 2
    """Whether a proposal is accepted."""
    REST = 3
    """The target's choice where no proposal was accepted."""
    BLOCK_COIN = 4
    """Whether a beginning of a block is accepted."""


def uniform(
    num_values: int, seed: int, position: int, stream: Stream, turn: int = 0
) -> torch.Tensor:
    """Return numbers in [0, 1), float64, for one position and purpose.

    ``turn`` tells apart the times that a position has need of them: its siblings, or the steps that
    looked at it. A number that a decision has looked at is not random any more.
    """
    # Seed and position enter as they are: torch's generator would drop all but 32 bits of a seed.
    bits = np.random.Philox(key=seed % SEED_LIMIT, counter=[0, position, stream, turn])
    return torch.tensor(np.random.Generator(bits).random(num_values))


def gumbel(
    num_values: int, seed: int, position: int, stream: Stream, turn: int = 0
) -> torch.Tensor:
    """Return noise whose argmax, added to logits, is a sample of their softmax; float64."""
    numbers = uniform(num_values, seed, position, stream, turn)
    # One may be 0, whose logarithm is not finite.
    return -torch.log(-torch.log(numbers.clamp_min(_LEAST)))


def draw(weights: torch.Tensor, seed: int, position: int, stream: Stream, turn: int = 0) -> int:
    """Return an id with a probability proportional to its weight.

    Shapes:  weights [V], not negative, not all zero.
    """
    noise = gumbel(weights.shape[0], seed, position, stream, turn).to(weights.device)
    return int((weights.double().log() + noise).argmax())
