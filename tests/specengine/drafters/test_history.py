from __future__ import annotations

import random

import pytest

from specengine.drafters.history import BYTES_PER_TOKEN, LEAST_LEN, History
from specengine.drafters.texts import MAX_PLACES, Text, match_lens

SEGMENT = 256


def history(num_segments: int = 4) -> History:
    return History(num_segments * SEGMENT * BYTES_PER_TOKEN, SEGMENT)


def following(known: History, ids: list[int]) -> list[int]:
    """Return what followed the places of the longest match, in order of place."""
    text = Text()
    text.extend(ids)
    places = known.find(text.tail)
    lens = match_lens(known.ids, places, text.tail)
    best = lens.max(initial=LEAST_LEN)
    return known.ids[places[lens == best]].tolist()


def test_a_text_is_found_again_by_its_last_tokens() -> None:
    known = history()
    known.learn([1, 2, 3, 4, 5, 6])
    assert following(known, [9, 3, 4]) == [5]
    assert following(known, [9, 4]) == []


def test_one_token_is_not_enough() -> None:
    known = history()
    known.learn([1, 2, 3])
    assert following(known, [2]) == []
    assert following(known, [7, 2]) == []


def test_a_text_does_not_go_on_in_the_next_one() -> None:
    known = history()
    known.learn([1, 2, 3])
    known.learn([7, 8, 9])
    assert following(known, [2, 3]) == []
    assert following(known, [7, 8]) == [9]


@pytest.mark.parametrize("num_texts", [3, 40])
def test_sorted_and_unsorted_segments_find_the_same(num_texts: int) -> None:
    """Of what was learnt, whether it lies in sorted segments or not, each match is found."""
    dice = random.Random(num_texts)
    known = history(num_segments=40)
    texts = [[dice.randrange(30) for _ in range(100)] for _ in range(num_texts)]
    for text in texts:
        known.learn(text)
    for text in texts:
        at = dice.randrange(20, 99)
        assert text[at] in following(known, text[:at])


def test_what_two_requests_have_in_common_is_stored_once() -> None:
    known = history()
    known.learn(list(range(100)))
    before = known.num_tokens
    known.learn(list(range(101)))
    known.learn(list(range(101)))
    assert known.num_tokens - before < 25
    assert following(known, [98, 99]) == [100]


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    known = history(num_segments=3)
    for number in range(60):
        known.learn([1000 + number, 2000 + number, 3000 + number, *range(number, number + 60)])
        assert known.num_bytes <= known.max_bytes
    assert following(known, [1000, 2000]) == []
    assert following(known, [1059, 2059]) == [3059]


def test_a_text_longer_than_a_segment_leaves_its_end() -> None:
    known = history()
    known.learn(list(range(10 * SEGMENT)))
    assert known.num_tokens <= SEGMENT
    assert following(known, [10 * SEGMENT - 3, 10 * SEGMENT - 2]) == [10 * SEGMENT - 1]
    assert following(known, [10, 11]) == []


def test_without_room_nothing_is_kept() -> None:
    known = History(0)
    known.learn([1, 2, 3])
    assert (known.is_on, known.num_bytes) == (False, 0)
    assert following(known, [1, 2]) == []


def test_of_many_places_the_most_recent_stay() -> None:
    known = history(num_segments=20)
    for number in range(3 * MAX_PLACES):
        known.learn([5, 6, 100 + number])
    found = following(known, [5, 6])
    assert found[-1] == 100 + 3 * MAX_PLACES - 1
    assert len(found) <= MAX_PLACES


def test_a_token_beyond_16_bits_is_told_apart() -> None:
    known = history()
    known.learn([1 << 18, (1 << 18) + 1, 7])
    known.learn([0, 1, 8])
    assert following(known, [1 << 18, (1 << 18) + 1]) == [7]
    assert following(known, [0, 1]) == [8]
