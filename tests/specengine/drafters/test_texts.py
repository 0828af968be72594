from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.drafters.texts import (
    MAX_MATCH,
    MAX_PLACES,
    Text,
    continuations,
    match_lens,
)

TEXTS = st.lists(st.integers(1, 4), min_size=1, max_size=120)


def text_of(ids: list[int]) -> Text:
    text = Text(capacity=4)
    text.extend(ids)
    return text


def match_len(ids: list[int], place: int) -> int:
    lengths = range(min(place, MAX_MATCH) + 1)
    return max(n for n in lengths if ids[place - n : place] == ids[len(ids) - n :])


@settings(max_examples=60)
@given(TEXTS)
def test_places_are_behind_earlier_occurrences_of_the_last_token(ids: list[int]) -> None:
    text = text_of(ids)
    places = [place - MAX_MATCH for place in text.places(text.tail).tolist()]
    every = [at for at in range(1, len(ids)) if ids[at - 1] == ids[-1]]
    assert set(places) <= set(every)
    assert places == sorted(places)
    assert len(places) <= MAX_PLACES
    if len(every) <= MAX_PLACES:
        assert places == every


@settings(max_examples=60)
@given(TEXTS)
def test_match_lengths_are_those_found_by_comparing(ids: list[int]) -> None:
    text = text_of(ids)
    places = text.places(text.tail)
    found = match_lens(text.ids, places, text.tail).tolist()
    assert found == [match_len(ids, place - MAX_MATCH) for place in places.tolist()]


@settings(max_examples=60)
@given(TEXTS, st.integers(1, 9))
def test_what_follows_goes_on_with_itself_past_the_end(ids: list[int], number: int) -> None:
    text = text_of(ids)
    places = text.places(text.tail)
    rows = continuations(text.ids, places, number, len(text.ids)).tolist()
    for place, row in zip(places.tolist(), rows, strict=True):
        grown = list(ids)
        for at in range(place - MAX_MATCH, place - MAX_MATCH + number):
            grown.append(grown[at])
        assert row == grown[len(ids) :]


def test_of_too_many_places_those_of_longer_matches_stay() -> None:
    text = text_of([5, 1, 2, 9, *[1, 7] * (MAX_PLACES + 5), 5, 1])
    places = text.places(text.tail)
    assert text.ids[places].tolist() == [2]


def test_a_text_that_grew_equals_one_made_at_once() -> None:
    grown = text_of([1])
    for token_id in range(2, 40):
        grown.extend([token_id])
    assert np.array_equal(grown.token_ids, np.arange(1, 40))
    assert len(grown) == 39


def test_an_empty_text_has_no_places() -> None:
    text = Text()
    assert not len(text.places(text.tail))
