"""The law of what rejection sampling writes, against the target's, and what must show a fault.

A toy target over four tokens, whose next token depends on the last two: the law of the first three
tokens is known exactly, and texts are counted over many seeds. ``EXACT_ROUNDS`` asks for more.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from specengine.draft import ROOT, Draft, Verdict
from specengine.noise import Stream, draw, uniform
from specengine.verify import rejection
from specengine.verify.rejection import reject, reject_block

VOCAB = 4
LENGTH = 3
ROUNDS = int(os.environ.get("EXACT_ROUNDS", "2500"))

Law = Callable[[tuple[int, ...]], torch.Tensor]
Verify = Callable[[Draft, torch.Tensor, list[int], int], Verdict]


def table(seed: int, sharpness: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(VOCAB + 1, VOCAB + 1, VOCAB, generator=generator, dtype=torch.float64)
    return (logits * sharpness).softmax(-1)


def law_of(rows: torch.Tensor) -> Law:
    def law(text: tuple[int, ...]) -> torch.Tensor:
        before, last = (-1, -1, *text)[-2:]
        return rows[before, last]

    return law


TARGET_ROWS = table(1, 1.5)
TARGET = law_of(TARGET_ROWS)
OPPOSITE = law_of((-2 * TARGET_ROWS.log()).softmax(-1))
DISJOINT_ROWS = torch.zeros_like(TARGET_ROWS).scatter_(2, TARGET_ROWS.argmin(2, keepdim=True), 1.0)
DRAFTERS = {
    "the target": TARGET,
    "another": law_of(table(2, 1.0)),
    "the opposite": OPPOSITE,
    "hardly ever right": law_of(DISJOINT_ROWS),
}


@dataclass(frozen=True)
class Shape:
    """How many proposals stand behind each token."""

    children: int
    depth: int
    are_drawn: bool = True


CHAIN, TREE, CHOSEN = Shape(1, 2), Shape(2, 2), Shape(2, 2, are_drawn=False)


def drafted(shape: Shape, law: Law, text: tuple[int, ...], seed: int) -> Draft:
    """Draw a draft, siblings without replacement; or choose the likeliest ones."""
    token_ids: list[int] = []
    parents: list[int] = []
    laws: list[torch.Tensor | None] = []

    def grow(parent: int, path: tuple[int, ...], depth: int) -> None:
        left = law((*text, *path)).clone()
        for _ in range(shape.children):
            if depth == 0 or float(left.sum()) <= 0:
                return
            left = left / left.sum()
            turn = len(text) * 1000 + len(token_ids)
            position = len(text) + len(path)
            token_id = (
                draw(left, seed, position, Stream.PROPOSAL, turn)
                if shape.are_drawn
                else int(left.argmax())
            )
            node = len(token_ids)
            token_ids.append(token_id)
            parents.append(parent)
            laws.append(left if shape.are_drawn else None)
            grow(node, (*path, token_id), depth - 1)
            left = left.clone()
            left[token_id] = 0

    grow(ROOT, (), shape.depth)
    return Draft(tuple(token_ids), tuple(parents), "test", tuple(laws))


def write(verify: Verify, shape: Shape, law: Law, seed: int) -> tuple[tuple[int, ...], int]:
    """Return the first tokens of a text, and how many proposals were accepted."""
    text: tuple[int, ...] = ()
    num_accepted = 0
    while len(text) < LENGTH:
        draft = drafted(shape, law, text, seed)
        paths = [draft.path(node) for node in (ROOT, *range(len(draft)))]
        drafted_ids = [tuple(draft.token_ids[node] for node in path) for path in paths]
        targets = torch.stack([TARGET((*text, *ids)) for ids in drafted_ids])
        positions = [len(text) + len(path) for path in paths]
        verdict = verify(draft, targets, positions, seed)
        num_accepted += len(verdict.accepted)
        text = (*text, *(draft.token_ids[node] for node in verdict.accepted), verdict.next_id)
    return text[:LENGTH], num_accepted


def excess(verify: Verify, shape: Shape, law: Law, rounds: int = ROUNDS) -> float:
    """Return how far texts are from the target's law: chi-square in its standard deviations."""
    counts = Counter(write(verify, shape, law, seed)[0] for seed in range(rounds))
    total, freedom = 0.0, -1
    rare_expected = rare_counted = 0.0
    for text in itertools.product(range(VOCAB), repeat=LENGTH):
        share = 1.0
        for at, token_id in enumerate(text):
            share *= float(TARGET(text[:at])[token_id])
        if share * rounds < 5:
            rare_expected, rare_counted = (
                rare_expected + share * rounds,
                rare_counted + counts[text],
            )
            continue
        total += (counts[text] - share * rounds) ** 2 / (share * rounds)
        freedom += 1
    if rare_expected:
        total += (rare_counted - rare_expected) ** 2 / rare_expected
        freedom += 1
    return (total - freedom) / (2 * freedom) ** 0.5


LIMIT = 5.0
"""Standard deviations; seeds are fixed, so this never fails by chance."""


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize(
    ("verify", "shape"),
    [(reject, CHAIN), (reject, TREE), (reject, CHOSEN), (reject_block, CHAIN)],
    ids=["chain", "tree", "chosen-tree", "block"],
)
def test_texts_have_the_law_of_the_target(name: str, verify: Verify, shape: Shape) -> None:
    assert excess(verify, shape, DRAFTERS[name]) < LIMIT


def test_the_target_as_its_own_drafter_is_always_accepted() -> None:
    for verify in (reject, reject_block):
        assert all(write(verify, CHAIN, TARGET, seed)[1] >= 2 for seed in range(200))


def test_blocks_accept_no_less_than_one_token_after_the_other() -> None:
    law = DRAFTERS["another"]
    accepted = [
        sum(write(verify, Shape(1, 4), law, seed)[1] for seed in range(600))
        for verify in (reject, reject_block)
    ]
    assert accepted[1] >= accepted[0] > 0


def test_more_siblings_are_accepted_more_often() -> None:
    law = DRAFTERS["another"]
    accepted = [
        sum(write(reject, Shape(children, 1), law, seed)[1] > 0 for seed in range(600))
        for children in (1, 2, 3)
    ]
    assert accepted == sorted(accepted)
    assert accepted[0] < accepted[-1]


NARROW = (torch.randn(16, generator=torch.Generator().manual_seed(5)) * 2).double().softmax(-1)
HALVES = torch.tensor([0.1] * 8 + [0.025] * 8, dtype=torch.float64)


def narrow_excess(target: torch.Tensor, law: torch.Tensor) -> float:
    """Return the excess over a vocabulary of 16, of single proposals of a law."""
    counts = torch.zeros(16, dtype=torch.float64)
    for seed in range(2 * ROUNDS):
        proposal = draw(law, seed, 0, Stream.PROPOSAL)
        draft = Draft((proposal,), (ROOT,), "test", (law,))
        verdict = reject(draft, torch.stack((target, target)), [0, 1], seed)
        counts[proposal if verdict.accepted else verdict.next_id] += 1
    expected = target * 2 * ROUNDS
    return (float(((counts - expected) ** 2 / expected).sum()) - 15) / 30**0.5


def test_a_narrow_vocabulary_with_an_adversary_has_the_law_of_the_target() -> None:
    assert narrow_excess(NARROW, (1 / NARROW) / (1 / NARROW).sum()) < LIMIT
    assert narrow_excess(HALVES, HALVES.flip(0)) < LIMIT


def accept_swapped(draft: Draft, targets: torch.Tensor, positions: list[int], seed: int) -> Verdict:
    """Accept where q / p says so, instead of p / q."""
    swapped = Draft(draft.token_ids, draft.parents, draft.drafter, tuple(targets[: len(draft)]))
    rows = torch.stack([*(law for law in draft.laws if law is not None), targets[-1]])
    return reject(swapped, rows, positions, seed)


def test_a_swapped_ratio_shows() -> None:
    assert excess(accept_swapped, CHAIN, DRAFTERS["another"]) > LIMIT


@pytest.mark.parametrize(
    ("verify", "shape"), [(reject, CHAIN), (reject, TREE), (reject_block, CHAIN)]
)
def test_a_rest_that_forgets_the_proposals_shows(
    monkeypatch: pytest.MonkeyPatch, verify: Verify, shape: Shape
) -> None:
    monkeypatch.setattr(rejection, "_rest", lambda target, law, otherwise: target)
    assert excess(verify, shape, OPPOSITE) > LIMIT


@pytest.mark.parametrize(("verify", "shape"), [(reject, CHAIN), (reject_block, CHAIN)])
def test_a_rest_that_is_not_clamped_shows(
    monkeypatch: pytest.MonkeyPatch, verify: Verify, shape: Shape
) -> None:
    monkeypatch.setattr(rejection, "_left", lambda target, law: (target - law).abs())
    assert excess(verify, shape, OPPOSITE) > LIMIT


def test_a_stream_that_coins_and_rest_share_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(num: int, seed: int, position: int, stream: Stream, turn: int = 0) -> torch.Tensor:
        return uniform(num, seed, position, Stream.REST)

    monkeypatch.setattr(rejection, "uniform", shared)
    assert narrow_excess(HALVES, HALVES.flip(0)) > LIMIT


def test_siblings_drawn_as_if_with_replacement_show() -> None:
    """Their laws would be wrong: the second sibling is never the first one."""

    def forgetful(draft: Draft, targets: torch.Tensor, positions: list[int], seed: int) -> Verdict:
        laws = [
            draft.laws[min(node for node, of in enumerate(draft.parents) if of == parent)]
            for parent in draft.parents
        ]
        changed = Draft(draft.token_ids, draft.parents, draft.drafter, tuple(laws))
        return reject(changed, targets, positions, seed)

    assert excess(forgetful, Shape(3, 1), OPPOSITE) > LIMIT
