"""Facts about what the engine gets to read."""

from __future__ import annotations

import pytest
from lsprotocol import types

from lsp_server.documents import Document, Snapshot
from lsp_server.prompt import Anchor, Budget, Prompt, build_prompt
from lsp_server.syntax import KeptTree, grammar_of

BUDGET = Budget(prefix_chars=900, suffix_chars=60)

PYTHON = (
    "import os\nfrom sys import path\n\nX = 1\n"
    + "".join(f"\n\ndef filler_{n}():\n    return {n}\n" for n in range(200))
    + "\n\nclass Long(Base):\n    def method(\n        self, a: int\n    ) -> int:\n"
    + "".join(f"        value_{n} = compute({n})\n" for n in range(60))
    + "        "
)


def snapshot(text: str, cursor: int | None = None, language: str = "python") -> Snapshot:
    document = Document.open(types.TextDocumentItem("file:///a", language, 1, text), "utf-32")
    return document.snapshot(document.position(len(text) if cursor is None else cursor))


def build(
    text: str, anchor: Anchor | None = None, cursor: int | None = None, language: str = "python"
) -> tuple[Prompt, Anchor | None]:
    grammar = grammar_of(language)
    kept = KeptTree(grammar) if grammar is not None else None
    return build_prompt(snapshot(text, cursor, language), kept, BUDGET, anchor)


def test_short_prefix_is_sent_whole_and_in_lf():
    prompt, anchor = build("a = 1\r\nb = ", cursor=10)
    assert prompt == Prompt("a = 1\nb =", " ")
    assert anchor is None


def test_budget_is_split_between_prefix_and_suffix():
    assert Budget.of_tokens(100, 0.2) == Budget(240, 60)


def test_long_prefix_begins_with_imports_and_heads():
    prompt, anchor = build(PYTHON)
    assert anchor is not None
    imports, method = "import os\nfrom sys import path\n", "    def method(\n        self, a: int\n"
    head = imports + "class Long(Base):\n" + method + "    ) -> int:\n"
    assert prompt.prefix.startswith(head + "        value_")
    assert prompt.prefix.endswith("value_59 = compute(59)\n        ")
    assert len(prompt.prefix) <= BUDGET.prefix_chars


def test_prefix_grows_at_its_end_only_while_typing():
    """The engine's stored prefix fits again after each key."""
    text = PYTHON
    prompt, anchor = build(text)
    num_anchors = 1
    for key in "result = value_1 + value_2\n" * 12:
        text += key
        following, next_anchor = build(text, anchor)
        if next_anchor is anchor:
            assert following.prefix == prompt.prefix + key
        else:
            num_anchors += 1
        prompt, anchor = following, next_anchor
        assert len(prompt.prefix) <= BUDGET.prefix_chars
    assert num_anchors <= 4


def test_change_in_the_excerpt_moves_the_anchor():
    _, anchor = build(PYTHON)
    assert anchor is not None
    changed = PYTHON.replace("value_50 =", "other_50 =")
    _, moved = build(changed, anchor)
    assert moved is not anchor


def test_cursor_above_the_anchor_moves_it():
    _, anchor = build(PYTHON)
    assert anchor is not None
    _, moved = build(PYTHON, anchor, cursor=anchor.start + 5)
    assert moved is not anchor


def test_suffix_ends_with_a_whole_line():
    text = "x = 1\n" + "y = 2\n" * 100
    prompt, _ = build(text, cursor=6)
    assert prompt.suffix == "y = 2\n" * 10


def test_suffix_of_one_long_line_is_cut():
    prompt, _ = build("x" * 500, cursor=0)
    assert prompt.suffix == "x" * BUDGET.suffix_chars


def test_one_long_line_is_cut_where_the_budget_says():
    prompt, anchor = build("x" * 5000, language="plaintext")
    assert anchor is not None
    assert 0 < len(prompt.prefix) <= BUDGET.prefix_chars
    following, same = build("x" * 5001, anchor, language="plaintext")
    assert same is anchor
    assert following.prefix == prompt.prefix + "x"


@pytest.mark.parametrize("language", ["python", "plaintext", "javascript"])
def test_broken_text_is_trimmed_too(language: str):
    prompt, _ = build("((((\n" * 2000 + "x = ", language=language)
    assert prompt.prefix.endswith("x = ")
    assert len(prompt.prefix) <= BUDGET.prefix_chars


def test_unknown_language_gets_heads_by_indentation():
    text = "start\n" * 300 + "section one\n  part two\n" + "    item\n" * 200 + "    it"
    prompt, _ = build(text, language="plaintext")
    assert prompt.prefix.startswith("section one\n  part two\n    item\n")
