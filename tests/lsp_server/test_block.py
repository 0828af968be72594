"""Facts about where a suggestion's text leaves what it was asked to fill."""

import pytest

from lsp_server.block import EndFinder, Scope, find_end, find_site
from lsp_server.syntax import grammar_of


def cut(language: str, prefix: str, text: str, rest: str = "") -> str | None:
    end = find_end(find_site(prefix, rest, grammar_of(language)), text)
    return None if end is None else text[:end]


@pytest.mark.parametrize(
    ("language", "prefix", "rest", "scope"),
    [
        ("python", "x = ", " + 1", Scope.LINE),
        ("python", "foo(", ")", Scope.STATEMENT),
        ("python", "def f(", "):", Scope.LINE),
        ("python", "def f():\n    ", "", Scope.BLOCK),
        ("python", "x = 1\n", "", Scope.STATEMENT),
        ("python", 'def f():\n    """Doc.\n\n    More.\n    """\n    ', "", Scope.BLOCK),
        ("python", "def f():\n    r'''Doc.'''\n", "", Scope.BLOCK),
        ("python", 'x = """a\n"""\n', "", Scope.STATEMENT),
        ("python", '"""The module."""\n', "", Scope.STATEMENT),
        ("python", 'def f():\n    """Doc."""\n    a()\n    ', "", Scope.STATEMENT),
        ("python", '"""', "", Scope.STATEMENT),
        ("javascript", "function f() {\n  ", "", Scope.BLOCK),
        ("javascript", "case 1:\n  ", "", Scope.STATEMENT),
        ("plaintext", "list:\n", "", Scope.STATEMENT),
    ],
)
def test_cursor_decides_what_is_asked_for(language: str, prefix: str, rest: str, scope: Scope):
    assert find_site(prefix, rest, grammar_of(language)).scope is scope


@pytest.mark.parametrize(
    ("language", "prefix", "text", "expected"),
    [
        ("python", "def f(x):\n    ", "y = 1\n    return y\n\ndef", "y = 1\n    return y"),
        ("python", "def f(x):\n    ", "y = 1\n    return y\n\n    z", None),
        ("python", "def f(x):\n    ", '"""Doc\nodd }."""\n    return 1\n', None),
        (
            "python",
            'def f(x):\n    """D."""\n    ',
            "y = x\n    return y\nz",
            "y = x\n    return y",
        ),
        ("python", 'def f(x):\n    """D."""\n', "    y = x\n    return y\n", None),
        ("python", "x", " = foo(1)\n", " = foo(1)"),
        ("python", "if x", " > 1:\n    a()\nelse:\n    b()\nz", " > 1:\n    a()\nelse:\n    b()"),
        ("python", "if x", " > 1:\n    a()\nelse", None),
        ("python", "def f():\n    return 1\n\n", "@cache\ndef g():\n    pass\n\n", None),
        ("python", "x = ", "foo(\n    1,\n", None),
        ("python", "x = ", "foo(\n    1,\n)\n", None),
        ("python", "x = ", "foo(\n    1,\n)\ny", "foo(\n    1,\n)"),
        ("python", "foo(\n    a,\n    ", "b,\n)\nbar", "b,\n)"),
        ("python", "", "# a note\nx = 1\n", "# a note\nx = 1"),
        ("python", "", "# a note\nfor i in y:\n    a(i)\nz", "# a note\nfor i in y:\n    a(i)"),
        ("python", "", 'x = """\nabc\n', None),
        ("python", "é = ", "'ü'  # ß\n", "'ü'  # ß"),
        ("javascript", "function f() {\n  ", "a();\n  b('}');\n}\ng", "a();\n  b('}');\n}"),
        ("javascript", "function f() {\n  a();\n  ", "b();\n}\n", "b();"),
        ("javascript", "function f() {\n  ", "if (x) {\n    a();\n  }\n", None),
        ("javascript", "if (x) {\n  a();\n}", " else {\n  b();\n}\nz", " else {\n  b();\n}"),
        ("javascript", "let a", " = `x\n${y}\nz`;\nb", " = `x\n${y}\nz`;"),
        ("javascript", "fetch(a)", "\n  .then(b)\n  .then(c);\nz", "\n  .then(b)\n  .then(c);"),
        ("typescript", "interface A {\n  ", "b: string;\n  c: C;\n}\n", "b: string;\n  c: C;\n}"),
        ("javascript", "f(() => {\n  ", "a();\n});\nb", "a();\n});"),
        ("javascript", "f([{\n  ", "a: 1,\n}]);\nb", "a: 1,\n}]);"),
        ("javascript", "f(() => {\n  ", "a();\n}, 1);\nb", "a();\n},"),
        ("javascript", "f(() => {\n  ", "a();\n})", None),
        ("javascript", "f(() => {\n  ", "a();\n}", None),
        ("javascript", "function f() {\n  ", "a();\n});", "a();\n}"),
        ("c", "f(a,\n  ", "b);\ng", "b);"),
        ("go", "func f() int {\n\t", "a := 1\n\treturn a\n}\n\nfunc", "a := 1\n\treturn a\n}"),
        ("go", "func f() {\n\tx()\n\t", "y()\n\tz()\n", "y()"),
        ("rust", "fn f() -> i32 {\n    ", 'let s = "}";\n    1\n}\n', 'let s = "}";\n    1\n}'),
        ("c", "int main() {\n  ", "for (;;) {\n    a();\n  }\n  return 0;\n", None),
        ("cpp", "struct A {\n  ", "int b;\n};\n", "int b;\n}"),
        ("java", "class A {\n  int f() {\n    ", "return 1;\n  }\n}", "return 1;\n  }"),
        ("c", "", "static int\nf(void)\n{\n  g();\n}\n\nx", "static int\nf(void)\n{\n  g();\n}"),
        ("c", "enum e {\n  A,\n  ", "B,\n  C,\n", "B,"),
        ("c", "#if def", "ined(A)\n#u", "ined(A)"),
        ("javascript", "", "let a = b\n\n/** About c", None),
        ("javascript", "", "let a = '/*'\nz", "let a = '/*'"),
        ("javascript", "", "let a = b\nwhile (z) {", "let a = b"),
        ("javascript", "", "do {\n  a()\n}\nwhile (z)\nb", "do {\n  a()\n}\nwhile (z)"),
        ("python", "    a = 1\n    ", "b = 2\nelse", "b = 2"),
        ("python", "", "try:\n    a()\nexc", None),
        ("python", "", "try:\n    a()\nexcept B:\n    c()\nz", "try:\n    a()\nexcept B:\n    c()"),
        ("plaintext", "one ", "two\nthree", "two"),
        ("plaintext", "- a (", "b\nc)\nx", "b\nc)"),
        ("lua", "  ", "if x then\n    y()\n  end\n  z()", "if x then\n    y()\n  end"),
        ("lua", "  ", "if x then\n    y()\n  e", None),
        ("lua", "if x then\n  ", "y()\nend", "y()"),
        ("ruby", "  ", "def f\n    1\n  end\n\n  def g", "def f\n    1\n  end"),
        ("shellscript", "", "for f in *; do\n  a\ndone\nb", "for f in *; do\n  a\ndone"),
        (
            "shellscript",
            "",
            "if a; then\n  b\nelif c; then\n  d\nfi\nb",
            "if a; then\n  b\nelif c; then\n  d\nfi",
        ),
        ("sql", "", "SELECT a\nFROM b\nWHERE c;\nSELECT", "SELECT a\nFROM b\nWHERE c;"),
        ("sql", "select a\n", "fr", None),
        ("sql", "select a", "\nfrom b\n\nx", "\nfrom b"),
        ("dockerfile", "", "RUN a\nFROM b\nRUN", "RUN a"),
        ("html", "  ", "<p>\n    a\n  </p>\n  <p>", "<p>\n    a\n  </p>"),
        ("html", "<p>\n  ", "a\n</p>", "a"),
    ],
)
def test_text_ends_with_what_was_asked_for(
    language: str, prefix: str, text: str, expected: str | None
):
    assert expected == cut(language, prefix, text)


@pytest.mark.parametrize(
    ("language", "prefix", "text", "expected"),
    [
        ("python", "def f():\n    a()\n    ", "b()\n    c()\n\nd()", "b()\n    c()"),
        ("python", "class A:\n    x = 1\n    ", "y = 2\n\n    def f(self):\n", None),
        ("javascript", "function f() {\n  a();\n  ", "b();\n  c();\n}\n", "b();\n  c();"),
        ("python", "", "a()\nb()\n", None),
    ],
)
def test_who_asks_explicitly_gets_all_of_the_block(
    language: str, prefix: str, text: str, expected: str | None
):
    site = find_site(prefix, "", grammar_of(language), Scope.BLOCKS)
    assert site.scope is Scope.BLOCKS
    end = find_end(site, text)
    assert (None if end is None else text[:end]) == expected


@pytest.mark.parametrize(
    ("prefix", "rest", "scope"),
    [("x = ", " + 1", Scope.LINE), ("def f():\n    ", "", Scope.BLOCK)],
)
def test_explicit_request_stays_within_a_line_or_a_block(prefix: str, rest: str, scope: Scope):
    assert find_site(prefix, rest, grammar_of("python"), Scope.BLOCKS).scope is scope


def test_text_in_pieces_ends_where_the_whole_does():
    """Only what is new is parsed, whatever the pieces; see ``EndFinder``."""
    site = find_site("def f(x):\n    ", "", grammar_of("python"))
    text = 'y = """ü\nodd }."""\n    if (x and\n        y):\n        return y\n\nx = 1\n'
    expected = find_end(site, text)
    assert expected is not None
    for size in range(1, 12):
        finder = EndFinder(site)
        ends = [finder.find(text[:at]) for at in range(0, len(text) + size, size)]
        first = next(end for end in ends if end is not None)
        assert first == expected


def test_rest_of_a_line_ends_at_the_line_end():
    assert cut("python", "foo(", "a, b\nc", rest="x)") == "a, b"


def test_growing_text_ends_once_and_for_all():
    """Where the end was found early, more text does not move it."""
    text = "y = x + 1\n    if y:\n        return y\n    return 0\n\n\ndef g():\n    pass\n"
    site = find_site("def f(x):\n    ", "", grammar_of("python"))
    ends = {end for length in range(len(text)) if (end := find_end(site, text[:length]))}
    assert ends == {text.index("\n\n\ndef")}


def test_long_prefix_is_parsed_in_a_window():
    prefix = "def g():\n    pass\n\n" * 2000 + "def f():\n    "
    site = find_site(prefix, "", grammar_of("python"))
    assert len(site.window) <= 3000
    assert site.window.startswith("def g()")
    assert find_end(site, "return 1\n\nx") == len("return 1")
