from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.draft import NOTHING, ROOT, Draft, Verdict
from specengine.verify.match import match


@given(st.lists(st.integers(0, 2), max_size=5), st.data())
def test_chain_keeps_what_agrees_and_adds_the_next_choice(ids: list[int], data: st.DataObject):
    num_choices = len(ids) + 1
    choices = data.draw(st.lists(st.integers(0, 2), min_size=num_choices, max_size=num_choices))
    verdict = match(Draft.chain(ids, "suffix"), choices)
    length = len(verdict.accepted)
    assert verdict.accepted == tuple(range(length))
    assert ids[:length] == choices[:length]
    assert length == len(ids) or ids[length] != choices[length]
    assert verdict.next_id == choices[length]


def test_nothing_drafted_gives_the_first_choice() -> None:
    assert match(NOTHING, [4]) == Verdict((), 4)


def test_token_behind_a_rejected_one_is_not_accepted() -> None:
    assert match(Draft.chain([1, 2, 3], "suffix"), [9, 2, 3, 4]) == Verdict((), 9)


@pytest.mark.parametrize(
    ("choices", "accepted", "next_id"),
    [
        ([5, 7, 0, 8, 9], (0, 2, 3), 9),
        ([6, 0, 3, 0, 0], (1,), 3),
        ([5, 2, 0, 8, 0], (0,), 2),
        ([9, 7, 3, 8, 0], (), 9),
    ],
)
def test_tree_is_followed_along_the_branch_that_agrees(
    choices: list[int], accepted: tuple[int, ...], next_id: int
) -> None:
    tree = Draft((5, 6, 7, 8), (ROOT, ROOT, 0, 2), "tree")
    assert match(tree, choices) == Verdict(accepted, next_id)


def test_equal_siblings_are_accepted_once() -> None:
    twins = Draft((5, 5, 6), (ROOT, ROOT, 1), "tree")
    assert match(twins, [5, 6, 6, 0]) == Verdict((0,), 6)


def test_a_missing_choice_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        match(Draft.chain([1, 2], "suffix"), [1, 2])
