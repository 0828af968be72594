"""Where a text is cut open: the part that a model will have to write.

Three kinds, as developers leave holes: the rest of a line, a whole syntactic unit (a statement, a
block, a function), and any span of characters.

Source:  Bavarian et al. 2022, arXiv 2207.14255 (spans of characters); Gong et al. 2024, arXiv
2403.04814 (units of syntax).
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import tree_sitter
import tree_sitter_c
import tree_sitter_cpp
import tree_sitter_go
import tree_sitter_java
import tree_sitter_javascript
import tree_sitter_python
import tree_sitter_rust
import tree_sitter_typescript

HoleKind: TypeAlias = Literal["line", "unit", "span"]

GRAMMARS: Final[Mapping[str, Callable[[], object]]] = {
    "python": tree_sitter_python.language,
    "javascript": tree_sitter_javascript.language,
    "typescript": tree_sitter_typescript.language_typescript,
    "tsx": tree_sitter_typescript.language_tsx,
    "go": tree_sitter_go.language,
    "rust": tree_sitter_rust.language,
    "c": tree_sitter_c.language,
    "cpp": tree_sitter_cpp.language,
    "java": tree_sitter_java.language,
}

KIND_WEIGHTS: Final[Mapping[HoleKind, float]] = {"line": 0.45, "unit": 0.35, "span": 0.2}
MAX_LINE_CHARS: Final = 160
MAX_UNIT_LINES: Final = 14
EXCERPT_LINES: Final = (4, 60)
SPAN_CHARS: Final = (2, 400)
"""Least and greatest length of a span; short ones are as frequent as long ones."""
LINE_END_SHARE: Final = 0.1
"""Of holes that end with a line, those that take the line's end with them. Few: in an editor the
cursor has a line, and behind a line cut out with its end nothing tells a hole from a filled one."""
_TRIES: Final = 20


@dataclass(frozen=True)
class Hole:
    """Characters ``start`` to ``end`` of a text are missing."""

    kind: HoleKind
    start: int
    end: int


def choose_hole(text: str, language: str, rng: random.Random) -> Hole | None:
    """Return a random hole of a random kind, or None where the text has none of that kind."""
    kinds = list(KIND_WEIGHTS)
    kind = rng.choices(kinds, [KIND_WEIGHTS[kind] for kind in kinds])[0]
    if kind == "line":
        return line_hole(text, rng)
    if kind == "unit":
        return unit_hole(text, language, rng)
    return span_hole(text, rng)


def excerpt(text: str, language: str, rng: random.Random) -> str:
    """Return one outermost definition (or statement) of a text as a text of its own.

    Long files teach what stands far from their beginning; but many a file is short or new. Without
    a unit of a fitting size, the whole text.
    """
    data = text.encode()
    root = _parser(language).parse(data).root_node
    least, most = EXCERPT_LINES
    units = [
        node
        for node in root.named_children
        if least <= node.end_point[0] - node.start_point[0] < most and not node.has_error
    ]
    if not units:
        return text
    chosen = rng.choice(units)
    return data[chosen.start_byte : chosen.end_byte].decode() + "\n"


def line_hole(text: str, rng: random.Random) -> Hole | None:
    """Cut a line off: from its beginning, from behind its indentation, or from inside it."""
    for _ in range(_TRIES):
        start, end = _line_at(text, rng.randrange(len(text)))
        line = text[start:end]
        if line.strip() and len(line) <= MAX_LINE_CHARS:
            return Hole("line", _cursor_in(text, start, end, rng), _end(text, end, rng))
    return None


def unit_hole(text: str, language: str, rng: random.Random) -> Hole | None:
    """Cut out a node of the syntax tree that has its lines for itself."""
    units = list(_units(text, language))
    if not units:
        return None
    start, end = rng.choice(units)
    line_start, _ = _line_at(text, start)
    begin = rng.choices((line_start, start, max(line_start - 1, 0)), (0.45, 0.35, 0.2))[0]
    return Hole("unit", begin, _end(text, end, rng))


def span_hole(text: str, rng: random.Random) -> Hole:
    """Cut out characters without regard to lines and words."""
    least, most = SPAN_CHARS
    length = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    start = rng.randrange(max(1, len(text) - length))
    return Hole("span", start, min(len(text), start + length))


def _line_at(text: str, at: int) -> tuple[int, int]:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    return start, len(text) if end < 0 else end


def _end(text: str, line_end: int, rng: random.Random) -> int:
    """Return the end of a hole: before a line's end, or behind it, so that whole lines are cut."""
    takes_line_end = rng.random() < LINE_END_SHARE and line_end < len(text)
    return line_end + 1 if takes_line_end else line_end


def _cursor_in(text: str, start: int, end: int, rng: random.Random) -> int:
    indented = start + len(text[start:end]) - len(text[start:end].lstrip())
    inside = rng.randrange(indented, end)
    return rng.choices((start, indented, inside), (0.4, 0.25, 0.35))[0]


def _units(text: str, language: str) -> Iterator[tuple[int, int]]:
    """Yield the character ranges of nodes that begin their first line and end their last one."""
    data = text.encode()
    tree = _parser(language).parse(data)
    is_ascii = len(data) == len(text)
    for node in _nodes(tree.root_node):
        num_lines = node.end_point[0] - node.start_point[0] + 1
        if num_lines > MAX_UNIT_LINES or node.start_byte == node.end_byte:
            continue
        line_start = data.rfind(b"\n", 0, node.start_byte) + 1
        if data[line_start : node.start_byte].strip():
            continue
        if data[node.end_byte : node.end_byte + 1] not in (b"\n", b""):
            continue
        if is_ascii:
            yield node.start_byte, node.end_byte
        else:
            start = len(data[: node.start_byte].decode())
            yield start, start + len(data[node.start_byte : node.end_byte].decode())


def _nodes(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """Yield the named nodes below a root, down to the lines' beginnings only."""
    waiting = list(root.named_children)
    while waiting:
        node = waiting.pop()
        if node.has_error:
            continue
        yield node
        if node.end_point[0] > node.start_point[0]:
            waiting.extend(node.named_children)


@functools.cache
def _parser(language: str) -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(GRAMMARS[language]()))
