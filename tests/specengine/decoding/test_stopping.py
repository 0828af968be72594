"""Strings that end a text that comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.decoding.stopping import StopStrings


def passed(strings: list[str], pieces: list[str]) -> tuple[str, bool]:
    stops = StopStrings(strings)
    text = "".join(map(stops.feed, pieces))
    return text + stops.finish(), stops.has_met


@pytest.mark.parametrize(
    ("strings", "pieces", "text"),
    [
        (["END"], ["a END b"], "a "),
        (["END"], ["a E", "N", "D b"], "a "),
        (["END"], ["a EN", "d"], "a ENd"),
        (["aab"], ["aa", "ab"], "a"),
        (["b", "ab"], ["ab"], ""),
        (["\n\n"], ["x\n", "\ny"], "x"),
        ([], ["x"], "x"),
    ],
)
def test_text_is_passed_on_up_to_the_first_stop(
    strings: list[str], pieces: list[str], text: str
) -> None:
    assert passed(strings, pieces)[0] == text


def test_only_what_may_begin_a_stop_is_held_back() -> None:
    stops = StopStrings(["stop", "top!"])
    assert stops.feed("abc st") == "abc "
    assert stops.feed("o") == ""
    assert stops.feed("x") == "stox"
    assert stops.finish() == ""


def test_nothing_comes_after_a_stop() -> None:
    stops = StopStrings(["b"])
    assert stops.feed("ab") == "a"
    assert stops.has_met
    assert (stops.feed("cde"), stops.finish()) == ("", "")


TEXT = st.text("ab", max_size=12)


@given(pieces=st.lists(TEXT, max_size=8), strings=st.lists(st.text("ab", min_size=1, max_size=4)))
def test_pieces_do_not_matter(pieces: list[str], strings: list[str]) -> None:
    whole = "".join(pieces)
    assert passed(strings, pieces) == passed(strings, list(whole))
    assert passed(strings, pieces)[1] == any(string in whole for string in strings)
