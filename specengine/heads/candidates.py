"""From guesses to a draft: which tokens are worth a row of the target's pass.

Source:  EAGLE-2, Li et al. 2024, arXiv 2406.16858: a tree's nodes are those with the highest
    confidence, the product of the probabilities down to them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from specengine.draft import NOTHING, ROOT, Draft


@dataclass
class Candidates:
    """Nodes of a tree that grows; a child is never more likely than its parent."""

    token_ids: list[int] = field(default_factory=list[int])
    parents: list[int] = field(default_factory=list[int])
    confidences: list[float] = field(default_factory=list[float])
    """Probability of all tokens down to each node."""

    def add(self, token_id: int, parent: int, probability: float) -> int:
        """Add a node and return its number."""
        above = 1.0 if parent == ROOT else self.confidences[parent]
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.confidences.append(above * probability)
        return len(self.token_ids) - 1

    def best(self, max_tokens: int, drafter: str, least: float) -> Draft:
        """Return the draft of the most likely nodes, none below a confidence of ``least``."""
        order = sorted(range(len(self.token_ids)), key=lambda node: (-self.confidences[node], node))
        kept = sorted(node for node in order[:max_tokens] if self.confidences[node] >= least)
        if not kept:
            return NOTHING
        places = {node: at for at, node in enumerate(kept)}
        return Draft(
            tuple(self.token_ids[node] for node in kept),
            tuple(places.get(self.parents[node], ROOT) for node in kept),
            drafter,
            chances=tuple(self.confidences[node] for node in kept),
        )


def to_lists(rows: torch.Tensor) -> list[list[Any]]:
    """Return the numbers of a matrix, row by row."""
    return cast("list[list[Any]]", rows.tolist())  # pyright: ignore[reportUnknownMemberType]


def from_positions(
    probabilities: torch.Tensor,
    draft_ids: Sequence[int],
    max_tokens: int,
    drafter: str,
    least: float,
    breadth: int,
) -> Draft:
    """Return the best tree of guesses that were made for each position by itself.

    Shapes:  probabilities [depth, Vd]. A node has at most ``breadth`` children.
    """
    best = probabilities.topk(min(breadth, probabilities.shape[1]))
    values: list[list[float]] = to_lists(best.values)
    places: list[list[int]] = to_lists(best.indices)
    found = Candidates()
    heap: list[tuple[float, int, int, int]] = [(-values[0][0], ROOT, 0, 0)]
    while heap and len(found.token_ids) < max_tokens:
        negative, parent, depth, rank = heapq.heappop(heap)
        if -negative < least:
            break
        node = found.add(draft_ids[places[depth][rank]], parent, values[depth][rank])
        above = 1.0 if parent == ROOT else found.confidences[parent]
        if rank + 1 < len(values[depth]):
            heapq.heappush(heap, (-above * values[depth][rank + 1], parent, depth, rank + 1))
        if depth + 1 < len(values):
            child = -negative * values[depth + 1][0]
            heapq.heappush(heap, (-child, node, depth + 1, 0))
    return found.best(max_tokens, drafter, least)
