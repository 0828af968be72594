"""What a model must be able to do to be decoded with, as target or as draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import torch

from specengine.cache.kv_cache import KVCache, KVShape
from specengine.models.architecture import Architecture

PROMPT_ROWS: Final = 32
"""Prompt tokens of one pass on a CPU."""


@dataclass(frozen=True)
class Tree:
    """Which rows of a pass a row comes behind."""

    paths: tuple[tuple[int, ...], ...]
    """For each row the rows from the first one down to itself."""

    @classmethod
    def behind(cls, num_pending: int, parents: Sequence[int]) -> Tree:
        """Return the tree of rows that follow each other, and of nodes behind the last of them.

        ``parents`` are, for each node, the node that it continues, or -1 for that last row.
        """
        paths = [tuple(range(row + 1)) for row in range(num_pending)]
        for node, parent in enumerate(parents):
            paths.append((*paths[num_pending + parent], num_pending + node))
        return cls(tuple(paths))

    @property
    def depths(self) -> list[int]:
        """Return how far each row stands behind the cache."""
        return [len(path) - 1 for path in self.paths]


@dataclass
class Tap:
    """Where a pass leaves its rows' residual stream, for drafters that look at it."""

    layers: tuple[int, ...]
    """How many layers it has passed there, ascending: 0 is the embedding, all is what is scored."""
    streams: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    """[taps, T, hidden], float32; set by the pass."""


@dataclass(frozen=True)
class Rows:
    """What one sequence brings to a pass."""

    token_ids: list[int]
    cache: KVCache
    num_logits: int
    """So many of the last tokens are scored."""
    tree: Tree | None = None
    inputs: torch.Tensor | None = None
    """[T, hidden] in place of the tokens' embeddings."""
    tap: Tap | None = None


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
    def batch_rows(self) -> int:
        """Return how many rows of several sequences one pass can take; 0 if it takes one only."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return the number of logits of a position."""
        ...

    def forward_batch(self, parts: Sequence[Rows]) -> list[torch.Tensor]:
        """Do ``forward`` for several sequences at once, each with the bits it has alone.

        They have ``batch_rows`` rows together at most, and caches of their own.
        """
        ...

    @property
    def kv_shape(self) -> KVShape:
        """Return what a cache for it must look like."""
        ...

    def forward(
        self,
        token_ids: list[int],
        cache: KVCache,
        *,
        num_logits: int,
        tree: Tree | None = None,
    ) -> torch.Tensor:
        """Append tokens to the cache and return the logits of the last ``num_logits`` of them.

        With a tree its rows stand behind what the cache holds, each at its depth, and see no others
        of the tree than those on their path. All are stored one after the other; ``KVCache.keep``
        makes a path of them contiguous.

        Shapes:  result [num_logits, V], float32; row i scores the token after that position.
        """
        ...


@runtime_checkable
class ChainTarget(Protocol):
    """A decoder on a device that would wait for the host after each token, and need not."""

    def greedy_chain(self, token_ids: list[int], cache: KVCache, num: int) -> list[int]:
        """Append tokens to the cache and return the ``num`` that follow, greedily chosen.

        All but the last of them are in the cache, too. The host waits once, for all.
        """
        ...
