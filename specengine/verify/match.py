"""Verification by comparison: a drafted token survives if it is the one the target chooses.

With greedy choices this is greedy matching; with seeded choices it is exact for the seed. Pure:
values in, ``Verdict`` out.

Source: Leviathan et al. 2023, arXiv 2211.17192, section 2 (greedy case), carried over to trees.
"""

from __future__ import annotations

from collections.abc import Sequence

from specengine.draft import ROOT, Draft, Verdict


def match(draft: Draft, choices: Sequence[int]) -> Verdict:
    """Return the path of drafted tokens that agree with the target's choices.

    Shapes:  choices [len(draft) + 1]; entry 0 follows the last committed token, entry i + 1
        follows drafted token i.
    """
    assert len(choices) == len(draft) + 1
    accepted: list[int] = []
    at = ROOT
    for node, (token_id, parent) in enumerate(zip(draft.token_ids, draft.parents, strict=True)):
        if parent == at and token_id == choices[at + 1]:
            accepted.append(node)
            at = node
    return Verdict(tuple(accepted), choices[at + 1])
