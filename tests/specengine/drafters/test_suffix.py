from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.draft import NOTHING, ROOT, Draft
from specengine.drafters.history import MAX_BYTES
from specengine.drafters.suffix import LEAST_CHANCE, SuffixDrafter, SuffixDrafts


def propose(token_ids: Sequence[int], max_tokens: int = 4) -> Draft:
    return SuffixDrafts(0).start(token_ids).propose(token_ids, max_tokens)


def likeliest(draft: Draft) -> list[int]:
    """Return the tokens of the path of first children."""
    ids: list[int] = []
    at = ROOT
    while at in draft.parents:
        at = draft.parents.index(at)
        ids.append(draft.token_ids[at])
    return ids


def told(drafter: SuffixDrafter, text: list[int], first: int, max_tokens: int = 4) -> list[Draft]:
    """Return the proposals at each token of a text from the first place on."""
    return [drafter.propose(text[:at], max_tokens) for at in range(first, len(text) + 1)]


TEXTS = st.one_of(
    st.lists(st.integers(1, 4), max_size=20),
    st.lists(st.integers(1, 3), min_size=60, max_size=100),
    st.tuples(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 12)).map(
        lambda parts: parts[0] * parts[1]
    ),
)


@settings(max_examples=50)
@given(TEXTS, st.integers(0, 9))
def test_neighbours_on_a_path_are_neighbours_in_the_text_and_no_path_comes_twice(
    ids: list[int], max_tokens: int
) -> None:
    draft = propose(ids, max_tokens)
    assert len(draft) <= max_tokens
    paths = [
        tuple(draft.token_ids[each] for each in draft.path(node)) for node in range(len(draft))
    ]
    assert len(set(paths)) == len(paths)
    pairs = set(itertools.pairwise(ids))
    for path in paths:
        for pair in zip((ids[-1], *path), path, strict=False):
            # A loop may go on past the end of the text, from its last token to an earlier one.
            assert pair in pairs or pair[0] == ids[-1]


@settings(max_examples=50)
@given(TEXTS, st.integers(1, 9))
def test_likelier_tokens_come_first_and_none_is_hopeless(ids: list[int], max_tokens: int) -> None:
    draft = propose(ids, max_tokens)
    assert list(draft.chances) == sorted(draft.chances, reverse=True)
    assert all(LEAST_CHANCE <= chance <= 1 for chance in draft.chances)


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3, 4, 5]])
def test_text_that_repeats_nothing_gives_nothing(ids: list[int]) -> None:
    assert propose(ids) == NOTHING


def test_no_room_gives_nothing() -> None:
    assert propose([1, 2, 1], 0) == NOTHING


def test_draft_is_what_followed_the_last_time() -> None:
    draft = propose([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4])
    assert draft.token_ids == (5, 6, 7, 8)
    assert draft.drafter == "suffix"
    assert draft.is_chain


def test_most_recent_place_wins_among_equals() -> None:
    assert likeliest(propose([1, 5, 1, 6, 1], 1)) == [6]


def test_longer_match_wins_over_a_more_recent_place() -> None:
    assert likeliest(propose([8, 1, 2, 5, 9, 1, 2, 6, 8, 1, 2], 1)) == [5]


def test_loop_goes_on_past_the_end_of_the_text() -> None:
    assert likeliest(propose([9, 1, 2, 1, 2, 1, 2], 5)) == [1, 2, 1, 2, 1]


def test_where_the_text_went_two_ways_both_are_candidates() -> None:
    draft = propose([1, 2, 3, 7, 1, 2, 4, 8, 1, 2], 4)
    roots = [
        token
        for token, parent in zip(draft.token_ids, draft.parents, strict=True)
        if parent == ROOT
    ]
    assert sorted(roots) == [3, 4]


def test_what_came_true_makes_a_class_of_candidates_likelier() -> None:
    """A text of pairs teaches that what followed once follows again, or that it does not."""
    dice = random.Random(1)
    honest = [token for _ in range(40) for token in (lambda at: (at, at + 50))(dice.randrange(9))]
    fickle = [token for _ in range(40) for token in (dice.randrange(9), 50 + dice.randrange(90))]
    last = []
    for text in (honest, fickle):
        drafter = SuffixDrafts(0).start(text)
        told(drafter, text, 4)
        ends = [*text, text[0]]
        last.append(max(drafter.propose(ends, 1).chances, default=0.0))
    assert last[0] > 0.6
    assert last[1] < 0.3


def test_a_request_that_repeats_less_than_others_is_believed_less() -> None:
    source = SuffixDrafts(0)
    dice = random.Random(2)
    for _ in range(5):
        text = [*range(20)] * 4
        told(source.start(text), text, 21)
    noise = [dice.randrange(6) for _ in range(150)]
    drafter = source.start(noise)
    drafts = told(drafter, noise, 2)
    assert drafts[-1].chances[0] < 0.6


def test_a_later_request_drafts_from_an_earlier_one() -> None:
    source = SuffixDrafts()
    earlier = source.start([1, 2, 3])
    earlier.propose([1, 2, 3, 4, 5, 6], 4)
    earlier.close()
    assert likeliest(source.start([9]).propose([9, 2, 3], 3))[:2] == [4, 5]


def test_a_text_can_be_learnt_without_a_request() -> None:
    source = SuffixDrafts()
    source.learn([10, 11, 12, 13])
    assert likeliest(source.start([9]).propose([10, 11], 2)) == [12, 13]


def test_what_is_forgotten_is_not_drafted() -> None:
    source = SuffixDrafts()
    source.learn([10, 11, 12, 13])
    source.forget()
    assert source.start([9]).propose([10, 11], 2) == NOTHING


def test_history_has_a_limit() -> None:
    assert SuffixDrafts().history.max_bytes == MAX_BYTES


def test_the_own_text_is_preferred_to_others() -> None:
    source = SuffixDrafts()
    source.learn([1, 2, 3, 5])
    text = [1, 2, 3, 4, 9, 1, 2, 3]
    assert likeliest(source.start(text).propose(text, 1)) == [4]
