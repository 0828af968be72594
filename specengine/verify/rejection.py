"""Verification that keeps the target's distribution instead of one text: rejection sampling.

A proposal that its drafter drew with probability q is accepted with probability min(1, p / q), and
where all are rejected the next token is drawn from what the proposals left of p. More is accepted
than by comparing draws; the law of the text is the target's either way.

A proposal without a law of its own was chosen, not drawn: its law has all weight on it.

Source:  Leviathan et al. 2023, arXiv 2211.17192, and Chen et al. 2023, arXiv 2302.01318 (chains);
SpecInfer, Miao et al. 2023, arXiv 2305.09781, and Sequoia, Chen et al. 2024, arXiv 2402.12374
(siblings without replacement); Sun et al. 2024, arXiv 2403.10444 (blocks).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specengine.draft import ROOT, Draft, Verdict
from specengine.noise import Stream, draw, uniform


def reject(draft: Draft, targets: torch.Tensor, positions: Sequence[int], seed: int) -> Verdict:
    """Return the accepted path of a draft, of any shape, and the token that follows it.

    Shapes:  targets [len(draft) + 1, V], float64: the target's distribution behind the last
        committed token and behind each drafted one; positions [len(draft) + 1]: those of the tokens
        that these rows are for. The laws of siblings are those they were drawn from in turn,
        without replacement.
    """
    accepted: list[int] = []
    at = ROOT
    while True:
        position = positions[at + 1]
        node, rest = _try_children(draft, at, targets[at + 1], position, seed)
        if node is None:
            return Verdict(tuple(accepted), draw(rest, seed, position, Stream.REST))
        accepted.append(node)
        at = node


def reject_block(
    draft: Draft, targets: torch.Tensor, positions: Sequence[int], seed: int
) -> Verdict:
    """Return what ``reject`` returns for a chain, deciding on its tokens together.

    The accepted part is the longest beginning that passes, whatever shorter ones do: never less is
    accepted, on average, and often more.

    Shapes:  as for ``reject``; the draft is a chain.
    """
    assert draft.is_chain, "blocks are chains"
    num, weight, kept, weight_kept = len(draft), 1.0, 0, 1.0
    for at in range(num):
        token_id, law = draft.token_ids[at], _law(draft, at, targets[at])
        weight = min(1.0, weight * float(targets[at, token_id]) / max(float(law[token_id]), 1e-300))
        passes = weight
        if at + 1 < num:
            left = _left(targets[at + 1] * weight, _law(draft, at + 1, targets[at + 1]))
            mass = float(left.sum())
            # Nothing lost and nothing left to draw: the next proposal is accepted for certain.
            passes = mass / (mass + 1.0 - weight) if mass + 1.0 - weight > 0 else 1.0
        coin = uniform(1, seed, positions[at], Stream.BLOCK_COIN, turn=positions[0])
        if float(coin) < passes:
            kept, weight_kept = at + 1, weight
    rest = targets[kept]
    if kept < num:
        rest = _rest(rest * weight_kept, _law(draft, kept, rest), rest)
    accepted = tuple(range(kept))
    return Verdict(accepted, draw(rest, seed, positions[kept], Stream.REST))


def _try_children(
    draft: Draft, parent: int, target: torch.Tensor, position: int, seed: int
) -> tuple[int | None, torch.Tensor]:
    """Return the child that is accepted, or None and the weights of the token to draw instead."""
    rest = target
    children = [node for node, of in enumerate(draft.parents) if of == parent]
    for sibling, node in enumerate(children):
        token_id, law = draft.token_ids[node], _law(draft, node, target)
        coin = float(uniform(1, seed, position, Stream.COIN, turn=sibling))
        if coin * float(law[token_id]) < float(rest[token_id]):
            return node, rest
        remaining = _rest(rest, law, rest)
        rest = remaining / remaining.sum()
    return None, rest


def _law(draft: Draft, node: int, like: torch.Tensor) -> torch.Tensor:
    """Return the distribution that a proposal was drawn from, [V]."""
    law = draft.laws[node] if draft.laws else None
    if law is not None:
        return law.to(like.dtype)
    certain = torch.zeros_like(like)
    certain[draft.token_ids[node]] = 1.0
    return certain


def _left(target: torch.Tensor, law: torch.Tensor) -> torch.Tensor:
    return (target - law).clamp_min(0)


def _rest(target: torch.Tensor, law: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Return what proposals of a law leave of a target; nothing is left only by rounding."""
    left = _left(target, law)
    return left if float(left.sum()) > 0 else otherwise
