from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specengine.draft import NOTHING, Draft
from specengine.drafters.suffix import SuffixDrafts

RUN_LENS, MAX_PLACES, MAX_MATCH = (4, 2, 1), 16, 64
"""Written down anew: the rule is what is tested, not that it equals itself."""


def propose(token_ids: Sequence[int], max_tokens: int = 4) -> Draft:
    return SuffixDrafts().start(token_ids).propose(token_ids, max_tokens)


def expected(ids: list[int], max_tokens: int) -> tuple[int, ...]:
    """Return the draft by the rule as it is written down, looking at every place anew."""
    place = next((found for run in RUN_LENS if (found := best_place(ids, run)) is not None), None)
    if place is None:
        return ()
    text = list(ids)
    for at in range(place, place + max_tokens):
        text.append(text[at])
    return tuple(text[len(ids) :])


def best_place(ids: list[int], run_len: int) -> int | None:
    run = ids[-run_len:]
    places = [at for at in range(run_len, len(ids)) if ids[at - run_len : at] == run]
    return max(places[-MAX_PLACES:], key=lambda at: (match_len(ids, at), at), default=None)


def match_len(ids: list[int], place: int) -> int:
    lengths = range(min(place, MAX_MATCH) + 1)
    return max(n for n in lengths if ids[place - n : place] == ids[len(ids) - n :])


TEXTS = st.one_of(
    st.lists(st.integers(1, 4), max_size=20),
    st.lists(st.integers(1, 3), min_size=60, max_size=100),
    st.tuples(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 12)).map(
        lambda parts: parts[0] * parts[1]
    ),
)


@settings(max_examples=150)
@given(TEXTS, st.integers(1, 8))
@example([1, 2, 3, 9, *[7, 1, 2, 3] * 17, 9, 1, 2, 3], 4)
def test_draft_follows_the_rule(ids: list[int], max_tokens: int) -> None:
    assert propose(ids, max_tokens).token_ids == expected(ids, max_tokens)


@settings(max_examples=60)
@given(TEXTS, st.lists(st.integers(0, 9), max_size=10))
def test_index_that_grew_equals_one_built_at_once(ids: list[int], steps: list[int]) -> None:
    drafter = SuffixDrafts().start(ids)
    length = 0
    for step in steps:
        length = min(length + step, len(ids))
        assert drafter.propose(ids[:length], 5) == propose(ids[:length], 5)


@pytest.mark.parametrize("ids", [[], [1], [1, 2, 3, 4, 5]])
def test_text_that_repeats_nothing_gives_nothing(ids: list[int]) -> None:
    assert propose(ids) == NOTHING


def test_no_room_gives_nothing() -> None:
    assert propose([1, 2, 1], 0) == NOTHING


def test_draft_is_what_followed_the_last_time() -> None:
    assert propose([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]) == Draft.chain([5, 6, 7, 8], "suffix")


def test_most_recent_place_wins_among_equals() -> None:
    assert propose([1, 5, 1, 6, 1], 1).token_ids == (6,)


def test_longer_match_wins_over_a_more_recent_place() -> None:
    assert propose([8, 1, 2, 5, 9, 1, 2, 6, 8, 1, 2], 1).token_ids == (5,)


def test_longer_run_wins_over_a_more_recent_place() -> None:
    assert propose([1, 2, 5, *[2, 6] * MAX_PLACES, 1, 2], 1).token_ids == (5,)


@pytest.mark.parametrize(("num_since", "drafted"), [(MAX_PLACES - 1, 5), (MAX_PLACES, 6)])
def test_only_recent_places_are_compared(num_since: int, drafted: int) -> None:
    since = [token_id for at in range(num_since) for token_id in (100 + at, 8, 1, 6)]
    assert propose([50, 7, 8, 1, 5, *since, 51, 7, 8, 1], 1).token_ids == (drafted,)


def test_loop_goes_on_past_the_end_of_the_text() -> None:
    assert propose([9, 1, 2, 1, 2], 5).token_ids == (1, 2, 1, 2, 1)


def test_requests_share_nothing() -> None:
    drafts = SuffixDrafts()
    drafts.start([]).propose([1, 2, 3, 1], 2)
    other = drafts.start([])
    assert other.propose([1], 2) == NOTHING
    other.close()
