"""Which lines begin inside a string or a comment, in text that is not finished.

One regular expression a language: a parser's repair of an unclosed string is a guess, while a
scan from the left simply leaves it open. Only what spans lines matters here.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import lru_cache
from typing import Final

from lsp_server.syntax import Grammar

WINDOW_CHARS: Final = 3000
"""How much of the prefix is looked at along with the streamed text."""

SCAN_CHARS: Final = 50_000
"""In how much of it is looked for what opens a long string."""

_BEGINNINGS: Final = (
    re.compile(
        r"\n(?=(?:async )?def \w+\(|class \w+[(:{ ]|import [\w., ]+\n|from [\w.]+ import |@\w"
        r"|function \w+\(|func [\w(]|(?:pub )?fn \w+|impl\b|#include)"
    ),
    re.compile(r"\n(?=[ \t]+(?:(?:async )?def|class) \w+[(:])"),
    re.compile(r"\n(?=[^\s})\]#/*\"'])"),
)
"""Lines to begin a window with, the surest first."""

_SLASH_COMMENT: Final = r"//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?"
_PYTHON_TRIPLES: Final = (
    r'"""(?:[^"\\]++|\\.?|"(?!""))*+(?:""")?',
    r"'''(?:[^'\\]++|\\.?|'(?!''))*+(?:''')?",
)
_DOUBLE: Final = r'"(?:[^"\\\n]++|\\.?)*+"?'
_SINGLE: Final = r"'(?:[^'\\\n]++|\\.?)*+'?"
_CHAR: Final = r"'(?:[^'\\\n]|\\[^\n]{1,9}?)'"
"""No string: an apostrophe alone is a lifetime in Rust, and a digit sign in C++."""

_SCRIPT: Final = (_SLASH_COMMENT, r"`(?:[^`\\]++|\\.?)*+`?", _DOUBLE, _SINGLE)
_C: Final = (_SLASH_COMMENT, r'R"(\w*+)\((?s:.*?)(?:\)\1"|\Z)', _DOUBLE, _CHAR)


_OPENING: Final = re.compile(r"\"{3}|'{3}|/\*|R\"\w*\(|r#+\"|.")
"""What a string or comment begins with."""


def _scanner(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.DOTALL)


_SCANNERS: Final = {
    "tree_sitter_python": _scanner(r"#[^\n]*+", *_PYTHON_TRIPLES, _DOUBLE, _SINGLE),
    "tree_sitter_javascript": _scanner(*_SCRIPT),
    "tree_sitter_typescript": _scanner(*_SCRIPT),
    "tree_sitter_go": _scanner(_SLASH_COMMENT, r"`[^`]*+`?", _DOUBLE, _CHAR),
    "tree_sitter_rust": _scanner(
        _SLASH_COMMENT, r'\br(#+)".*?(?:"\1|\Z)', r'"(?:[^"\\]++|\\.?)*+"?', _CHAR
    ),
    "tree_sitter_c": _scanner(*_C),
    "tree_sitter_cpp": _scanner(*_C),
    "tree_sitter_java": _scanner(_SLASH_COMMENT, _PYTHON_TRIPLES[0], _DOUBLE, _CHAR),
}
"""By the grammar's module; a language without one has no strings that span lines."""


def find_quoted_lines(head: str, text: str, grammar: Grammar | None) -> frozenset[int]:
    """Return which lines of a text, counted from 0, begin inside a string or a comment.

    The head is what stands before the text; if the text does not begin a line, its line 0 is
    where the text itself begins.
    """
    if grammar is None or (scanner := _SCANNERS.get(grammar.module)) is None:
        return frozenset()
    source = head + text
    spans = [
        found.span()
        for found in scanner.finditer(source)
        if found.end() >= len(head) and "\n" in found.group()
    ]
    quoted: set[int] = set()
    start = len(head)
    for number, line in enumerate(text.split("\n")):
        index = bisect_left(spans, (start,)) - 1  # the last one that begins before
        if index >= 0 and start < spans[index][1]:
            quoted.add(number)
        start += len(line) + 1
    return frozenset(quoted)


@lru_cache(maxsize=8)  # while a line is typed, what stands above it stays
def window_above(text: str, grammar: Grammar | None) -> str:
    """Return a window that ends a text, opened by the quotes that it begins inside of, if any.

    A text of ``SCAN_CHARS`` is taken for the end of a longer one, and scanned from a definition.
    """
    window = window_of(text)
    scanner = _SCANNERS.get(grammar.module) if grammar is not None else None
    start = len(text) - len(window)
    if scanner is None or start == 0:
        return window
    beginnings = _BEGINNINGS[:2] if len(text) >= SCAN_CHARS else ()
    found_starts = (found.end() for rule in beginnings if (found := rule.search(text)))
    for found in scanner.finditer(text, next(found_starts, 0)):
        if found.end() > start:
            opening = _OPENING.match(found.group()) if found.start() < start else None
            return window if opening is None else f"{opening.group()}\n{window}"
    return window


def opening(text: str) -> int:
    """Return where the first definition of a text begins that is surely in no string; else 0."""
    found = _BEGINNINGS[0].search(text)
    return found.end() if found is not None else 0


def window_of(prefix: str) -> str:
    """Return the end of the prefix, if possible from where a definition begins.

    A window that began inside a string would take code for strings and strings for code.
    """
    if len(prefix) <= WINDOW_CHARS:
        return prefix
    start = len(prefix) - WINDOW_CHARS
    for beginning in _BEGINNINGS:
        if (found := beginning.search(prefix, start)) is not None:
            return prefix[found.end() :]
    return prefix[prefix.find("\n", start) + 1 :]
