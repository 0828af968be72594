from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specengine.ask import Place, Wishes, complete_at
from specengine.client import EngineClient, UnixAddress
from specengine.errors import RequestInvalid
from specengine.launch import EngineCommand, Launcher
from tests.fake_engine import FakeEngine


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "code.py"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.py:1:2", Place(Path("a.py"), 1, 2)),
        ("/src/a b.py:10:200", Place(Path("/src/a b.py"), 10, 200)),
        ("C:/src/a.py:3:4", Place(Path("C:/src/a.py"), 3, 4)),
        ("a:5:6:7", Place(Path("a:5"), 6, 7)),
    ],
)
def test_place_is_path_line_and_column(text: str, place: Place) -> None:
    assert Place.parse(text) == place


@pytest.mark.parametrize(
    "text",
    [
        *("", "a.py", "a.py:1", ":1:2", "a.py:1:", "a.py::1", "a.py:0:1", "a.py:1:0"),
        *("a.py:-1:1", "a.py:1:2 ", "a.py:1:²", "a.py:x:1", "a.py:1:+1", "a.py:1:" + "9" * 5000),
    ],
)
def test_other_text_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(RequestInvalid, match="is not PATH:LINE:COLUMN"):
        Place.parse(text)


@pytest.mark.parametrize(
    ("line", "column", "before", "after"),
    [
        (1, 1, "", "ab\ncd\n"),
        (1, 3, "ab", "\ncd\n"),
        (2, 1, "ab\n", "cd\n"),
        (2, 2, "ab\nc", "d\n"),
        (3, 1, "ab\ncd\n", ""),
    ],
)
def test_text_is_cut_at_the_place(
    file: Path, line: int, column: int, before: str, after: str
) -> None:
    file.write_bytes(b"ab\ncd\n")
    assert Place(file, line, column).split() == (before, after)


def test_empty_file_has_one_place(file: Path) -> None:
    file.write_bytes(b"")
    assert Place(file, 1, 1).split() == ("", "")
    with pytest.raises(RequestInvalid, match="has 1 lines, not 2"):
        Place(file, 2, 1).split()


def test_line_ends_are_those_of_the_file(file: Path) -> None:
    """An editor sends the text with the line ends that it has."""
    file.write_bytes(b"a\r\nb\rc\n")
    assert Place(file, 1, 2).split() == ("a", "\r\nb\rc\n")
    assert Place(file, 2, 2).split() == ("a\r\nb", "\rc\n")
    assert Place(file, 3, 1).split() == ("a\r\nb\r", "c\n")
    assert Place(file, 4, 1).split() == ("a\r\nb\rc\n", "")


@pytest.mark.parametrize("character", "\u2028\u2029\x0b\x0c\x1c\x85")
def test_only_line_ends_end_lines(file: Path, character: str) -> None:
    """LSP and editors end lines at CR and LF; Python's splitlines does at more."""
    text = f"a{character}b\ncd"
    file.write_bytes(text.encode())
    assert Place(file, 1, 4).split() == (f"a{character}b", "\ncd")
    assert Place(file, 2, 2).split() == (f"a{character}b\nc", "d")


def test_columns_count_characters(file: Path) -> None:
    file.write_bytes("é😀x".encode())
    assert Place(file, 1, 3).split() == ("é😀", "x")


def test_mark_at_the_beginning_is_no_text(file: Path) -> None:
    """Editors hide the byte order mark and send the text without it."""
    file.write_bytes(b"\xef\xbb\xbfab")
    assert Place(file, 1, 2).split() == ("a", "b")


def test_place_outside_the_file_is_refused_with_what_there_is(file: Path) -> None:
    file.write_bytes(b"ab\ncd\n")
    with pytest.raises(RequestInvalid, match=re.escape(f"{file} has 3 lines, not 4.")):
        Place(file, 4, 1).split()
    with pytest.raises(RequestInvalid, match="line 1 has 2 characters"):
        Place(file, 1, 4).split()


@given(st.text("ab\r\n\u2028é", max_size=8), st.data())
def test_every_place_cuts_the_text_in_two(
    tmp_path_factory: pytest.TempPathFactory, text: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "every_place.py"
    path.write_bytes(text.encode())
    lines = re.split("\r\n|\r|\n", text)
    line = data.draw(st.integers(1, len(lines)))
    column = data.draw(st.integers(1, len(lines[line - 1]) + 1))
    before, after = Place(path, line, column).split()
    assert before + after == text
    assert re.split("\r\n|\r|\n", before)[-1] == lines[line - 1][: column - 1]


def test_missing_file_is_refused(file: Path) -> None:
    with pytest.raises(RequestInvalid, match=re.escape(f"cannot read {file}: ")):
        Place(file, 1, 1).split()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a\xe9"])
def test_file_that_is_no_text_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(RequestInvalid, match="utf-8"):
        Place(file, 1, 1).split()


def test_name_that_is_no_text_can_be_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name of any bytes is a file on Linux, and Python gives such bytes as half surrogates."""
    path = tmp_path / os.fsdecode(b"caf\xe9.py")
    path.write_text("ab")

    async def scene() -> str:
        engine = FakeEngine(tmp_path / "s")
        await engine.listen()

        async def open_client(_: Launcher) -> EngineClient:
            return await EngineClient.connect(UnixAddress(str(tmp_path / "s")), program="test")

        monkeypatch.setattr(Launcher, "open", open_client)
        asked = asyncio.create_task(
            complete_at(Place(path, 1, 2), EngineCommand("m"), Wishes(), lambda _: None)
        )
        request = await engine.next_request()
        request.finish()
        await asked
        await engine.kill()
        return request.message.document

    assert asyncio.run(scene()) == str(tmp_path / "caf\ufffd.py")
