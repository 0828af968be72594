"""Facts about where a model is taken to have stopped writing code."""

from __future__ import annotations

import ast
import importlib.util
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.place import Place
from lsp_server.postprocess import stream_end
from lsp_server.quoting import SCAN_CHARS, window_above
from lsp_server.stop_rules import (
    STOP_RULES,
    end_at_fence,
    end_at_loop,
    end_at_repetition,
    end_at_talk,
    is_decided,
    is_loop,
    is_sentence,
    opening_blanks_len,
    opening_len,
)
from lsp_server.syntax import grammar_of


def place(language: str = "python", prefix: str = "", *, is_prose: bool = False) -> Place:
    above, newline, before = prefix.rpartition("\n")
    return Place(before, "", (), is_prose, above + newline, grammar_of(language))


@pytest.mark.parametrize(
    ("language", "prefix", "text", "expected"),
    [
        ("python", "", "x = 1\n\n```\nThat is it.", "x = 1"),
        ("python", "", "x = 1\n    ~~~\ny", "x = 1"),
        ("ruby", "", "x = 1\n```\ny", "x = 1"),
        ("python", "x = ", "```", "```"),
        ("python", 'def f():\n    """Doc.\n', "```\nf()\n```\n", "```\nf()\n```\n"),
        ("python", "", '"""Doc.\n\n```\nf()\n```\n"""', '"""Doc.\n\n```\nf()\n```\n"""'),
        ("python", "", 'x = """a"""\n```', 'x = """a"""'),
        ("python", 'x = """\n', "Title\n~~~~~\n", "Title\n~~~~~\n"),
        ("javascript", "/**\n", "```\nf()\n```\n*/", "```\nf()\n```\n*/"),
        ("javascript", "y = 1 +\n", "~~~x", "~~~x"),
        ("rust", "", "/// ```\n/// f()\n/// ```", "/// ```\n/// f()\n/// ```"),
    ],
)
def test_fence_ends_the_text(language: str, prefix: str, text: str, expected: str):
    assert expected == end_at_fence(text, place(language, prefix))


def test_document_of_prose_keeps_fences_and_talk():
    text = "This is a list of words:\n```\nb"
    where = place("markdown", is_prose=True)
    assert text == end_at_fence(text, where) == end_at_talk(text, where)


TALK = [
    "This function takes a list of numbers and returns the sum of them.",
    "Here is the solution:",
    "Here's how it works:",
    "Sure! Here is the code you asked for.",
    "In this example, we use a list to store the numbers.",
    "Note that the list must not be empty.",
    "Explanation:",
    "Output:",
    "I hope this helps! Let me know if you have any other questions.",
    "The `sort` function sorts the list in place.",
    "1. The function first checks if the list is empty.",
    "- It returns the second smallest element",
    "**Explanation:** the list is sorted first",
    "numbers that are less than or equal to 10.",
]


@pytest.mark.parametrize("language", ["python", "javascript", "go", "rust", "c", "cpp", "java"])
@pytest.mark.parametrize("talk", TALK)
def test_talk_ends_the_text(language: str, talk: str):
    assert end_at_talk(f"x = 1;\n\n{talk}\ny = 2;", place(language)) == "x = 1;"


@pytest.mark.parametrize(
    ("language", "prefix", "text"),
    [
        ("python", "", "# This function takes a list of words\nx = 1"),
        ("python", "# ", "Note that this is a list of words\nx = 1"),
        ("python", 'def f():\n    """Doc.\n\n    ', "This function takes a list of words.\n"),
        ("python", "", 'x = """\nThis function takes a list of words.\n"""\n'),
        ("python", "x = (\n", "    not a and b is not c or d in e\n)"),
        ("python", "", "return a if b else not c\nfor a in b:\n    raise a from b"),
        ("python", "", "print this\nassert isinstance(a, int), 'This is a list of words'"),
        ("python", "x(\n", "f'This is a list of words')"),
        ("python", "x = {\n", "    output: [1],\n    Note: 3,\n"),
        ("c", "", "static const unsigned long long int size;\nextern struct foo bar;"),
        ("java", "", "public static final Foo bar = null;\nprivate Map<Foo, Bar> the_map;"),
        ("go", "", "type Foo struct {\n\tBar Baz\n}"),
        ("rust", "", "pub unsafe extern fn foo() {}\nlet mut x = y as usize;"),
        ("javascript", "x = <p>\n", "  This is a list of words.\n</p>"),
        ("typescriptreact", "", "return <b>\nHere is the list of words\n</b>"),
        ("javascript", "x = `\n", "This is a list of words.\n`"),
        ("cpp", "/* ", "note\nThis is a list of words.\n*/"),
        ("shellscript", "cat <<EOF\n", "This is a list of words.\nEOF"),
        ("shellscript", "", "echo this is a list of words."),
        ("yaml", "", "Output:\n  Note: a"),
    ],
)
def test_code_is_no_talk(language: str, prefix: str, text: str):
    assert text == end_at_talk(text, place(language, prefix))


def test_generics_are_no_markup():
    where = place("typescript", "let a: Map<string>\n")
    assert end_at_talk("b()\nThis is a list of the words.", where) == "b()"


def test_talk_without_a_grammar_needs_a_paragraph():
    text = "puts 1\n\nThis code prints the number to the screen.\n\nputs 2"
    assert end_at_talk(text, place("ruby")) == "puts 1"


@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        ("", "a = 1\na = 1\na = 1\na = 1", "a = 1"),
        ("", "x\na b\nb\na b\nb\na b\nb\n", "x\na b\nb"),
        ("", "a = 1\na = 1\nb", "a = 1\na = 1\nb"),
        ("", "a = 1\n\n\na = 1\n\n\na = 1\n\n\n", "a = 1"),
        ("", "a = 1\n  a = 1\n    a = 1", "a = 1\n  a = 1\n    a = 1"),
        ("", "}\n}\n}\n}\n}\n}\n}\n}", "}\n}\n}\n}\n}\n}\n}\n}"),
        ("", "NULL,\nNULL,\nNULL,", "NULL,\nNULL,\nNULL,"),
        ("", "x\npass\npass\npass\npass\npass\npass\npass", "x\npass"),
        ("a = 1\n", "a = 1\na = 1\nb", ""),
        ("a = 1\na = 1\n", "b\n", "b\n"),
        ("a = 1\nb = 2\n", "a = 1\nb = 2\nc", ""),
        ("a = 1\nb = 2\n", "c\na = 1\nb = 2\nc", "c\na = 1\nb = 2\nc"),
        ("", "a = 1\nb = 2\nc = 3\na = 1\nb = 2\nc = 3", "a = 1\nb = 2\nc = 3"),
        ("", "a = 1\n}\n}\na = 1\n}\n}", "a = 1\n}\n}\na = 1\n}\n}"),
        ("a = 1\nb = 2\n", "c = 3\na = 1\nb = 2\nc = 3", "c = 3"),
        ("    a = 1\n    b = 2\n    ", "a = 1\n    b = 2\n", ""),
    ],
)
def test_lines_said_before_end_the_text(prefix: str, text: str, expected: str):
    assert expected == end_at_repetition(text, place(prefix=prefix))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = '" + "1234567890abc" * 5, True),
        ("x = '" + "1234567890abc" * 4, False),
        ("x = '" + "ab " * 40, True),
        ("x = '" + "ab " * 20, False),
        ("x = '" + ("abc" * 6 + "Z") * 5, True),
        ("# " + "-" * 200, False),
        ("x = [" + "0, " * 100, False),
        ("a, b", False),
        ("def f(a: size_t, b: size_t, c: size_t, d: size_t, e: size_t) -> size_t:", False),
    ],
)
def test_line_that_goes_round_is_a_loop(line: str, expected: bool):
    assert expected == is_loop(line)
    assert end_at_loop(f"y\n{line}", place()) == ("y" if expected else f"y\n{line}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("This function tak", False),
        ("This function takes a list of w", True),
        ("Output:", False),
        ("Output: x", False),
        ("``", False),
        ("```", True),
        ("~~~", False),
        ("x = '" + "1234567890abc" * 5, True),
    ],
)
def test_line_is_decided_when_no_more_text_can_save_it(line: str, expected: bool):
    assert expected == is_decided(line, place())


def test_opening_fence_has_a_length():
    assert opening_len("```python\nx", place()) == 10
    assert opening_len("```python\n    x", place(prefix="    ")) == 14
    assert opening_len("x", place()) == 0


@pytest.mark.parametrize(
    ("prefix", "text", "expected"),
    [
        ("def f():\n    x = 1\n", "\n    return x", 1),
        ("def f():\n    x = 1\n", "\n  \n    return x", 4),
        ("def f():\n    x = 1\n    ", "\n    return x", 5),
        ("def f():\n    x = 1\n    ", "\n        return x", 5),
        ("def f():\n    x = 1\n    ", "\n  return x", 0),
        ("def f():\n    x = 1\n", "\nreturn x", 0),
        ("def f():\n    x = 1", "\n\n    return x", 0),
        ("class A:\n    x = 1\n", "\n    def f(self):", 0),
        ("class A:\n    x = 1\n", "\n    async def f(self):", 0),
        ("class A:\n    x = 1\n", "\n    @property", 0),
        ("class A:\n    x = 1\n", "\n    # Does.\n    def f(self):", 0),
        ("class A:\n    x = 1\n", "\n    defaults = 1", 1),
        ("class A:\n    x = 1\n", "\n    de", 0),
        ("class A:\n    x = 1\n", "\n    ", 0),
        ("def f():\n    x = 1\n", "\n    x", 1),
        ('def f():\n    """Do.\n', "\n    Twice.", 0),
    ],
)
def test_blank_lines_before_a_line_of_a_block_are_an_opening(prefix: str, text: str, expected: int):
    assert opening_blanks_len(text, place(prefix=prefix)) == expected
    assert opening_blanks_len(text, place("javascript", prefix)) == 0


def test_blank_lines_stay_where_the_cursor_s_line_goes_on():
    where = Place("    ", "foo()", (), grammar=grammar_of("python"))
    assert opening_blanks_len("\n    return x", where) == 0


def test_sentence_needs_names_beside_each_other():
    python, java = grammar_of("python"), grammar_of("java")
    assert python is not None
    assert java is not None
    assert is_sentence("return the list as is", python)
    assert not is_sentence("return x is not None and y in z", python)
    assert not is_sentence("public static Foo bar", java)


PIECES = st.sampled_from(
    [
        "a",
        " ",
        "\n",
        "x = 1\n",
        "```",
        '"""',
        "This is a list of words",
        "pass\n",
        "'",
        "# ",
        "ab" * 9,
    ]
)


@settings(max_examples=30)
@given(st.lists(PIECES, max_size=14).map("".join), st.sampled_from(["", "    ", "x = "]))
def test_stream_never_takes_back_an_end(text: str, before: str):
    """What is cut is cut for good: more text does not move the end behind what was there."""
    where = Place(before, "", (), False, "", grammar_of("python"))
    for size in range(len(text)):
        end = stream_end(text[:size], where)
        if end is not None:
            later = stream_end(text, where)
            assert later is not None
            assert later <= end


@settings(max_examples=30)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_cut_text_ends_with_a_line(text: str):
    for rule in STOP_RULES:
        kept = rule(text, place())
        assert text.startswith(kept)
        if kept != text:
            assert kept == kept.rstrip()
            assert not kept or text[len(kept)].isspace()


def real_continuations(path: Path) -> Iterator[tuple[str, Place]]:
    """Yield how the functions of a file go on behind their first line and their middle."""
    source = path.read_text()
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        for cursor in {node.lineno, (node.lineno + node.end_lineno) // 2}:
            above = "".join(line + "\n" for line in lines[:cursor])[-SCAN_CHARS:]
            grammar = grammar_of("python")
            text = "\n".join(lines[cursor : node.end_lineno])
            yield text, Place("", "", (), False, window_above(above, grammar), grammar)


@pytest.mark.parametrize(
    "module",
    ["csv", "difflib", "heapq", "json.decoder", "shutil", "socket", "textwrap", "timeit"],
)
def test_real_code_is_never_ended(module: str):
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    ended = [
        (rule.__name__, text)
        for text, where in real_continuations(Path(spec.origin))
        for rule in STOP_RULES
        if rule(text, where) != text
    ]
    assert ended == []


@pytest.mark.slow
def test_standard_library_is_hardly_ever_ended():
    """Each rule ends at most one of 10,000 continuations; no sentence or fence is seen in code."""
    library = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idle_test", "lib2to3"}
    ended: Counter[str] = Counter()
    total = 0
    for path in library.rglob("*.py"):
        if skipped & set(path.parts):
            continue
        for text, where in real_continuations(path):
            total += 1
            ended.update(rule.__name__ for rule in STOP_RULES if rule(text, where) != text)
    assert total > 20_000
    assert ended["end_at_fence"] == ended["end_at_talk"] == 0
    assert all(count <= total / 10_000 for count in ended.values()), ended
