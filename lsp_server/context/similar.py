"""Stretches of other files whose words are most like those before the cursor.

Likeness is the number of words that two stretches share, over the number that either has (Jaccard).
It parses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from lsp_server.syntax import words

WINDOW_LINES: Final = 40
STEP_LINES: Final = WINDOW_LINES // 2
LEAST_LIKENESS: Final = 0.12
"""Below it, two stretches share little more than what all code of a language has."""

_WORD: Final = re.compile(r"[^\W\d]\w{2,}")
_COMMON: Final = words(
    "and are assert async await bool break case catch char class const continue def default del"
    " elif else enum except export extends false final finally float for from func function"
    " global impl implements import include int interface lambda let long match mut new nil none"
    " not null pass private protected pub public raise return self static str string struct super"
    " switch this throw true try type use var void while with yield"
)


@dataclass(frozen=True)
class Window:
    """Some lines of a file, and the set of their words."""

    first_line: int
    words: frozenset[str]


def words_of(text: str) -> frozenset[str]:
    """Return the words that tell one stretch of code from another."""
    return frozenset(word for word in _WORD.findall(text) if word.lower() not in _COMMON)


def windows_of(lines: Sequence[str]) -> list[Window]:
    """Return overlapping windows over the lines of a file."""
    steps = [
        words_of("\n".join(lines[first : first + STEP_LINES]))
        for first in range(0, max(1, len(lines)), STEP_LINES)
    ]
    pairs = pairwise(steps) if len(steps) > 1 else [(steps[0], steps[0])]
    return [Window(at * STEP_LINES, one | other) for at, (one, other) in enumerate(pairs)]


def best_window(windows: Sequence[Window], wanted: frozenset[str]) -> tuple[float, int] | None:
    """Return likeness and first line of the window that is most like the wanted words."""
    scored = [(_likeness(window.words, wanted), -window.first_line) for window in windows]
    likeness, line = max(scored, default=(0.0, 0))
    return (likeness, -line) if likeness >= LEAST_LIKENESS else None


def _likeness(one: frozenset[str], other: frozenset[str]) -> float:
    num_shared = len(one & other)
    return num_shared / (len(one) + len(other) - num_shared) if num_shared else 0.0
