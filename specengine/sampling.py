"""How the target's next token follows from its logits: greedy, or seeded noise.

A choice is a function of the row's logits, the seed and the absolute position. It does not matter
whether the row was computed alone or as part of a draft, so speculation cannot change the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

import numpy as np
import torch

SEED_LIMIT: Final = 2**64
"""Seeds are taken modulo this."""


@dataclass(frozen=True)
class Sampling:
    """The request's wishes."""

    temperature: float = 0.0
    """0 is greedy; ties go to the lowest id."""
    seed: int = 0


def choose(
    logits: torch.Tensor,
    positions: list[int],
    allowed: list[torch.Tensor | None],
    sampling: Sampling,
) -> list[int]:
    """Return the target's token for each row.

    Shapes:  logits [T, V], float32; positions are those of the chosen tokens; allowed holds the
        ids that a row may choose from, or None for all.
    Source:  Gumbel-max: argmax(logits / temperature + noise) is a sample of the softmax. Scaling
        the noise instead gives the same id, and no temperature is too small for it.
    """
    noisy = logits if sampling.temperature == 0 else _with_noise(logits, positions, sampling)
    choices = cast("list[int]", noisy.argmax(-1).tolist())  # pyright: ignore[reportUnknownMemberType]
    for row, ids in enumerate(allowed):
        if ids is not None:
            choices[row] = int(ids[noisy[row, ids].argmax()])
    return choices


def _with_noise(logits: torch.Tensor, positions: list[int], sampling: Sampling) -> torch.Tensor:
    noise = torch.stack([_gumbel(logits.shape[1], sampling.seed, at) for at in positions])
    return logits + sampling.temperature * noise.to(logits.device)


def _gumbel(num_values: int, seed: int, position: int) -> torch.Tensor:
    # Seed and position enter as they are: torch's generator would drop all but 32 bits of a seed.
    bits = np.random.Philox(key=seed % SEED_LIMIT, counter=[0, position, 0, 0])
    uniform = torch.tensor(np.random.Generator(bits).random(num_values))
    # It may hold 0, whose logarithm is not finite.
    return -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float64).tiny))).float()
