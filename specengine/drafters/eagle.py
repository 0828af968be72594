"""Drafts by a layer that continues the target's hidden states, as a tree that follows confidence.

Source:  EAGLE-2, Li et al. 2024, arXiv 2406.16858 (dynamic trees); EAGLE-3, arXiv 2503.01840.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch

from specengine.draft import NOTHING, ROOT, Draft
from specengine.drafters.feature_drafter import FeatureDrafter
from specengine.heads.candidates import Candidates, to_lists
from specengine.heads.features import FeatureNetwork
from specengine.heads.head_cache import HeadCache
from specengine.heads.recorded import Guess, Nodes, Start, guesses

NAME: Final = "eagle"
BREADTH: Final = 2
"""Children of a node, and nodes of a level that are continued."""
LEAST_CONFIDENCE: Final = 0.12
"""Of a node that is worth a row."""
GO_ON: Final = 0.25
"""Confidence of a node that is worth going on from, which takes a pass of the layer."""


class EagleDrafter(FeatureDrafter):
    """The layer on one request."""

    @torch.inference_mode()
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        """Return the most likely continuations, level by level."""
        row = self._reader.read(token_ids) if max_tokens > 0 else None
        if row is None:
            return NOTHING
        cache = self._reader.caches[0]
        if self._recorded is not None:
            found = self._recorded.make(row, len(token_ids) - 1, [cache], GO_ON)
        else:
            cache.make_room(min(self._network.head.depth, max_tokens) * BREADTH)
            committed = cache.length
            found = Candidates()
            self._branch(found, [(ROOT, row)])
            self._grow(found, row, len(token_ids), max_tokens)
            cache.truncate(committed)
        return found.best(max_tokens, NAME, LEAST_CONFIDENCE)

    @classmethod
    def guess(cls, network: FeatureNetwork, most_tokens: int) -> Guess:
        """Return all levels of a tree, each node that could be worth continuing continued."""
        num_levels = min(network.head.depth, most_tokens)
        return Guess(functools.partial(_levels, network, num_levels), num_levels * BREADTH)

    def _grow(self, found: Candidates, row: torch.Tensor, num_tokens: int, max_tokens: int) -> None:
        """Continue the most confident nodes of each level in one pass of the layer."""
        cache = self._reader.caches[0]
        rows: dict[int, torch.Tensor] = {ROOT: row}
        drawn: list[int] = []
        """Nodes whose rows are in the cache, in its order."""
        first = 0
        for depth in range(min(self._network.head.depth, max_tokens) - 1):
            level = self._level(found, first)
            if not level:
                return
            first = len(found.token_ids)
            paths = [_path(found, node) for node in level]
            drawn += level
            sees = torch.tensor([[node in path for node in drawn] for path in paths])
            # A node's row stands at the position before the one that it guesses.
            positions = [num_tokens - 1 + depth] * len(level)
            features = torch.stack([rows[found.parents[node]] for node in level])
            token_ids = torch.tensor([found.token_ids[node] for node in level])
            attend = cache.appending(positions, sees)
            made = self._network.run(token_ids, features, torch.tensor(positions), attend)
            rows = dict(zip(level, made, strict=True))
            self._branch(found, list(rows.items()))

    def _level(self, found: Candidates, first: int) -> list[int]:
        """Return the nodes from ``first`` on that are worth continuing."""
        nodes = range(first, len(found.token_ids))
        worth = [node for node in nodes if found.confidences[node] >= GO_ON]
        return sorted(sorted(worth, key=lambda node: -found.confidences[node])[:BREADTH])

    def _branch(self, found: Candidates, rows: list[tuple[int, torch.Tensor]]) -> None:
        """Add the likeliest tokens behind some nodes."""
        logits = self._network.logits(torch.stack([row for _, row in rows]))
        best = map(to_lists, guesses(logits, self._network.draft_ids, BREADTH))
        for (node, _), tokens, values in zip(rows, *best, strict=True):
            for token_id, probability in zip(tokens, values, strict=True):
                found.add(token_id, node, probability)


def _levels(
    network: FeatureNetwork, num_levels: int, caches: Sequence[HeadCache], start: Start
) -> Nodes:
    """Return what ``EagleDrafter`` finds, and what it would find behind nodes it gives up."""
    tokens, probabilities = guesses(network.logits(start.row[None]), network.draft_ids, BREADTH)
    breadth = tokens.shape[1]
    level = Nodes(tokens[0], torch.full_like(tokens[0], ROOT), probabilities[0])
    levels, confidences = [level], level.probabilities.double()
    own = torch.eye(breadth, dtype=torch.bool, device=tokens.device)
    sees, made = own[:, :0], start.row.expand(breadth, -1)
    first = 0
    for depth in range(num_levels - 1):
        best = confidences.topk(breadth).indices.sort().values
        # Of each node at this level: which of those that were continued it comes behind.
        above = best if depth == 0 else best // breadth
        sees = torch.cat((sees[above], own), 1)
        made = network.run(
            level.token_ids[best],
            made[above],
            (start.position + depth).expand(breadth),
            caches[0].drafting(start.lengths[:1], sees),
        )
        tokens, probabilities = guesses(network.logits(made), network.draft_ids, breadth)
        parents = (first + best)[:, None].expand_as(tokens)
        first += len(level.token_ids)
        level = Nodes(tokens.flatten(), parents.flatten(), probabilities.flatten())
        levels.append(level)
        confidences = (confidences[best][:, None] * probabilities.double()).flatten()
    return Nodes.joined(levels)


def _path(found: Candidates, node: int) -> set[int]:
    path: set[int] = set()
    while node != ROOT:
        path.add(node)
        node = found.parents[node]
    return path
