"""Where a text ends that must be indented, or ready in time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.http.line_limits import LineLimits


def passed(limits: LineLimits, pieces: Sequence[str]) -> str:
    """Return all that is shown of a text that comes in pieces."""
    return "".join(map(limits.feed, pieces)) + limits.finish()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = 1", "x = 1"),
        ("x = 1\n    y", "x = 1\n    y"),
        ("x = 1\n\n    y", "x = 1\n\n    y"),
        ("x = 1\n  y", "x = 1"),
        ("x = 1\n\n  \n\ndef", "x = 1"),
        ("x = 1\n    y  \n\nz", "x = 1\n    y  "),
        ("x = 1\n\t\t\t\ty", "x = 1\n\t\t\t\ty"),
        ("x\n    y\n", "x\n    y\n"),
        ("\n    y", "\n    y"),
        ("\ny", ""),
        ("x\r\n    y\r\nz", "x\r\n    y\r"),
    ],
)
def test_a_line_that_is_too_shallow_ends_the_text(text: str, shown: str) -> None:
    assert passed(LineLimits(4), [text]) == shown


@given(st.lists(st.sampled_from(["x", " ", "\n", "\t", "    y", "\n\n", "\r"])), st.integers(0, 4))
def test_the_pieces_do_not_matter(pieces: list[str], num_indent: int) -> None:
    whole = passed(LineLimits(num_indent), ["".join(pieces)])
    assert passed(LineLimits(num_indent), pieces) == whole
    assert "".join(pieces).startswith(whole)


def test_without_wishes_all_is_passed_on_at_once() -> None:
    limits = LineLimits()
    assert limits.feed("x\n\n") == "x\n\n"
    assert not limits.has_ended


def test_time_ends_the_text_at_a_line_end_only() -> None:
    now = [0.0]
    limits = LineLimits(max_ms=100, clock=lambda: now[0])
    assert limits.feed("a") == "a"
    now[0] = 0.2
    assert limits.feed("b") == "b"
    assert not limits.has_ended
    assert limits.feed("c\n") == "c\n"
    assert limits.has_ended
    assert limits.feed("d") == limits.finish() == ""


def test_time_counts_from_the_first_text_on() -> None:
    now = [5.0]
    limits = LineLimits(max_ms=100, clock=lambda: now[0])
    limits.feed("a\n")
    now[0] = 5.05
    assert limits.feed("b\n") == "b\n"
    assert not limits.has_ended
