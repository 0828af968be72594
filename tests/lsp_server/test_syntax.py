"""Facts about grammars and parsing."""

import pytest
from tree_sitter import Language

from lsp_server.syntax import GRAMMARS, Grammar, grammar_of, leaves, parse


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
