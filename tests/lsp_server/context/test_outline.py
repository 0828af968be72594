"""Facts about imports and heads that stand before an excerpt."""

import pytest
from tree_sitter import Tree

from lsp_server.context.outline import (
    AROUND_CHARS,
    WHOLE_CHARS,
    Outline,
    find_outline,
    parsed_part,
)
from lsp_server.syntax import KeptTree, grammar_of


def kept(language: str) -> KeptTree:
    grammar = grammar_of(language)
    assert grammar is not None
    return KeptTree(grammar)


def outline(language: str, text: str, *, start_at: str, cursor_at: str) -> Outline:
    start, cursor = text.index(start_at), text.index(cursor_at)
    return find_outline(text, start, cursor, kept(language))


@pytest.mark.parametrize(
    ("language", "imports", "heads", "end"),
    [
        ("python", "import a\n", "class A:\n    def f(self):\n", ""),
        ("javascript", "import a from 'a';\n", "class A {\n  f() {\n", "  }\n}\n"),
        ("typescript", "import a from 'a';\n", "class A {\n  f(): int {\n", "  }\n}\n"),
        ("go", 'package a\nimport "b"\n', "func f() {\n", "}\n"),
        ("rust", "use a::b;\n", "impl A {\n    fn f() {\n", "    }\n}\n"),
        ("c", "#include <a.h>\n", "int f(void) {\n", "}\n"),
        ("cpp", "#include <a>\n", "namespace n {\nint f() {\n", "}\n}\n"),
        ("java", "import a;\n", "class A {\n  int f() {\n", "  }\n}\n"),
    ],
)
def test_imports_and_heads_of_each_language(language: str, imports: str, heads: str, end: str):
    sign = "" if language == "python" else ";"
    text = f"{imports}{heads}        b(){sign}\n        c(){sign}\n{end}"
    start, cursor = text.index("        c()"), text.index("c()") + 1
    found = find_outline(text, start, cursor, kept(language))
    assert found == Outline(imports, heads)


def test_definition_inside_the_excerpt_is_not_repeated():
    text = "class A:\n    x = 1\n    def f(self):\n        y()\n"
    assert outline("python", text, start_at="    def", cursor_at="y()").heads == "class A:\n"


def test_function_that_is_closed_is_no_head():
    text = "def f():\n    pass\n\nx = 1\ny = 2\n"
    assert outline("python", text, start_at="x =", cursor_at="y =").heads == ""


def test_broken_file_gets_heads_by_indentation():
    text = "}}} ((\nfunction f( {\n  if (x {\n    a();\n    b();\n"
    assert "function f( {" in outline("javascript", text, start_at="    a", cursor_at="b()").heads


def test_line_that_the_cut_runs_through_is_taken_whole():
    text = f"{'x' * AROUND_CHARS};\n    a();\n    b();\n"
    assert find_outline(text, text.index("    b"), len(text) - 1, None).heads == text[:-18]


def test_long_head_is_cut():
    parameters = "".join(f"    p{n},\n" for n in range(50))
    text = f"def f(\n{parameters}):\n    a()\n    b()\n"
    heads = outline("python", text, start_at="    a()", cursor_at="b()").heads
    assert heads.count("\n") == 8


def test_part_of_a_long_text_is_parsed_from_a_line_on():
    text = "class A:\n" + "    x = 1\n" * (WHOLE_CHARS // 10)
    start = len(text) - 10
    first, part = parsed_part(text, start, len(text))
    assert text[first - 1] == "\n"
    assert text.endswith(part)
    assert len(part) < len(text) / 2
    assert parsed_part(text[:1000], 500, 600) == (0, text[:1000])


def test_heads_stay_right_while_the_text_changes():
    """The tree is kept from one place to the next; only what has changed is parsed again."""
    tree, text = kept("java"), "class A {\n  void f() {\n    a();\n    b();\n  }\n}\n"
    for _ in range(3):
        start, cursor = text.index("    a()"), text.index("b()") + 1
        assert find_outline(text, start, cursor, tree).heads == "class A {\n  void f() {\n"
        text = "// naïve\n" + text.replace("b();", "b();\n    π();")
    renamed = text.replace("class A", "class Other")
    start, cursor = renamed.index("    a()"), renamed.index("b()") + 1
    assert find_outline(renamed, start, cursor, tree).heads.startswith("class Other {\n")


CLASS = "class A:\n"
METHOD = "    def f(\n        self, a\n    ) -> int:\n"
BODY = "        a()\n        b()\n"


@pytest.mark.parametrize(
    ("between", "case"),
    [
        ("", "a head that ends with a bracket"),
        ('        """Doc.\n\nusage: none\ndef g():\n        """\n', "a string at column 0"),
        ("# off\n    # off\n", "comments at column 0"),
        ("        if a:\n            pass\n        else:\n            pass\n", "other blocks"),
        ("        x = g(\n            1,\n        )\n", "a call over lines"),
        ("        def g():\n            pass\n\n", "another definition"),
    ],
)
def test_heads_of_python_go_by_lines(between: str, case: str):
    text = f"import a\n\n\n{CLASS}    x = 1\n\n{METHOD}{between}{BODY}"
    heads = outline("python", text, start_at="        a()", cursor_at="b()").heads
    assert heads == CLASS + METHOD, case


def test_comment_below_a_head_is_no_part_of_it():
    text = f"class A:  # b: c\n    # About A.\n    def f(self, a={{}}, b='#'):\n{BODY}"
    heads = outline("python", text, start_at="        a()", cursor_at="b()").heads
    assert heads == "class A:  # b: c\n    def f(self, a={}, b='#'):\n"


def test_broken_python_has_heads_too():
    text = "class A:\n    x = (\n    def f(self):\n        a(\n        b()\n"
    heads = outline("python", text, start_at="        a(", cursor_at="b()").heads
    assert heads == "class A:\n    def f(self):\n"


def test_heads_of_a_very_long_file_are_looked_for_in_its_last_part():
    doc = '    """Doc.\n\nReturns nothing.\n    """\n'
    filler = "".join(f"def f{n}():\n{doc}    return {n}\n\n\n" for n in range(AROUND_CHARS // 40))
    text = f"{filler}class A:\n    def f(self):\n{BODY}"
    assert len(text) > AROUND_CHARS
    heads = outline("python", text, start_at="        a()", cursor_at="b()").heads
    assert heads == "class A:\n    def f(self):\n"


def test_long_python_file_is_not_parsed_for_its_heads():
    """Each jump would cost ten milliseconds in 2,000 lines."""

    class Untouchable(KeptTree):
        def parse(self, data: bytes, limit_s: float = 0.0) -> Tree | None:
            raise AssertionError("it was parsed")

    grammar = grammar_of("python")
    assert grammar is not None
    text = f"import a\n{CLASS}{METHOD}{BODY}"
    start, cursor = text.index("        a()"), text.index("b()")
    found = find_outline(text, start, cursor, Untouchable(grammar))
    assert found == Outline("import a\n", CLASS + METHOD)
