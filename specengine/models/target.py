"""What a model must be able to do to be decoded with, as target or as draft model."""

from __future__ import annotations

from typing import Final, Protocol

import torch

from specengine.cache.kv_cache import KVCache, KVShape
from specengine.models.architecture import Architecture

PROMPT_ROWS: Final = 32
"""Prompt tokens of one pass on a CPU."""


class Target(Protocol):
    """A decoder over one sequence, which keeps nothing between calls.

    A position's logits have the same bits whatever the number of rows of a call, and however the
    tokens before it came into the cache.
    """

    @property
    def precision(self) -> str:
        """Return how its matrices are multiplied: ``int8``, ``int4``, ``bfloat16``, ``float32``."""
        ...

    @property
    def prompt_rows(self) -> int:
        """Return how many tokens of a prompt a pass reads; between passes a cancel is seen."""
        ...

    @property
    def architecture(self) -> Architecture:
        """Return its sizes."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return the number of logits of a position."""
        ...

    @property
    def kv_shape(self) -> KVShape:
        """Return what a cache for it must look like."""
        ...

    def forward(self, token_ids: list[int], cache: KVCache, *, num_logits: int) -> torch.Tensor:
        """Append tokens to the cache and return the logits of the last ``num_logits`` of them.

        Shapes:  result [num_logits, V], float32; row i scores the token after that position.
        """
        ...
