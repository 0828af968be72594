from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specengine.drafters import history as history_module
from specengine.drafters.history import BYTES_PER_TOKEN, LEAST_TOKENS, MAX_BYTES, RUN_LENS, History
from specengine.drafters.texts import GAP, MAX_PLACES, Text, continuations, match_lens

LEAST_LEN = RUN_LENS[-1]


def history(num_tokens: int = LEAST_TOKENS) -> History:
    return History(num_tokens * BYTES_PER_TOKEN)


def following(known: History, ids: list[int], number: int = 1) -> list[list[int]]:
    """Return what followed the places of the longest match, oldest first."""
    text = Text()
    text.extend(ids)
    places = known.find(text.tail)
    lens = match_lens(known.ids, places, text.tail)
    best = max(LEAST_LEN, lens.max(initial=0))
    rows = continuations(known.ids, places[lens == best], number, known.end).tolist()
    return [row[: row.index(GAP)] if GAP in row else row for row in rows]


def test_a_text_is_found_again_by_its_last_tokens() -> None:
    known = history()
    known.learn([1, 2, 3, 4, 5, 6])
    assert following(known, [9, 3, 4], 2) == [[5, 6]]
    assert following(known, [9, 4]) == []


def test_one_token_is_not_enough() -> None:
    known = history()
    known.learn([1, 2, 3])
    assert following(known, [2]) == []
    assert following(known, [7, 2]) == []


def test_a_text_does_not_go_on_in_the_next_one() -> None:
    known = history()
    known.learn([1, 2, 3, 4])
    known.learn([7, 8, 9])
    assert following(known, [1, 2], 9) == [[3, 4]]
    assert following(known, [7, 8], 9) == [[9]]
    assert following(known, [4, 7]) == []


TEXTS = st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=12)


@settings(max_examples=60)
@given(TEXTS, st.lists(st.integers(0, 3), min_size=LEAST_LEN, max_size=6))
def test_every_longest_match_is_found(texts: list[list[int]], ids: list[int]) -> None:
    """Held against a search of all texts from end to end, each of them stored in full."""
    known = history()
    for number, text in enumerate(texts):
        known.learn([100 + number, *text])
    matches = dict[int, set[int]]()
    for text in texts:
        for at in range(1, len(text)):
            lengths = range(min(at, len(ids)) + 1)
            length = max(n for n in lengths if text[at - n : at] == ids[len(ids) - n :])
            matches.setdefault(length, set()).add(text[at])
    longest = max(matches, default=0)
    if longest < LEAST_LEN:
        assert following(known, ids) == []
    elif len(known.find(np.array(([GAP] * 16 + ids)[-16:], np.int32))) < MAX_PLACES:
        assert {row[0] for row in following(known, ids)} == matches[longest]


def test_what_two_requests_have_in_common_is_stored_once() -> None:
    known = history()
    known.learn(list(range(100)))
    before = known.num_tokens
    known.learn(list(range(101)))
    known.learn(list(range(101)))
    assert known.num_tokens - before < 25
    assert following(known, [98, 99]) == [[100]]


@pytest.mark.parametrize("num_texts", [0, 1, 10, 300])
def test_memory_is_bounded_whatever_is_learnt(num_texts: int) -> None:
    known = history()
    for number in range(num_texts):
        known.learn(list(range(number, number + 60)))
    assert known.num_bytes <= known.max_bytes
    assert known.num_tokens <= LEAST_TOKENS


def test_the_oldest_is_overwritten() -> None:
    known = history()
    dice = random.Random(0)
    for number in range(200):
        known.learn([1000 + number, 2000 + number, 3000 + number, *dice.choices(range(9), k=30)])
    assert following(known, [1000, 2000]) == []
    assert following(known, [1150, 2150]) == []
    assert following(known, [1199, 2199]) == [[3199]]
    assert following(known, [1190, 2190]) == [[3190]]


def test_a_long_text_leaves_its_end() -> None:
    known = history()
    number = 10 * LEAST_TOKENS
    known.learn(list(range(number)))
    assert known.num_tokens <= LEAST_TOKENS // 2
    assert following(known, [number - 3, number - 2]) == [[number - 1]]
    assert following(known, [10, 11]) == []


@pytest.mark.parametrize("max_bytes", [0, LEAST_TOKENS * BYTES_PER_TOKEN - 1])
def test_without_room_nothing_is_kept(max_bytes: int) -> None:
    known = History(max_bytes)
    known.learn([1, 2, 3])
    known.forget()
    assert known.num_bytes == 0
    assert following(known, [1, 2]) == []


def test_the_default_limit_is_a_million_tokens() -> None:
    known = History()
    assert known.num_bytes <= MAX_BYTES
    assert known.max_bytes // BYTES_PER_TOKEN == 2**20


def test_of_many_places_the_most_recent_stay() -> None:
    known = history()
    for number in range(3 * MAX_PLACES):
        known.learn([5, 6, 100 + number])
    found = following(known, [5, 6])
    assert [row[0] for row in found] == list(range(100 + 2 * MAX_PLACES, 100 + 3 * MAX_PLACES))


def test_a_token_beyond_16_bits_is_told_apart() -> None:
    known = history()
    known.learn([1 << 18, (1 << 18) + 1, 7])
    known.learn([0, 1, 8])
    assert following(known, [1 << 18, (1 << 18) + 1]) == [[7]]
    assert following(known, [0, 1]) == [[8]]


def test_what_is_forgotten_is_not_found() -> None:
    known = history()
    known.learn([1, 2, 3])
    known.forget()
    assert following(known, [1, 2]) == []
    known.learn([1, 2, 4])
    assert following(known, [1, 2]) == [[4]]


def test_before_places_run_out_all_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "LAST_PLACE", 200)
    known = history()
    for number in range(20):
        known.learn([1000 + number, 2000 + number, 3000 + number, *[7] * 20])
        assert known.end < 200
    assert following(known, [1019, 2019]) == [[3019]]
    assert following(known, [1001, 2001]) == []
