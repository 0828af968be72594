"""Facts about the places that were edited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lsp_server.context.edits import MAX_EDIT_CHARS, MAX_PLACES, NEAR_CHARS, EditLog
from lsp_server.documents import Edit


def spans(log: EditLog) -> list[tuple[int, int]]:
    return [(place.start, place.end) for place in log.places]


def test_keys_in_a_row_are_one_place():
    log = EditLog()
    for number in range(5):
        log.note([Edit(100 + number, 100 + number, "x")], number)
    assert spans(log) == [(100, 105)]


def test_the_latest_place_comes_first():
    log = EditLog()
    log.note([Edit(10, 10, "ab")], 1)
    log.note([Edit(5000, 5000, "cd")], 2)
    log.note([Edit(12, 12, "e")], 3)
    assert spans(log) == [(10, 13), (5001, 5003)]


def test_places_move_with_what_is_inserted_and_deleted_before_them():
    log = EditLog()
    log.note([Edit(5000, 5000, "cd")], 1)
    log.note([Edit(0, 0, "1234567890")], 2)
    assert (5010, 5012) in spans(log)
    log.note([Edit(2000, 2100, "")], 3)
    assert (4910, 4912) in spans(log)


def test_an_edit_of_the_whole_text_makes_places_void():
    log = EditLog()
    log.note([Edit(10, 10, "ab")], 1)
    log.note([Edit(0, MAX_EDIT_CHARS + 1, "")], 2)
    assert log.places == []


def test_old_places_make_room():
    log = EditLog()
    for number in range(MAX_PLACES + 3):
        at = number * (2 * NEAR_CHARS + 10)
        log.note([Edit(at, at, "x")], number)
    assert [place.tick for place in log.places] == list(range(MAX_PLACES + 2, 2, -1))


@given(
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 60), st.text(max_size=40)), max_size=30)
)
def test_places_stay_inside_the_text(steps: list[tuple[int, int, str]]):
    text, log = "x" * 1000, EditLog()
    for tick, (start, length, new) in enumerate(steps):
        start = min(start, len(text))
        end = min(start + length, len(text))
        text = text[:start] + new + text[end:]
        log.note([Edit(start, end, new)], tick)
        assert all(0 <= p.start <= p.end <= len(text) for p in log.places)
