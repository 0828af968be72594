"""Which guesses become a draft."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specengine.draft import NOTHING, ROOT
from specengine.heads.candidates import Candidates, from_positions

IDS = [100, 101, 102, 103]
GUESSES = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.1, 0.8, 0.05, 0.05]])


def draft_of(max_tokens: int, least: float = 0.0) -> list[tuple[int, ...]]:
    draft = from_positions(GUESSES, IDS, max_tokens, "test", least, 4)
    return [tuple(draft.token_ids[at] for at in draft.path(node)) for node in range(len(draft))]


def test_the_most_likely_chain_comes_first() -> None:
    assert draft_of(2) == [(100,), (100, 101)]


def test_a_second_branch_comes_when_it_is_likelier_than_going_deeper() -> None:
    assert set(draft_of(4)) == {(100,), (100, 101), (101,), (101, 101)}


def test_unlikely_nodes_are_left_out() -> None:
    assert set(draft_of(9, least=0.29)) == {(100,), (100, 101), (101,)}
    assert from_positions(GUESSES, IDS, 9, "test", 0.7, 4) is NOTHING


def test_a_breadth_of_one_gives_a_chain() -> None:
    draft = from_positions(GUESSES, IDS, 9, "test", 0.0, 1)
    assert draft.is_chain
    assert draft.token_ids == (100, 101)


@given(
    st.integers(1, 12),
    st.lists(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), min_size=1, max_size=4),
)
def test_no_node_outside_a_tree_is_likelier_than_one_inside(
    max_tokens: int, weights: list[list[float]]
) -> None:
    guesses = torch.tensor(weights, dtype=torch.float64)
    guesses /= guesses.sum(1, keepdim=True)
    draft = from_positions(guesses, IDS[:3], max_tokens, "test", 0.0, 3)
    paths = {tuple(draft.token_ids[at] - 100 for at in draft.path(n)) for n in range(len(draft))}
    every = [
        path
        for depth in range(1, len(weights) + 1)
        for path in itertools.product(range(3), repeat=depth)
    ]

    def likelihood(path: tuple[int, ...]) -> float:
        return float(torch.stack([guesses[at, each] for at, each in enumerate(path)]).prod())

    assert len(paths) == min(max_tokens, len(every))
    least = min(map(likelihood, paths))
    assert all(likelihood(path) <= least + 1e-12 for path in every if path not in paths)


def test_the_best_nodes_are_a_tree_however_they_were_found() -> None:
    found = Candidates()
    first = found.add(7, ROOT, 0.5)
    second = found.add(8, ROOT, 0.4)
    found.add(9, first, 0.1)
    found.add(9, second, 1.0)
    draft = found.best(3, "test", 0.2)
    assert draft.token_ids == (7, 8, 9)
    assert draft.parents == (ROOT, ROOT, 1)
    assert draft.chances == (0.5, 0.4, 0.4)
    assert found.best(3, "test", 0.6) is NOTHING


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_draft_has_no_more_nodes_than_there_is_room(max_tokens: int) -> None:
    assert len(draft_of(max_tokens)) == max_tokens
