"""Facts about grammars and parsing."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_sitter import Language, Tree

from lsp_server.syntax import GRAMMARS, Grammar, KeptTree, grammar_of, leaves, parse

PYTHON = GRAMMARS["python"]


@pytest.mark.parametrize("language", sorted(GRAMMARS))
def test_every_language_parses(language: str):
    grammar = grammar_of(language)
    assert grammar is not None
    tree = parse(grammar, b"x = 1;\n")
    assert tree is not None
    assert [leaf.text for leaf in leaves(tree, 0)] == [b"x", b"=", b"1", b";"]


def test_unknown_language_has_no_grammar():
    assert grammar_of("brainfuck") is None


def test_parse_ends_at_its_limit():
    grammar = GRAMMARS["python"]
    assert parse(grammar, b"x = (1 + " * 20_000, limit_s=0.005) is None
    tree = parse(grammar, b"x = 1")
    assert tree is not None, "a parser that was stopped can be used again"
    assert not tree.root_node.has_error


def test_leaves_begin_where_asked():
    tree = parse(GRAMMARS["python"], "é = f(1)".encode())
    assert tree is not None
    assert [leaf.type for leaf in leaves(tree, 3)] == ["=", "identifier", "(", "integer", ")"]


@pytest.mark.parametrize(
    "grammar", {grammar.module: grammar for grammar in GRAMMARS.values()}.values()
)
def test_node_types_exist_in_the_grammar(grammar: Grammar):
    """Types of TypeScript are listed for JavaScript too; all others must be known."""
    tree = parse(grammar, b"")
    assert tree is not None
    language: Language = tree.language
    kinds = {language.node_kind_for_id(index) for index in range(language.node_kind_count)}
    named = grammar.definitions | grammar.imports | grammar.containers
    typescript = {"internal_module", "interface_body", "enum_declaration", "enum_body"}
    typescript |= {"interface_declaration", "abstract_class_declaration", "object_type"}
    assert named - kinds <= (typescript if grammar.module == "tree_sitter_javascript" else set())


def shape(tree: Tree | None) -> list[tuple[str, int, int, int, int]]:
    """Return kind, bytes and place of each token."""
    assert tree is not None
    return [
        (leaf.type, leaf.start_byte, leaf.end_byte, leaf.start_point.row, leaf.start_point.column)
        for leaf in leaves(tree, 0)
    ]


PIECES = st.sampled_from(["x = 1\n", "def f(a):\n    return a\n", "é", "(", "\n", "    ", "a.b"])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9), PIECES), max_size=6))
def test_kept_tree_is_the_tree_of_the_text_after_any_edit(edits: list[tuple[int, int, str]]):
    kept, text = KeptTree(PYTHON), "class A:\n    def f(self):\n        return 'π'\n\nx = A()\n"
    for start, num_removed, piece in edits:
        text = text[:start] + piece + text[start + num_removed :]
        # A busy machine may stand still for longer than a parse may take.
        fresh = parse(PYTHON, text.encode(), limit_s=60)
        tree = kept.parse(text.encode(), limit_s=60)
        assert fresh is not None
        if not fresh.root_node.has_error:  # what is broken may be mended in more than one way
            assert shape(tree) == shape(fresh)


def test_parse_in_slices_lets_others_go_on():
    data = b"def f(a):\n    return [a, 1]\n" * 4000
    kept, turns = KeptTree(PYTHON), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scene() -> None:
        counting = asyncio.create_task(count())
        await kept.parse_in_slices(data, limit_s=60)
        counting.cancel()

    asyncio.run(scene())
    assert turns > 3
    tree = kept.parse(data, limit_s=0)
    assert tree is not None, "it need not be parsed again"
    assert not tree.root_node.has_error


def test_what_was_given_up_is_not_tried_again_until_it_changes():
    kept, data = KeptTree(PYTHON), b"x = (1 + " * 20_000
    asyncio.run(kept.parse_in_slices(data, limit_s=0.005))
    assert kept.parse(data, limit_s=60) is None
    assert kept.parse(b"x = 1") is not None


def test_who_begins_anew_makes_the_older_parse_void():
    async def scene() -> None:
        kept = KeptTree(PYTHON)
        older = asyncio.create_task(kept.parse_in_slices(b"x = 1\n" * 20_000, limit_s=60))
        await asyncio.sleep(0)
        assert shape(kept.parse(b"y")) == [("identifier", 0, 1, 0, 0)]
        await older
        assert shape(kept.parse(b"y")) == [("identifier", 0, 1, 0, 0)]

    asyncio.run(scene())
