"""The definitions of a file by name, with as much of each as tells how it is used.

A short one is shown whole; a long function by its head, a long class by the heads of its members.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tree_sitter import Node

from lsp_server.context.outline import head_of
from lsp_server.syntax import Grammar, KeptTree, words

WHOLE_LINES: Final = 8
"""A definition of so many lines is shown whole."""

MAX_MEMBERS: Final = 16
_MAX_DEPTH: Final = 6

_CLASS_WORDS: Final = ("class", "interface", "struct", "enum", "impl", "trait", "record")
_SPACES: Final = frozenset(("namespace_definition", "internal_module", "mod_item"))
"""What is in them has a name of its own and is not shown as a member."""

_TRANSPARENT: Final = words(
    "export_statement decorated_definition declaration_list type_declaration lexical_declaration"
    " linkage_specification preproc_ifdef preproc_if template_declaration"
)


@dataclass(frozen=True)
class Definition:
    """A function, class or the like."""

    name: str
    line: int
    """Where it begins, from 0."""
    text: str
    """LF; ends with one."""
    members: tuple[Definition, ...] = ()


def find_definitions(text: str, kept: KeptTree) -> list[Definition]:
    """Return the definitions of a file in their order; none if it cannot be parsed in time."""
    data = text.encode()
    tree = kept.parse(data)
    return [] if tree is None else list(_within(data, tree.root_node, kept.grammar, _MAX_DEPTH))


def _within(data: bytes, node: Node, grammar: Grammar, depth: int) -> Iterator[Definition]:
    for child in node.named_children if depth else ():
        if (named := _named_definition(data, child, grammar)) is not None:
            yield _definition(data, child, named, grammar, depth)
        elif child.type in _TRANSPARENT | _SPACES or child.type in grammar.containers:
            yield from _within(data, child, grammar, depth - 1)


def _named_definition(data: bytes, node: Node, grammar: Grammar) -> tuple[Node, str] | None:
    """Return the node that has the body, and its name; None for all that is no definition."""
    for field in ("definition", "declaration"):  # what is decorated or exported
        inner = node.child_by_field_name(field)
        if inner is not None and inner.type not in _TRANSPARENT:
            return _named_definition(data, inner, grammar)
    if node.type == "variable_declarator":
        value = node.child_by_field_name("value")
        is_function = value is not None and value.type in grammar.definitions
        name = _name(data, node) if is_function else ""
        return (value or node, name) if name else None
    is_definition = node.type in grammar.definitions or node.type == "type_spec"
    if is_definition and node.type not in _SPACES:
        name = _name(data, node)
        return (node, name) if name else None
    return None


def _name(data: bytes, node: Node) -> str:
    for field in ("name", "declarator", "type"):  # the type is what an impl of Rust is for
        found = node.child_by_field_name(field)
        while found is not None and (inner := _inner_name(found)) is not None:
            found = inner
        if found is not None and found.child_count == 0:
            return data[found.start_byte : found.end_byte].decode(errors="replace")
    return ""


def _inner_name(node: Node) -> Node | None:
    return node.child_by_field_name("declarator") or node.child_by_field_name("name")


def _definition(
    data: bytes, node: Node, named: tuple[Node, str], grammar: Grammar, depth: int
) -> Definition:
    inner, name = named
    line_start = data.rfind(b"\n", 0, node.start_byte) + 1
    first, last = node.start_point.row, node.end_point.row
    if last - first < WHOLE_LINES:
        whole = data[line_start : node.end_byte].decode(errors="replace").rstrip() + "\n"
        return Definition(name, first, whole)
    is_class = any(word in inner.type for word in _CLASS_WORDS) or inner.type == "type_spec"
    body = inner.child_by_field_name("body")
    members: tuple[Definition, ...] = ()
    if is_class and body is not None:
        members = tuple(_within(data, body, grammar, depth - 1))[:MAX_MEMBERS]
    return Definition(name, first, head_of(data, inner), members)
