"""Facts about open documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types

from lsp_server.documents import MAX_DOCUMENT_CHARS, Document, Edit, path_of
from lsp_server.positions import Encoding, replace_surrogates

TEXTS = st.text(st.sampled_from("ab\n\r é😀"), max_size=12)


def document(text: str, encoding: Encoding = "utf-16") -> Document:
    item = types.TextDocumentItem("file:///d/a%20b.py", "python", 1, text)
    return Document.open(item, encoding)


def change(
    start: types.Position, end: types.Position, text: str
) -> types.TextDocumentContentChangePartial:
    return types.TextDocumentContentChangePartial(types.Range(start, end), text)


def line_starts(text: str) -> list[int]:
    starts, index = [0], 0
    while index < len(text):
        step = 2 if text[index : index + 2] == "\r\n" else 1
        if text[index] in "\r\n":
            starts.append(index + step)
        index += step
    return starts


@given(TEXTS, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), TEXTS), max_size=6))
def test_edits_change_the_text_and_its_lines(text: str, edits: list[tuple[int, int, str]]):
    """Edits are given as positions of the document's own, and join and split line ends."""
    opened = document(text)
    for first, second, new in edits:
        start, end = sorted((min(first, len(text)), min(second, len(text))))
        edit_range = opened.position(start), opened.position(end)
        start, end = (opened.offset(position) for position in edit_range)
        (edit,) = opened.apply(2, [change(*edit_range, new)])
        assert edit == Edit(start, end, new)
        text = text[:start] + new + text[end:]
        assert opened.text == text
        assert opened._starts == line_starts(text)


@given(TEXTS, st.integers(0, 12))
def test_offset_survives_the_way_to_a_position_and_back(text: str, offset: int):
    opened = document(text)
    offset = min(offset, len(text))
    is_inside_line_end = text[offset - 1 : offset + 1] == "\r\n"
    assert opened.offset(opened.position(offset)) == offset - is_inside_line_end


def test_position_outside_the_text_is_moved_into_it():
    opened = document("ab\r\ncd")
    assert opened.offset(types.Position(0, 9)) == 2
    assert opened.offset(types.Position(7, 0)) == 6


def test_change_without_a_range_replaces_all():
    opened = document("ab\ncd")
    edits = opened.apply(3, [types.TextDocumentContentChangeWholeDocument("x")])
    assert edits == [Edit(0, 5, "x")]
    assert (opened.text, opened.version) == ("x", 3)


def test_long_document_is_dropped_until_it_is_sent_whole():
    start = types.Position(0, 0)
    opened = document("a" * MAX_DOCUMENT_CHARS)
    assert not opened.is_oversized
    opened.apply(2, [change(start, start, "bc")])
    assert opened.is_oversized
    assert opened.text == ""
    assert opened.apply(3, [change(start, start, "bc")]) == []
    opened.apply(4, [types.TextDocumentContentChangeWholeDocument("x = 1")])
    assert not opened.is_oversized


def test_lone_surrogate_of_an_editor_cannot_break_the_encoding():
    assert (
        document("a\ud83d b").text
        == replace_surrogates("a\ud83d b")
        == "a\N{REPLACEMENT CHARACTER} b"
    )


def test_snapshot_knows_the_line_of_the_cursor():
    opened = document("one\r\ntwo 😀x\r\nthree")
    snapshot = opened.snapshot(types.Position(1, 6))
    assert (snapshot.before, snapshot.rest, snapshot.eol) == ("two 😀", "x", "\r\n")
    opened.apply(2, [types.TextDocumentContentChangeWholeDocument("changed")])
    assert snapshot.text.startswith("one")


@pytest.mark.parametrize(
    ("text", "eol"),
    [("a\n", "\n"), ("a\r\n", "\r\n"), ("a", "\n"), ("\r\na", "\r\n"), ("a\rb", "\n")],
)
def test_line_end_is_that_of_the_cursor(text: str, eol: str):
    line = 1 if text.startswith("\r") else 0
    assert eol == document(text).snapshot(types.Position(line, 1)).eol


def test_name_is_the_last_part_of_the_uri():
    assert document("").name == "a b.py"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///a%20b/c.py", "/a b/c.py"),
        ("untitled:/x/.env", "/x/.env"),
        ("vscode-notebook-cell:/n.ipynb#W0", "/n.ipynb"),
        ("untitled:Untitled-1", None),
        ("c:3", None),
        ("file:///a%00b", None),
        ("http://[x", None),
        ("", None),
    ],
)
def test_path_is_what_the_uri_names(uri: str, path: str | None):
    assert path_of(uri) == (None if path is None else Path(path))


def test_line_starts_are_the_same_with_and_without_carriage_returns():
    text = "a\n\nb\n"
    plain, mixed = document(text), document(text + "c\rd\r\n")
    for line in range(3):
        at = types.Position(line, 0)
        assert plain.offset(at) == mixed.offset(at)
    assert mixed.offset(types.Position(4, 0)) == len(text) + 2
    assert mixed.offset(types.Position(5, 0)) == len(text) + 5


def test_fifty_thousand_long_lines_are_kept():
    assert not document(("x" * 79 + "\n") * 50_000).is_oversized
