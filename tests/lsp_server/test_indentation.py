"""Facts about tabs and spaces."""

from __future__ import annotations

import pytest

from lsp_server.indentation import find_unit, spaces_of, with_unit


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f():\n    a()\n    ", "    "),
        ("if x:\n  if y:\n    a()", "  "),
        ("func f() {\n\ta()\n\t\tb()", "\t"),
        ("x = 1\ny = 2", ""),
        ("", ""),
        ("a {\n\tb\n}\nc {\n    d", "    "),
        ("a {\n    b\n}\nc {\n\td", "\t"),
        ("a {\n\t  b", ""),
        ("f(a,\n              b)", "    "),
        ("/**\n * note\n */\nclass A {\n  int b;", "  "),
        ("\ta();\n}\n\n/**\n * note\n */\nint f(void) {", "\t"),
        ("/**\n * note\n */\nint f(void) {", ""),
    ],
)
def test_nearest_indented_line_tells_the_unit(text: str, expected: str):
    assert find_unit(text.split("\n")) == expected


@pytest.mark.parametrize(
    ("line", "unit", "expected"),
    [
        ("        a", "\t", "\t\ta"),
        ("      a", "\t", "\t  a"),
        ("\t    a", "\t", "\t    a"),
        ("\ta", "  ", "  a"),
        ("\t\ta", "    ", "        a"),
        ("   a", "  ", "   a"),
        ("a\tb", "  ", "a\tb"),
        ("", "\t", ""),
    ],
)
def test_line_takes_the_unit_of_its_document(line: str, unit: str, expected: str):
    assert with_unit(line, unit, 4) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("a\n    b\n        c", 4), ("a\n  b\n    c", 2), ("a\n\tb", 4)]
)
def test_text_steps_by_two_or_four_spaces(text: str, expected: int):
    assert spaces_of(text.split("\n")) == expected
