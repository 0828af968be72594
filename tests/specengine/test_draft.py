from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.draft import NOTHING, ROOT, Draft

TREE = Draft((5, 6, 7, 8), (ROOT, ROOT, 0, 2), "tree")


def test_chain_continues_each_token_by_the_next() -> None:
    draft = Draft.chain([7, 8, 9], "suffix")
    assert draft == Draft((7, 8, 9), (ROOT, 0, 1), "suffix")
    assert draft.is_chain


def test_tree_is_no_chain() -> None:
    assert not TREE.is_chain


def test_nothing_is_an_empty_chain_of_nobody() -> None:
    assert Draft.chain([], "") == NOTHING
    assert len(NOTHING) == 0
    assert NOTHING.is_chain


@pytest.mark.parametrize("parents", [(0,), (1, ROOT), (-2,)])
def test_child_before_its_parent_is_a_bug(parents: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Draft((5,) * len(parents), parents, "tree")


def test_token_without_a_parent_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        Draft((5, 6), (ROOT,), "tree")


def test_whole_draft_that_fits_is_not_copied() -> None:
    assert TREE.cut(9, 4) is TREE


def test_cut_keeps_the_branches_that_begin_early() -> None:
    assert TREE.cut(9, 3) == Draft((5, 6, 7), (ROOT, ROOT, 0), "tree")


def test_cut_to_no_tokens_is_nothing() -> None:
    assert TREE.cut(9, 0) == NOTHING
    assert Draft.chain([99, 1], "suffix").cut(9, 4) == NOTHING


@given(st.lists(st.sampled_from([-1, 0, 4, 9, 10, 11]), max_size=6), st.integers(0, 7))
def test_cut_ends_before_the_first_id_that_is_no_token(ids: list[int], max_tokens: int) -> None:
    bad = [at for at, token_id in enumerate(ids) if not 0 <= token_id < 10]
    length = min([max_tokens, len(ids), *bad])
    assert Draft.chain(ids, "suffix").cut(10, max_tokens).token_ids == tuple(ids[:length])
