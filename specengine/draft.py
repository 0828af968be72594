"""What a drafter proposes and what the target says to it. Values only.

Both are trees in general; a chain is a tree with one branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

ROOT: Final = -1
"""Parent of the first drafted tokens: the last committed token."""


@dataclass(frozen=True)
class Draft:
    """Proposed tokens, parents before children."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    """For each token the index of the one it continues, or ``ROOT``."""
    drafter: str
    """Name of the drafter that proposed it; empty when there is nothing to verify."""
    laws: tuple[torch.Tensor | None, ...] = ()
    """For each token the distribution [V] that it was drawn from, or None where it was chosen;
    empty where all were. Siblings: each without those before it."""
    chances: tuple[float, ...] = ()
    """For each token how likely the drafter thinks it that it is accepted, with all before it;
    empty where it does not know."""
    reason: str = ""
    """Why it is empty, if its drafter says so."""

    def __post_init__(self) -> None:
        assert len(self.laws) in (0, len(self.token_ids))
        assert len(self.chances) in (0, len(self.token_ids))
        assert len(self.token_ids) == len(self.parents)
        assert all(ROOT <= parent < node for node, parent in enumerate(self.parents))

    def __len__(self) -> int:
        """Return the number of proposed tokens."""
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        """Whether each token continues the one before it."""
        return self.parents == tuple(range(ROOT, len(self.parents) - 1))

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root's child down to a node; none for ``ROOT``."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @classmethod
    def chain(
        cls,
        token_ids: tuple[int, ...] | list[int],
        drafter: str,
        laws: Sequence[torch.Tensor | None] = (),
    ) -> Draft:
        """Return a draft with one branch."""
        return cls(tuple(token_ids), tuple(range(ROOT, len(token_ids) - 1)), drafter, tuple(laws))

    def cut(self, vocab_size: int, max_tokens: int) -> Draft:
        """Return the beginning of the draft that can be verified.

        It ends before the first id that is no token of the target and at ``max_tokens``.
        """
        nodes = enumerate(self.token_ids)
        no_token = (node for node, token_id in nodes if not 0 <= token_id < vocab_size)
        return self.first(min(max_tokens, next(no_token, len(self))))

    def first(self, length: int) -> Draft:
        """Return its first tokens, so many of them."""
        if length >= len(self):
            return self
        if length <= 0:
            return NOTHING
        return Draft(
            self.token_ids[:length],
            self.parents[:length],
            self.drafter,
            self.laws[:length],
            self.chances[:length],
        )


NOTHING: Final = Draft((), (), "")
"""The draft of a drafter that has no idea."""


@dataclass(frozen=True)
class Verdict:
    """Which drafted tokens are the target's own, and the token that it adds."""

    accepted: tuple[int, ...]
    """Indices into the draft, from the root on: a path."""
    next_id: int
    """The recovered token after a rejection, the bonus token after full acceptance."""
