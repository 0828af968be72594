"""What a file says above the excerpt: its imports, and the heads of the definitions around.

Where indentation is syntax, heads are the definitions above that are indented less and less: the
tree of a long file says the same, and takes ten times as long. Elsewhere they come from the tree;
without a grammar, or when the text cannot be parsed in time, they are all lines above that are
indented less and less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tree_sitter import Node

from lsp_server.positions import bytes_from_chars
from lsp_server.quoting import find_quoted_lines, opening
from lsp_server.syntax import Grammar, KeptTree, parse

HEAD_CHARS: Final = 6000
"""Imports are looked for in this much of the file's beginning."""

WHOLE_CHARS: Final = 120_000
"""A text of so many is parsed whole, so that from one place to the next its tree can be kept."""

AROUND_CHARS: Final = 48_000
"""Of a longer one definitions are looked for in this much before the excerpt."""

BEHIND_CHARS: Final = 8_000
"""And this much behind it, so that brackets find their partners."""

MAX_HEAD_LINES: Final = 8
"""A longer head, such as one with many parameters, is cut to its first lines."""


_DEFINITION: Final = re.compile(r"[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+\w")
"""Of Python, the one language whose blocks end by indentation."""

_CLOSERS: Final = frozenset(")]}")


@dataclass(frozen=True)
class Outline:
    """Lines to stand before an excerpt, in the order of the file."""

    imports: str
    heads: str


def find_outline(text: str, start: int, cursor: int, kept: KeptTree | None) -> Outline:
    """Return what belongs before an excerpt that begins at ``start`` and holds the cursor.

    Definitions that begin inside the excerpt are not repeated, and neither are its imports. Most
    of the time goes into the tree of ``parsed_part``, which can be parsed beforehand.
    """
    if kept is None:
        return Outline("", _heads_by_indent(text, start))
    imports = _imports(text[: min(start, HEAD_CHARS)], kept.grammar)
    if kept.grammar.is_indented:
        return Outline(imports, _heads_by_line(text, start, cursor, kept.grammar))
    heads = _heads(text, start, cursor, kept)
    return Outline(imports, heads if heads is not None else _heads_by_indent(text, start))


def parsed_part(text: str, start: int, cursor: int) -> tuple[int, str]:
    """Return where the part of a text begins in which definitions are looked for, and the part."""
    if len(text) <= WHOLE_CHARS:
        return 0, text
    first = text.rfind("\n", 0, max(0, start - AROUND_CHARS)) + 1
    return first, text[first : cursor + BEHIND_CHARS]


def head_of(data: bytes, node: Node) -> str:
    """Return the lines of a definition up to its body."""
    body = node.child_by_field_name("body")
    end = body.start_byte if body is not None else node.end_byte
    line_start = data.rfind(b"\n", 0, node.start_byte) + 1
    head = data[line_start:end].decode(errors="replace").rstrip()
    if body is not None and data[body.start_byte : body.start_byte + 1] == b"{":
        head += " {"
    return "".join(line + "\n" for line in head.split("\n")[:MAX_HEAD_LINES])


@lru_cache(maxsize=32)
def _imports(text: str, grammar: Grammar) -> str:
    data = text.encode()
    tree = parse(grammar, data)
    if tree is None:
        return ""
    nodes = [node for node in tree.root_node.children if node.type in grammar.imports]
    # An import that the cut runs through would end in the middle of a line.
    lines = [_text(data, node).rstrip() for node in nodes if not node.has_error]
    return "".join(line + "\n" for line in lines)


def _heads(text: str, start: int, cursor: int, kept: KeptTree) -> str | None:
    window_start, window = parsed_part(text, start, cursor)
    data, grammar = window.encode(), kept.grammar
    tree = kept.parse(data)
    if tree is None:
        return None
    before = window[: cursor - window_start]
    at = len(before.encode())
    limit = bytes_from_chars(window, start - window_start)
    heads: list[str] = []
    is_broken = False
    node = tree.root_node.descendant_for_byte_range(max(0, at - 1), at)
    while node is not None:
        is_broken = is_broken or node.is_error
        if node.start_byte < limit and node.type in grammar.definitions:
            heads.append(head_of(data, node))
        node = node.parent
    return None if is_broken and not heads else "".join(reversed(heads))


def _heads_by_line(text: str, start: int, cursor: int, grammar: Grammar) -> str:
    """Return the definitions around, of a language in which blocks end by indentation."""
    first = text.rfind("\n", 0, max(0, start - AROUND_CHARS)) + 1
    first += opening(text[first:start]) if first > 0 else 0
    lines = text[first:cursor].split("\n")
    quoted = find_quoted_lines("", text[first:cursor], grammar)
    num_above = text.count("\n", first, start)
    bound = _indent(lines[-1] + "x")
    heads: list[str] = []
    for number in range(len(lines) - 2, -1, -1):
        line = lines[number]
        sign = line.lstrip()[:1]
        if sign in ("", "#") or _indent(line) >= bound or number in quoted:
            continue
        # What ends with a bracket and a colon begins at the same depth, further above.
        bound = _indent(line) + (1 if sign in _CLOSERS else 0)
        if number < num_above and _DEFINITION.match(line):
            heads.append(_head(lines[number : number + MAX_HEAD_LINES]))
        if bound == 0:
            break
    return "".join(reversed(heads))


def _head(lines: list[str]) -> str:
    for number, line in enumerate(lines, 1):
        if line.rstrip().endswith(":") or line.partition("#")[0].rstrip().endswith(":"):
            return "".join(one + "\n" for one in lines[:number])
    return "".join(one + "\n" for one in lines)


def _heads_by_indent(text: str, start: int) -> str:
    first = text.rfind("\n", 0, max(0, start - AROUND_CHARS)) + 1
    lines = text[first:start].split("\n")
    following = text[start : start + 2000].split("\n")
    indent = next((_indent(line) for line in following if line.strip()), 0)
    heads: list[str] = []
    for line in reversed(lines):
        if line.strip(" \t)]}{,;") and _indent(line) < indent:
            heads.append(line + "\n")
            indent = _indent(line)
        if indent == 0:
            break
    return "".join(reversed(heads))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _text(data: bytes, node: Node) -> str:
    return data[node.start_byte : node.end_byte].decode(errors="replace")
