"""Facts about columns in an editor's units, code points and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsp_server.positions import (
    Encoding,
    bytes_from_chars,
    chars_from_bytes,
    chars_from_units,
    replace_surrogates,
    units_from_chars,
)

ENCODINGS = st.sampled_from(["utf-8", "utf-16", "utf-32"])
LINES = st.text(
    st.sampled_from("ab é漢😀\N{COMBINING ACUTE ACCENT}") | st.characters(codec="utf-8")
)


@given(LINES, ENCODINGS, st.data())
def test_code_points_survive_the_way_to_the_editor_and_back(
    line: str, encoding: Encoding, data: st.DataObject
):
    chars = data.draw(st.integers(0, len(line)))
    units = units_from_chars(line, chars, encoding)
    assert chars == chars_from_units(line, units, encoding)


@given(LINES, st.integers(-3, 200), ENCODINGS)
def test_any_column_of_an_editor_lies_in_the_line(line: str, units: int, encoding: Encoding):
    assert 0 <= chars_from_units(line, units, encoding) <= len(line)


@given(LINES, st.data())
def test_units_are_what_the_codec_says(line: str, data: st.DataObject):
    chars = data.draw(st.integers(0, len(line)))
    assert units_from_chars(line, chars, "utf-8") == len(line[:chars].encode())
    assert units_from_chars(line, chars, "utf-16") == len(line[:chars].encode("utf-16-le")) // 2
    assert units_from_chars(line, chars, "utf-32") == chars


@given(LINES, st.data())
def test_bytes_and_code_points_are_inverse(line: str, data: st.DataObject):
    chars = data.draw(st.integers(0, len(line)))
    assert chars == chars_from_bytes(line.encode(), bytes_from_chars(line, chars))


@pytest.mark.parametrize(
    ("encoding", "units", "chars"),
    [("utf-16", 1, 0), ("utf-16", 2, 1), ("utf-8", 3, 0), ("utf-8", 4, 1), ("utf-32", 1, 1)],
)
def test_column_inside_a_code_point_means_its_start(encoding: Encoding, units: int, chars: int):
    assert chars == chars_from_units("😀x", units, encoding)


def test_columns_outside_the_line_are_moved_into_it():
    assert units_from_chars("aé", 9, "utf-16") == 2
    assert units_from_chars("aé", -1, "utf-16") == 0
    assert chars_from_units("aé", 9, "utf-16") == 2
    assert bytes_from_chars("aé", -1) == 0


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_lone_surrogates_are_replaced_at_the_same_width(text: str):
    replaced = replace_surrogates(text)
    assert len(replaced.encode()) == len(text.encode(errors="surrogatepass"))
