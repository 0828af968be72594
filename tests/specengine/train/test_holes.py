"""Holes are where developers leave them, in every language."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.train.holes import (
    MAX_LINE_CHARS,
    MAX_UNIT_LINES,
    SPAN_CHARS,
    choose_hole,
    excerpt,
    line_hole,
    span_hole,
    unit_hole,
)

PYTHON = '''import math


def area(radius: float) -> float:
    """Return the area of a circle: π r²."""
    if radius < 0:
        raise ValueError("negative")
    return math.pi * radius**2


class Circle:
    def __init__(self, radius):
        self.radius = radius
'''
GO = "package main\n\nfunc add(a int, b int) int {\n\tsum := a + b\n\treturn sum\n}\n"
TYPESCRIPT = "export function twice(n: number): number {\n  const m = n * 2\n  return m\n}\n"


def rngs() -> list[random.Random]:
    return [random.Random(seed) for seed in range(200)]


def test_a_line_hole_ends_before_or_behind_the_end_of_its_line() -> None:
    ends = set[bool]()
    for rng in rngs():
        hole = line_hole(PYTHON, rng)
        assert hole is not None
        middle = PYTHON[hole.start : hole.end]
        assert "\n" not in middle[:-1]
        assert middle.endswith("\n") or PYTHON[hole.end] == "\n"
        ends.add(middle.endswith("\n"))
    assert ends == {True, False}


def test_a_line_hole_starts_at_the_line_behind_its_indentation_or_inside_a_word() -> None:
    starts = {line_hole(PYTHON, rng).start for rng in rngs()}  # type: ignore[union-attr]
    line = PYTHON.index("    return math.pi")
    assert line in starts
    assert line + 4 in starts
    assert any(PYTHON[start - 1].isalpha() and PYTHON[start].isalpha() for start in starts)


def test_lines_that_are_too_long_are_not_cut() -> None:
    assert line_hole("x" * (MAX_LINE_CHARS + 1), random.Random(0)) is None


@pytest.mark.parametrize(
    ("text", "language", "unit"),
    [
        (PYTHON, "python", "return math.pi * radius**2"),
        (PYTHON, "python", 'if radius < 0:\n        raise ValueError("negative")'),
        (GO, "go", "sum := a + b"),
        (TYPESCRIPT, "typescript", "const m = n * 2"),
    ],
)
def test_units_are_whole_nodes_that_have_their_lines_for_themselves(
    text: str, language: str, unit: str
) -> None:
    found = set[str]()
    for rng in rngs():
        hole = unit_hole(text, language, rng)
        assert hole is not None
        middle = text[hole.start : hole.end]
        assert middle.strip().count("\n") < MAX_UNIT_LINES
        assert middle.endswith("\n") or text[hole.end : hole.end + 1] in ("\n", "")
        assert not text[text.rfind("\n", 0, hole.start) + 1 : hole.start].strip() or (
            middle.startswith("\n")
        )
        found.add(middle.strip())
    assert unit in found


def test_units_behind_characters_of_several_bytes_are_in_place() -> None:
    middles = {
        PYTHON[hole.start : hole.end].strip()
        for rng in rngs()
        if (hole := unit_hole(PYTHON, "python", rng)) is not None
    }
    assert "self.radius = radius" in middles


def test_an_excerpt_is_one_outermost_definition() -> None:
    found = {excerpt(PYTHON, "python", rng) for rng in rngs()}
    area = PYTHON[PYTHON.index("def area") : PYTHON.index("\n\n\nclass")] + "\n"
    assert found == {area}


def test_a_text_without_a_definition_is_its_own_excerpt() -> None:
    assert excerpt("x = 1\n", "python", random.Random(0)) == "x = 1\n"


def test_broken_code_has_no_units_and_no_error() -> None:
    assert unit_hole("((((", "python", random.Random(0)) is None


@given(st.text(min_size=1), st.integers())
def test_a_span_lies_within_its_text(text: str, seed: int) -> None:
    hole = span_hole(text, random.Random(seed))
    assert 0 <= hole.start <= hole.end <= len(text)
    assert hole.end - hole.start <= SPAN_CHARS[1]


@given(st.integers())
def test_the_same_seed_gives_the_same_hole(seed: int) -> None:
    first, second = (choose_hole(PYTHON, "python", random.Random(seed)) for _ in range(2))
    assert first == second
