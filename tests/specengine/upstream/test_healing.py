"""Facts about stepping back by text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.models.families import Splits
from specengine.upstream.healing import MAX_FORCED_CHARS, Forced, split

SPLITS: tuple[Splits, ...] = ("gpt2", "cl100k", "blanks")


@pytest.mark.parametrize(
    ("splits", "prefix", "forced"),
    [
        ("gpt2", "def f():\n    ", "\n    "),
        ("cl100k", "def f():\n    ", "    "),
        ("blanks", "def f():\n\t", "\t"),
        ("gpt2", "x = ret", " ret"),
        ("cl100k", "x = ret", " ret"),
        ("gpt2", "self.na", "na"),
        ("cl100k", "self.na", ".na"),
        ("gpt2", "my_na", "na"),
        ("cl100k", "my_na", "_na"),
        ("cl100k", "x\nna", "na"),
        ("gpt2", "x = ", " "),
        ("blanks", "x2", ""),
        ("gpt2", "f(", "("),
        ("gpt2", "x == (", " ("),
        ("cl100k", "f([", "(["),
        ("cl100k", "f((na", "na"),
        ("blanks", "x +=", " +="),
        ("gpt2", "x = größ", " größ"),
    ],
)
def test_it_steps_over_the_last_word_or_blanks(splits: Splits, prefix: str, forced: str):
    assert split(prefix, splits) == (prefix.removesuffix(forced) if forced else prefix, forced)


@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("prefix", ["", "abc", "   ", "x" + "a" * MAX_FORCED_CHARS * 2])
def test_nothing_is_stepped_over_if_nothing_would_stay_or_too_much_goes(
    splits: Splits, prefix: str
):
    kept, forced = split(prefix, splits)
    assert kept == prefix
    assert forced == ""


@given(st.text(alphabet="ab_. \n\t1ü", max_size=80), st.sampled_from(SPLITS))
def test_what_stays_and_what_is_forced_are_the_text(prefix: str, splits: Splits):
    kept, forced = split(prefix, splits)
    assert kept + forced == prefix
    assert len(forced) <= MAX_FORCED_CHARS


@given(st.text(max_size=8), st.text(max_size=8), st.data())
def test_what_comes_behind_the_forced_text_is_handed_on(
    forced: str, rest: str, data: st.DataObject
):
    answer, expected = forced + rest, Forced(forced)
    cut = data.draw(st.integers(0, len(answer)))
    pieces = [expected.take(answer[:cut]), expected.take(answer[cut:])]
    assert "".join(piece or "" for piece in pieces) == rest
    assert None not in pieces
    assert expected.is_met


@pytest.mark.parametrize("pieces", [["x"], [" ", " x"], ["  ", "\n"]])
def test_answer_that_begins_otherwise_disagrees(pieces: list[str]):
    expected = Forced("   ret")
    assert [expected.take(piece) for piece in pieces][-1] is None
    assert not expected.is_met
