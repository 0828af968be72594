"""Facts about the rules on what a model wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsp_server.place import Place
from lsp_server.postprocess import (
    RULES,
    drop_closers_below,
    drop_duplicate_of_next_line,
    drop_meaningless,
    drop_opening_fence,
    drop_overlap_with_rest,
    end_at_next_line,
    match_indentation,
    num_covered,
    postprocess,
    stream_end,
    strip_end,
    to_lf,
    with_line_ends,
)


def place(before: str = "", rest: str = "", *next_lines: str, is_prose: bool = False) -> Place:
    return Place(before, rest, next_lines, is_prose)


@pytest.mark.parametrize(
    ("before", "text", "expected"),
    [
        ("", "```python\nx = 1\n```\n", "x = 1\n```\n"),
        ("    ", "\n~~~\n    x = 1\n    y", "x = 1\n    y"),
        ("", "```", ""),
        ("x = ", "```\ny", "```\ny"),
        ("", "x\n```\ny", "x\n```\ny"),
    ],
)
def test_fence_around_the_text_is_dropped(before: str, text: str, expected: str):
    assert expected == drop_opening_fence(text, place(before))
    assert text == drop_opening_fence(text, place(before, is_prose=True))


@pytest.mark.parametrize(
    ("before", "text", "next_line", "expected"),
    [
        ("    ", "x = 1\n    return x\n    y", "    return x", "x = 1"),
        ("    ", "return x", "    return x", ""),
        ("    ", "x = 1\n        return x", "    return x", "x = 1\n        return x"),
        ("    ", "x = {\n    }", "    }", "x = {\n    }"),
    ],
)
def test_text_ends_at_the_line_below(before: str, text: str, next_line: str, expected: str):
    assert expected == end_at_next_line(text, place(before, "", next_line))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('f(x):\n    """\n    Doc.\n    """\n    g()', "f(x):"),
        ('f(x):\n\n    """\n\n    Doc.\n', "f(x):\n"),
        ('f(x):\n    """\n    Other.\n', 'f(x):\n    """\n    Other.\n'),
        ('f(x):\n    """\n', 'f(x):\n    """\n'),
    ],
)
def test_line_below_without_a_word_is_known_with_those_below_it(text: str, expected: str):
    where = place("def ", "", '    """', "    Doc.", '    """')
    assert expected == end_at_next_line(text, where)


@pytest.mark.parametrize(
    ("before", "indent", "text", "expected"),
    [
        ("func f() {", "\t", "\n    a()\n    if b {\n        c()", "\n\ta()\n\tif b {\n\t\tc()"),
        ("\t", "\t", "a()\n    b()", "a()\n\tb()"),
        ("\t", "\t", "a {\n  b()\n", "a {\n\tb()\n"),
        ("    ", "    ", "if b:\n\t\tc()", "if b:\n        c()"),
        ("x = ", "\t", "    1", "    1"),
        ("    ", "    ", "   odd()\n   odd()", "   odd()\n   odd()"),
        ("\t", "", "a()\n    b()", "a()\n    b()"),
    ],
    ids=[
        "spaces become tabs",
        "the first line goes on with one that is indented",
        "two spaces become a tab",
        "tabs become spaces",
        "white space inside a line stays",
        "an odd depth is not repaired",
        "an unknown document is left alone",
    ],
)
def test_text_is_indented_as_its_document(before: str, indent: str, text: str, expected: str):
    assert match_indentation(text, Place(before, "", (), indent=indent)) == expected


def test_copy_of_the_line_below_is_known_with_other_white_space():
    where = Place("\t", "", ("\tb()",), indent="\t")
    assert postprocess("a()\n    b()\n    c()", where).text == "a()"


def test_cut_copy_of_the_line_below_is_dropped():
    below = place("", "", "return value")
    assert drop_duplicate_of_next_line("x = 1\nreturn val", below) == "x = 1"
    assert drop_duplicate_of_next_line("return val", below) == "return val"
    assert drop_duplicate_of_next_line("x = 1\nr", below) == "x = 1\nr"


def test_copy_of_several_lines_below_is_dropped_when_its_last_line_is_cut():
    below = place(" * ", "", " */", "function f() {")
    assert drop_duplicate_of_next_line("a\n */\nfunction f", below) == "a"
    assert drop_duplicate_of_next_line("a\n *\nfunction f", below) == "a\n *\nfunction f"


def test_opening_line_below_is_not_repeated():
    below = place("int f(int a)", "", "{", "    return a;")
    assert drop_duplicate_of_next_line("\n{", below) == ""
    assert drop_duplicate_of_next_line("\n    {", below) == "\n    {"


def test_line_of_the_cursor_is_not_dropped_with_an_empty_text():
    assert drop_closers_below("\n *", place(" *", "", " *", " * b")) == ""
    assert drop_closers_below("", place("}", "", "}")) == ""


@pytest.mark.parametrize(
    ("text", "rest", "expected"),
    [
        ("a, b)", ")", "a, b"),
        ("f(x)", ")", "f(x)"),
        ("a + b", " + b", "a"),
        ("a + b", "x", "a + b"),
        ("ab", "b", "ab"),
        ("a,\nb)", ")", "a,\nb"),
        ("x)\nfoo(y)", ")", "x)\nfoo(y)"),
        ("a, b):", "):", "a, b"),
        ("abc", "   ", "abc"),
        ("a(b, c):", "(b, c):", "a"),
        ("f(x).g(y)", ").g(y)", "f(x).g(y)"),
        ("f(x) + g(y)", "g(y)", "f(x) + "),
        ("else:", ":", "else"),
        ("x > 1 {", " {", "x > 1"),
        ("return t", " t", "return"),
        ("plugin", " in plugins:", "plugin"),
        ("for plugin in", " in plugins:", "for plugin"),
        ("error", " or x:", "error"),
        ("check in", " include:", "check in"),
        ("my_value", "value + 1", "my_"),
    ],
)
def test_text_does_not_repeat_the_rest_of_the_line(text: str, rest: str, expected: str):
    assert expected == drop_overlap_with_rest(text, place("", rest))


@pytest.mark.parametrize(
    ("before", "text", "next_lines", "expected"),
    [
        ("  ", "a();\n}", ["}"], "a();"),
        ("    ", "a();\n  }\n}", ["  }", "}"], "a();"),
        ("    ", "a();\n  }\n}", ["}"], "a();\n  }"),
        ("  ", "a();\n  }", ["}"], "a();\n  }"),
        ("  ", "a();\n}", ["});"], "a();"),
        ("  ", "a();\n}", ["} else {"], "a();"),
        ("    ", "a();\n  }\n}", ["  }", "});"], "a();"),
        ("  ", "a();\n});", ["}"], "a();\n});"),
        ("", "}", ["}"], ""),
        ("", "x = [", ["]"], "x = ["),
        ("  ", "a();\n});", ["})"], "a();"),
        ("  ", "a();\n}\nb();", ["}"], "a();"),
        ("  ", "a();\n} else {\n  b();\n}\nc();", ["}"], "a();\n} else {\n  b();"),
        ("v", "oid f() {\n  a();\n}", ["}  // namespace"], "oid f() {\n  a();\n}"),
        ("void f(", "int a) {\n  b();\n}", ["}"], "int a) {\n  b();\n}"),
        ("  ", "a();\n};", ["}"], "a();"),
        (" * ", "a\n */", [" */", "b"], "a"),
        (" * ", "a\n *\n * b\n *", [" *", " * c"], "a\n *\n * b"),
        ("# ", "a\n#", ["#", "# b"], "a"),
    ],
)
def test_closing_lines_below_are_not_repeated(
    before: str, text: str, next_lines: list[str], expected: str
):
    assert expected == drop_closers_below(text, place(before, "", *next_lines))


def test_white_space_at_line_ends_is_dropped():
    assert strip_end("a  \nb \n\n", place()) == "a\nb"


@pytest.mark.parametrize("text", ["", "  ", "#", "//", "# ---", "..."])
def test_meaningless_text_is_dropped(text: str):
    assert drop_meaningless(text, place()) == ""


@pytest.mark.parametrize("text", [")", "x", "''", "{"])
def test_short_but_meaningful_text_is_kept(text: str):
    assert text == drop_meaningless(text, place())


def test_rule_that_leaves_nothing_is_named():
    assert postprocess("return x", place("", "", "return x")).emptied_by == "end_at_next_line"
    assert postprocess("a, b)", place("f(", ")")).text == "a, b"


PIECES = st.sampled_from(["a", "b", " ", "\n", ")", "}", "(", "    ", "return x", "```", "#", "'"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
PLACES = st.builds(
    Place,
    st.just("    "),
    TEXTS.map(lambda t: t.replace("\n", "")),
    st.tuples(PIECES, PIECES),
    st.booleans(),
)


@given(TEXTS, PLACES)
def test_no_rule_writes_anything(text: str, where: Place):
    """What a rule returns is part of the text, but for white space at line ends."""
    for rule in RULES:
        result = rule(text, where)
        assert len(result) <= len(text)
        if rule is not strip_end:
            assert result in text


@given(TEXTS, PLACES)
def test_processed_text_is_the_same_when_processed_again(text: str, where: Place):
    """Cached text goes through the rules once more."""
    once = postprocess(text, where).text
    assert postprocess(once, where).text in once


@given(TEXTS, TEXTS.map(lambda t: t.replace("\n", "")))
def test_covered_rest_comes_in_the_text_in_order(text: str, rest: str):
    """Otherwise VS Code hides the item."""
    remaining = iter(text)
    covered = rest[: num_covered(text, rest)]
    assert all(char in remaining for char in covered)


@pytest.mark.parametrize(
    ("text", "rest", "expected"),
    [
        ("a):\n    return a", ")", 1),
        ("f(a)\nb", ")", 0),
        ("x) + (y", ")", 0),
        ("1)\n]", ")]", 2),
        ("1)\n]", "])", 0),
        ("}])", ")]", 0),
        (" }]);", ")", 1),
        (" }]);", "])", 2),
        ("a", ")", 0),
        ('a"]', '"]', 2),
        ("a", "", 0),
        ("a)", "x)", 0),
    ],
)
def test_closers_that_the_text_brings_are_covered(text: str, rest: str, expected: int):
    assert expected == num_covered(text, rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1", None),
        ("x = 1\n", None),
        ("x = 1\n```\n", "x = 1"),
        ("x = 1\n``", None),
        ("x = 1\n\n```", "x = 1"),
        ("x = 1\n    done()\ny", "x = 1"),
        ("y = 1\n    y = 1\n    y = 1\n", "y = 1"),
        ("```python\nx = 1\n", None),
        ("```python\n    x = 1\n```", "```python\n    x = 1"),
    ],
)
def test_stream_ends_at_lines_that_stay_what_they_are(text: str, expected: str | None):
    end = stream_end(text, place("    ", "", "    done()"))
    assert expected == (None if end is None else text[:end])


def test_line_ends_are_those_of_the_document():
    assert with_line_ends("a\nb", "\r\n") == "a\r\nb"
    assert with_line_ends("a\nb", "\n") == "a\nb"
    assert to_lf("a\r\nb\rc\n") == "a\nb\nc\n"
