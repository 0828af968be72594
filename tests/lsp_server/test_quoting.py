"""Facts about which lines begin inside strings and comments."""

import pytest

from lsp_server.quoting import SCAN_CHARS, WINDOW_CHARS, find_quoted_lines, window_above, window_of
from lsp_server.syntax import grammar_of


@pytest.mark.parametrize(
    ("language", "head", "text", "expected"),
    [
        ("python", "", 'x = """\na\nb"""\nc', {1, 2}),
        ("python", 'def f():\n    """Doc.\n', 'more\n"""\nx', {0, 1}),
        ("python", "x = '''\n", "it's\n'''\nx\n", {0, 1}),
        ("python", "# it's\n", 'x = "a\\"""\nb', set()),
        ("python", "x = 'a\\\n", "b'\nc", {0}),
        ("python", "x = '\n", "b\nc", set()),
        ("python", 'x = """\\', "", set()),
        ("javascript", "/* a\n", "b */\nc", {0}),
        ("javascript", "// it's `\n", "a = `\nb\n`\nc", {1, 2}),
        ("go", "", "a := `\\`\nb", set()),
        ("rust", "fn f<'a>(x: &'a str) {\n", 'let y = "\nb";\nlet c = \'"\';\nd', {1}),
        ("rust", 'let x = r#"\n', 'a "\nb"#;\nc', {0, 1}),
        ("cpp", 'auto x = R"y(\n', 'a)"\nb)y";\nc', {0, 1}),
        ("c", "int x = 1'000;\n", "char c = '\"';\n/*\na", {2}),
        ("java", 'var x = """\n', 'a\n""";\nb', {0, 1}),
        ("plaintext", '"""\n', "a", set()),
    ],
)
def test_line_in_a_string_or_comment_is_quoted(
    language: str, head: str, text: str, expected: set[int]
):
    assert expected == find_quoted_lines(head, text, grammar_of(language))


def test_window_begins_with_a_definition():
    window = window_of("def g():\n    pass\n\n" * 2000)
    assert len(window) <= WINDOW_CHARS
    assert window.startswith("def g()")


@pytest.mark.parametrize(
    ("language", "opening"), [("python", '"""'), ("javascript", "/*"), ("javascript", "`")]
)
def test_window_inside_a_string_opens_it(language: str, opening: str):
    """Else what ends the string would seem to begin one."""
    text = "x = 1\n" + opening + "\n" + "words in a string\n" * 300
    window = window_above(text, grammar_of(language))
    assert window.startswith(opening + "\n")
    assert len(window) <= WINDOW_CHARS + len(opening) + 1


def test_window_of_a_cut_text_is_scanned_from_a_definition():
    text = 'a docstring ends """\n\ndef f():\n    """\n' + "    words\n" * (SCAN_CHARS // 10)
    assert window_above(text, grammar_of("python")).startswith('"""\n')


def test_window_outside_of_strings_is_left_alone():
    text = "x = 1\n" * 1000
    assert window_above(text, grammar_of("python")) == window_of(text)
    assert window_above(text, None) == window_of(text)
    assert window_above('"""\na', grammar_of("python")) == '"""\na'
