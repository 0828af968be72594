"""Where asking for a suggestion cannot help, told from the text alone.

Each rule is a named function of the text around a cursor; its name is the trace's named exit. They
hold for requests that an editor makes by itself: whoever asks explicitly is answered anywhere but
inside a word.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from lsp_server.syntax import Grammar

HEAD_CHARS: Final = 2000
"""A generator says at the top of a file that it wrote it."""

MAX_LINE_CHARS: Final = 1000
"""Nobody writes longer lines by hand."""

MAX_MEAN_LINE_CHARS: Final = 300
"""Of a whole file that has more than ``MIN_MINIFIED_CHARS``."""

MIN_MINIFIED_CHARS: Final = 4000

_GENERATED: Final = re.compile(
    r"@generated\b"
    r"|\b(?:auto-?generated|generated (?:by|from|file|code)|(?:code|file) generated)\b"
    r".{0,300}?\bdo\s+not\s+(?:edit|modify|change)\b"
    r"|\bdo\s+not\s+(?:edit|modify)\b.{0,300}?\b(?:auto-?)?generated\b",
    re.IGNORECASE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"\s*(?:#|//|/\*|\*|--|;|%|<!--|\"\"\"|''')")
_LAST_WORD: Final = re.compile(r"\s*(?:pass|break|continue)\s*")


def is_generated(text: str) -> bool:
    """Whether a comment at a file's top says that a program wrote it and people should not."""
    return _is_head_of_generated(text[:HEAD_CHARS])


@lru_cache(maxsize=64)  # asked at each key, and seldom changed
def _is_head_of_generated(head: str) -> bool:
    found = _GENERATED.search(head)
    if found is None:
        return False
    line_start = head.rfind("\n", 0, found.start()) + 1
    return _COMMENT.match(head, line_start) is not None or _is_in_block_comment(head, line_start)


def is_minified(text: str, line_len: int) -> bool:
    """Whether a file, or the line of a length in it, has been written for machines."""
    if line_len > MAX_LINE_CHARS:
        return True
    if len(text) < MIN_MINIFIED_CHARS:
        return False
    return len(text) > MAX_MEAN_LINE_CHARS * (1 + text.count("\n"))


def is_inside_word(before: str, rest: str) -> bool:
    """Whether the cursor stands between two letters of a word."""
    return _is_word(before[-1:]) and _is_word(rest[:1])


def is_after_end(before: str, rest: str, grammar: Grammar | None) -> bool:
    """Whether the line says what it has to: nothing follows ``return x;`` or ``break``."""
    if grammar is None or rest.strip() or not before.strip():
        return False
    if grammar.is_indented:
        return _LAST_WORD.fullmatch(before) is not None
    is_open = before.count("(") > before.count(")")  # "for (int i = 0;"
    return before.rstrip().endswith(";") and not is_open and _COMMENT.match(before) is None


def _is_in_block_comment(head: str, at: int) -> bool:
    opened = max(head.rfind(sign, 0, at) for sign in ("/*", "<!--", '"""'))
    return opened >= 0 and not any(sign in head[opened + 3 : at] for sign in ("*/", "-->", '"""'))


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
