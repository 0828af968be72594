"""What a file says above the excerpt: its imports, and the heads of the definitions around.

With a grammar they come from the tree; without one, or when the text cannot be parsed in time,
heads are the lines above that are indented less and less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from lsp_server.positions import bytes_from_chars
from lsp_server.syntax import Grammar, parse

HEAD_CHARS: Final = 6000
"""Imports are looked for in this much of the file's beginning."""

AROUND_CHARS: Final = 48_000
"""Definitions are looked for in this much text before the excerpt."""

BEHIND_CHARS: Final = 8_000
"""And this much behind it, so that brackets find their partners."""

MAX_HEAD_LINES: Final = 8
"""A longer head, such as one with many parameters, is cut to its first lines."""


@dataclass(frozen=True)
class Outline:
    """Lines to stand before an excerpt, in the order of the file."""

    imports: str
    heads: str


def find_outline(text: str, start: int, cursor: int, grammar: Grammar | None) -> Outline:
    """Return what belongs before an excerpt that begins at ``start`` and holds the cursor.

    Definitions that begin inside the excerpt are not repeated, and neither are its imports.
    """
    if grammar is None:
        return Outline("", _heads_by_indent(text, start))
    imports = _imports(text[: min(start, HEAD_CHARS)], grammar)
    heads = _heads(text, start, cursor, grammar)
    return Outline(imports, heads if heads is not None else _heads_by_indent(text, start))


def head_of(data: bytes, node: Node) -> str:
    """Return the lines of a definition up to its body."""
    body = node.child_by_field_name("body")
    end = body.start_byte if body is not None else node.end_byte
    line_start = data.rfind(b"\n", 0, node.start_byte) + 1
    head = data[line_start:end].decode(errors="replace").rstrip()
    if body is not None and data[body.start_byte : body.start_byte + 1] == b"{":
        head += " {"
    return "".join(line + "\n" for line in head.split("\n")[:MAX_HEAD_LINES])


def _imports(text: str, grammar: Grammar) -> str:
    data = text.encode()
    tree = parse(grammar, data)
    if tree is None:
        return ""
    nodes = [node for node in tree.root_node.children if node.type in grammar.imports]
    # An import that the cut runs through would end in the middle of a line.
    lines = [_text(data, node).rstrip() for node in nodes if not node.has_error]
    return "".join(line + "\n" for line in lines)


def _heads(text: str, start: int, cursor: int, grammar: Grammar) -> str | None:
    window_start = max(0, start - AROUND_CHARS)
    window_start = text.rfind("\n", 0, window_start) + 1
    window = text[window_start : cursor + BEHIND_CHARS]
    data = window.encode()
    tree = parse(grammar, data)
    if tree is None:
        return None
    before = window[: cursor - window_start]
    max_column = len(data)
    if grammar.is_indented:
        # A blank line at the end belongs to no node: look from the code above, up to its indent.
        max_column = _indent(before[before.rfind("\n") + 1 :] + "x")
        before = before.rstrip()
    at = len(before.encode())
    limit = bytes_from_chars(window, start - window_start)
    heads: list[str] = []
    is_broken = False
    node = tree.root_node.descendant_for_byte_range(max(0, at - 1), at)
    while node is not None:
        is_broken = is_broken or node.is_error
        is_around = node.start_byte < limit and node.start_point.column < max_column
        if is_around and node.type in grammar.definitions:
            heads.append(head_of(data, node))
        node = node.parent
    return None if is_broken and not heads else "".join(reversed(heads))


def _heads_by_indent(text: str, start: int) -> str:
    lines = text[max(0, start - AROUND_CHARS) : start].split("\n")
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
