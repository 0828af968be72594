"""Facts about imports and heads that stand before an excerpt."""

import pytest

from lsp_server.context.outline import Outline, find_outline
from lsp_server.syntax import grammar_of


def outline(language: str, text: str, *, start_at: str, cursor_at: str) -> Outline:
    start, cursor = text.index(start_at), text.index(cursor_at)
    return find_outline(text, start, cursor, grammar_of(language))


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
    found = find_outline(text, start, cursor, grammar_of(language))
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


def test_long_head_is_cut():
    parameters = "".join(f"    p{n},\n" for n in range(50))
    text = f"def f(\n{parameters}):\n    a()\n    b()\n"
    heads = outline("python", text, start_at="    a()", cursor_at="b()").heads
    assert heads.count("\n") == 8
