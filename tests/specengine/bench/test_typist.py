"""Facts about the person at the keys."""

from __future__ import annotations

import statistics

import pytest

from specengine.bench.typist import PAIRS, Stroke, keys_of, strokes_of

TEXT = (
    "    def send(self, words):\n        for word in words:\n            self.post(f[word], {})\n"
)


def written(strokes: list[Stroke]) -> str:
    """What an editor holds in the end, with what it has closed by itself."""
    text, behind = "", ""
    for stroke in strokes:
        if stroke.kind == "delete":
            text = text[:-1]
            continue
        text += stroke.text
        if stroke.kind == "pair":
            behind = PAIRS[stroke.text] + behind
        elif stroke.kind == "over":
            assert behind.startswith(stroke.text)
            behind = behind[1:]
        if stroke.num_done is not None:
            assert text == TEXT[: stroke.num_done]
    return text + behind


@pytest.mark.parametrize("seed", range(8))
def test_strokes_write_the_text(seed: int):
    assert written(strokes_of(TEXT, seed)) == TEXT


def test_same_seed_is_the_same_person():
    assert strokes_of(TEXT, 3) == strokes_of(TEXT, 3)
    assert strokes_of(TEXT, 3) != strokes_of(TEXT, 4)


def test_some_letters_are_mistyped_and_taken_back():
    strokes = strokes_of("word " * 400, 0)
    num_deleted = sum(stroke.kind == "delete" for stroke in strokes)
    num_wrong = sum(stroke.num_done is None for stroke in strokes) - num_deleted
    assert 20 < num_deleted == num_wrong < 120


def test_gaps_are_a_person_s():
    gaps = [stroke.pause_s for stroke in strokes_of("word\n" * 400, 0) if stroke.text.isalpha()]
    assert 0.12 < statistics.median(gaps) < 0.14
    assert min(gaps) > 0.03
    lines = [stroke.pause_s for stroke in strokes_of("word\n" * 400, 0) if stroke.text == "\n"]
    assert 0.55 < statistics.median(lines) < 0.75


def test_new_line_and_its_indentation_are_one_key():
    assert keys_of("if x:\n    y") == ["i", "f", " ", "x", ":", "\n    ", "y"]
