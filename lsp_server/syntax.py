"""tree-sitter grammars, loaded when a language is first seen, and parses with a time limit.

It knows node types of eight languages, and neither documents nor prompts.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

from tree_sitter import Language, Node, Parser, Point, Tree

PARSE_LIMIT_S: Final = 0.03
"""A parse that takes longer is given up: broken text can cost a hundred times more than code."""

SLICE_S: Final = 0.002
"""So long the event loop may stand still for a part of a parse."""

SLICES_LIMIT_S: Final = 0.1
"""Of all parts together, in which others are served."""

_READ_BYTES: Final = 32 * 1024


@dataclass(frozen=True)
class Grammar:
    """What must be known of a language beyond its grammar."""

    module: str
    """Python package of the grammar."""
    function: str
    """Its function that returns the language."""
    definitions: frozenset[str]
    """Nodes whose head says where the cursor is."""
    imports: frozenset[str]
    """Nodes at the top level that name other modules."""
    containers: frozenset[str]
    """Nodes whose children are statements or members."""
    is_indented: bool = False
    """Blocks end by indentation, statements by the end of the line."""
    is_terminated: bool = False
    """Statements end with a semicolon or a brace, whatever the lines say."""


def words(text: str) -> frozenset[str]:
    """Return the words of a text that blanks separate."""
    return frozenset(text.split())


_JS_DEFINITIONS = words(
    "class_declaration class function_declaration generator_function_declaration method_definition"
    " function_expression arrow_function interface_declaration enum_declaration internal_module"
    " abstract_class_declaration"
)
_JS_CONTAINERS = words(
    "program statement_block class_body switch_body switch_case switch_default interface_body"
    " enum_body object_type"
)
_C_CONTAINERS = words(
    "translation_unit compound_statement field_declaration_list enumerator_list case_statement"
    " declaration_list preproc_if preproc_ifdef preproc_else"
)


def _javascript(module: str, function: str) -> Grammar:
    return Grammar(module, function, _JS_DEFINITIONS, words("import_statement"), _JS_CONTAINERS)


_PYTHON = Grammar(
    "tree_sitter_python",
    "language",
    words("class_definition function_definition"),
    words("import_statement import_from_statement future_import_statement"),
    words("module block"),
    is_indented=True,
)
_GO = Grammar(
    "tree_sitter_go",
    "language",
    words("function_declaration method_declaration type_declaration func_literal"),
    words("package_clause import_declaration"),
    words("source_file block statement_list field_declaration_list import_spec_list"),
)
_RUST = Grammar(
    "tree_sitter_rust",
    "language",
    words("function_item impl_item trait_item struct_item enum_item mod_item"),
    words("use_declaration extern_crate_declaration mod_item"),
    words("source_file block declaration_list field_declaration_list match_block"),
)
_C = Grammar(
    "tree_sitter_c",
    "language",
    words("function_definition struct_specifier enum_specifier union_specifier"),
    words("preproc_include"),
    _C_CONTAINERS,
    is_terminated=True,
)
_CPP = Grammar(
    "tree_sitter_cpp",
    "language",
    _C.definitions | words("class_specifier namespace_definition"),
    _C.imports | words("using_declaration"),
    _C_CONTAINERS,
    is_terminated=True,
)
_JAVA = Grammar(
    "tree_sitter_java",
    "language",
    words(
        "class_declaration interface_declaration enum_declaration record_declaration"
        " method_declaration constructor_declaration"
    ),
    words("package_declaration import_declaration"),
    words(
        "program block class_body interface_body enum_body constructor_body"
        " switch_block_statement_group enum_body_declarations"
    ),
    is_terminated=True,
)
_JAVASCRIPT = _javascript("tree_sitter_javascript", "language")
_TYPESCRIPT = _javascript("tree_sitter_typescript", "language_typescript")
_TSX = _javascript("tree_sitter_typescript", "language_tsx")

GRAMMARS: Final[dict[str, Grammar]] = {
    "python": _PYTHON,
    "javascript": _JAVASCRIPT,
    "javascriptreact": _JAVASCRIPT,
    "typescript": _TYPESCRIPT,
    "typescriptreact": _TSX,
    "go": _GO,
    "rust": _RUST,
    "c": _C,
    "cpp": _CPP,
    "java": _JAVA,
}
"""By the protocol's language id."""


def grammar_of(language: str) -> Grammar | None:
    """Return the grammar of a language id, or None for one that is trimmed as plain text."""
    return GRAMMARS.get(language)


def parse(grammar: Grammar, data: bytes, limit_s: float = PARSE_LIMIT_S) -> Tree | None:
    """Return the tree of UTF-8 text, or None when the limit is reached."""
    return KeptTree(grammar).parse(data, limit_s)


class KeptTree:
    """The tree of a text that changes: what has stayed as it was is not parsed again."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._data: bytes = b""
        self._tree: Tree | None = None
        """Of the data; None if it took too long."""
        self._is_done = False
        """Whether the data was parsed, or given up."""
        self._known: tuple[bytes, Tree] | None = None
        """The last text that was parsed to its end."""
        self._turn = 0
        """Whoever begins anew makes the slices of others void."""

    def parse(self, data: bytes, limit_s: float = PARSE_LIMIT_S) -> Tree | None:
        """Return the tree of UTF-8 text, or None when the limit is reached."""
        for _ in self._slices(data, limit_s, limit_s):
            pass
        return self._tree

    async def parse_in_slices(self, data: bytes, limit_s: float = SLICES_LIMIT_S) -> None:
        """Do the work of ``parse`` beforehand, while the event loop serves others in between."""
        for _ in self._slices(data, SLICE_S, limit_s):
            await asyncio.sleep(0)

    def _slices(self, data: bytes, slice_s: float, limit_s: float) -> Iterator[None]:
        if self._is_done and data == self._data:
            return
        self._turn += 1
        turn, old, spent_s = self._turn, self._edited(data), 0.0
        parser = Parser(_language(self.grammar))
        self._data, self._tree, self._is_done = data, None, False

        def read(offset: int, _point: object) -> bytes:
            return data[offset : offset + _READ_BYTES]

        while turn == self._turn and not self._is_done:
            started_s = time.perf_counter()
            is_late = _Deadline(started_s + slice_s)
            try:  # what was done before the deadline is in the parser
                tree = (
                    parser.parse(read, progress_callback=is_late)
                    if old is None
                    else parser.parse(read, old, progress_callback=is_late)
                )
            except ValueError:  # the callback said stop
                spent_s += time.perf_counter() - started_s
                self._is_done = spent_s >= limit_s
                yield
            else:
                self._tree, self._known, self._is_done = tree, (data, tree), True

    def _edited(self, data: bytes) -> Tree | None:
        """Return the last tree, told of what has changed since."""
        if self._known is None:
            return None
        old, tree = self._known
        most, old_end, new_end = min(len(old), len(data)), len(old), len(data)

        def begins_alike(low: int, high: int) -> bool:
            return old[low:high] == data[low:high]

        def ends_alike(low: int, high: int) -> bool:
            return old[old_end - high : old_end - low] == data[new_end - high : new_end - low]

        start = _num_alike(most, begins_alike)
        num_tail = _num_alike(most - start, ends_alike)
        old_to, new_to = old_end - num_tail, new_end - num_tail
        places = _point(old, start), _point(old, old_to), _point(data, new_to)
        edited = tree.copy()
        edited.edit(start, old_to, new_to, *places)
        return edited


@dataclass(frozen=True)
class _Deadline:
    """What a parser asks whether to stop."""

    at_s: float

    def __call__(self, _offset: int, _has_error: bool) -> bool:
        return time.perf_counter() > self.at_s


def _num_alike(most: int, are_alike: Callable[[int, int], bool]) -> int:
    """Return how many of so many are alike; comparing halves is faster than each byte."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if are_alike(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _point(data: bytes, offset: int) -> Point:
    """Return row and column of a byte."""
    return Point(data.count(b"\n", 0, offset), offset - data.rfind(b"\n", 0, offset) - 1)


def leaves(tree: Tree, start_byte: int) -> Iterator[Node]:
    """Yield the tokens that begin at a byte or later, in order; missing ones are left out."""
    cursor = tree.walk()
    is_descending = True
    while True:
        node = cursor.node
        assert node is not None, "a cursor always stands on a node"
        if is_descending and node.end_byte > start_byte and cursor.goto_first_child():
            continue
        is_leaf = is_descending and node.child_count == 0
        if is_leaf and start_byte <= node.start_byte < node.end_byte:
            yield node
        is_descending = cursor.goto_next_sibling()
        if not is_descending and not cursor.goto_parent():
            return


@cache
def _language(grammar: Grammar) -> Language:
    function = getattr(importlib.import_module(grammar.module), grammar.function)
    return Language(cast("object", function()))
