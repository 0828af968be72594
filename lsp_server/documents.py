"""Open documents: text with a version, its lines, and the edits that an editor sends.

It knows no syntax and no engine. Lines end with LF, CRLF or CR, as the protocol says.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from lsprotocol import types
from pygls.uris import to_fs_path

from lsp_server.positions import (
    Encoding,
    chars_from_units,
    replace_surrogates,
    units_from_chars,
)

MAX_DOCUMENT_CHARS: Final = 4 * 2**20
"""A longer document is not kept; it is served again when it is opened or sent whole anew."""

READ_ONLY_SCHEMES: Final = frozenset(("git", "output", "debug", "vscode-scm", "review", "gitlens"))
"""Documents that an editor shows and nobody writes."""

_LINE_END: Final = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class Edit:
    """One replacement, in code points of the text before it."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Snapshot:
    """A document at one moment, and a cursor in it."""

    uri: str
    language: str
    version: int
    text: str
    cursor: int
    """In code points."""
    line_start: int
    """Where the cursor's line begins."""
    line_end: int
    """Where it ends, without its line end."""

    @property
    def before(self) -> str:
        """The cursor's line up to the cursor."""
        return self.text[self.line_start : self.cursor]

    @property
    def rest(self) -> str:
        """The cursor's line from the cursor on."""
        return self.text[self.cursor : self.line_end]

    @property
    def eol(self) -> str:
        """The line end that the document uses where the cursor is."""
        at_end = self.text[self.line_end : self.line_end + 2]
        before = self.text[max(0, self.line_start - 2) : self.line_start]
        return "\r\n" if (at_end or before) == "\r\n" else "\n"


@dataclass
class Document:
    """One open document."""

    uri: str
    language: str
    version: int
    encoding: Encoding
    text: str = ""
    is_oversized: bool = False
    """Its text was dropped; see ``MAX_DOCUMENT_CHARS``."""
    _starts: list[int] = field(default_factory=lambda: [0], repr=False)

    @classmethod
    def open(cls, item: types.TextDocumentItem, encoding: Encoding) -> Self:
        """Return the document that an editor has opened."""
        document = cls(item.uri, item.language_id, item.version, encoding)
        document._replace_all(item.text)
        return document

    @property
    def name(self) -> str:
        """The file's name without its folders."""
        return PurePosixPath(unquote(urlsplit(self.uri).path)).name

    @property
    def path(self) -> Path | None:
        """The file's path; None for a document that has none, such as one that is not saved."""
        return path_of(self.uri)

    @property
    def unit(self) -> str:
        """The URI of the whole that this is a part of."""
        return self.uri

    @property
    def whole_text(self) -> str:
        """The text of that whole, which offsets count in."""
        return self.text

    @property
    def is_read_only(self) -> bool:
        """Whether an editor only shows it."""
        return self.uri.partition(":")[0] in READ_ONLY_SCHEMES

    def apply(
        self, version: int, changes: Iterable[types.TextDocumentContentChangeEvent]
    ) -> list[Edit]:
        """Take over the changes of one notification; return them in code points, in order."""
        self.version = version
        return [edit for change in changes if (edit := self._apply_one(change)) is not None]

    def offset(self, position: types.Position) -> int:
        """Return the code points before a position; one outside the text is moved into it."""
        return self.local_offset(position)

    def local_offset(self, position: types.Position) -> int:
        """Return the same; a part of a whole still counts from its own beginning."""
        if position.line >= len(self._starts):
            return len(self.text)
        line = max(0, position.line)
        start, end = self._starts[line], self._line_end(line)
        return start + chars_from_units(self.text[start:end], position.character, self.encoding)

    def position(self, offset: int) -> types.Position:
        """Return the editor's position of an offset in code points."""
        line = bisect_right(self._starts, offset) - 1
        start = self._starts[line]
        text = self.text[start : self._line_end(line)]
        return types.Position(line, units_from_chars(text, offset - start, self.encoding))

    def snapshot(self, position: types.Position) -> Snapshot:
        """Return the text as it is now, with a cursor."""
        cursor = self.local_offset(position)
        line = bisect_right(self._starts, cursor) - 1
        start, end = self._starts[line], self._line_end(line)
        return Snapshot(self.uri, self.language, self.version, self.text, cursor, start, end)

    def _apply_one(self, change: types.TextDocumentContentChangeEvent) -> Edit | None:
        if not isinstance(change, types.TextDocumentContentChangePartial):
            old_len = len(self.text)
            self._replace_all(change.text)
            return Edit(0, old_len, self.text)
        if self.is_oversized:
            return None
        start = self.local_offset(change.range.start)
        end = max(start, self.local_offset(change.range.end))
        edit = Edit(start, end, replace_surrogates(change.text))
        self._replace(edit)
        return edit

    def _replace_all(self, text: str) -> None:
        self.is_oversized = len(text) > MAX_DOCUMENT_CHARS
        self.text = "" if self.is_oversized else replace_surrogates(text)
        self._starts = [0, *_starts_in(self.text, 0, len(self.text))]

    def _replace(self, edit: Edit) -> None:
        if len(self.text) + len(edit.text) - (edit.end - edit.start) > MAX_DOCUMENT_CHARS:
            self.is_oversized = True
            self.text, self._starts = "", [0]
            return
        # One line more on both sides: an edit can join or split a CRLF at its borders.
        first = max(0, bisect_right(self._starts, edit.start) - 2)
        last = min(len(self._starts), bisect_right(self._starts, edit.end) + 1)
        shift = len(edit.text) - (edit.end - edit.start)
        self.text = self.text[: edit.start] + edit.text + self.text[edit.end :]
        scan_start = self._starts[first]
        tail = self._starts[last:]
        scan_end = tail[0] + shift if tail else len(self.text)
        middle = _starts_in(self.text, scan_start, scan_end)
        rest = [start + shift for start in tail[1:]]
        self._starts = [*self._starts[: first + 1], *middle, *rest]

    def _line_end(self, line: int) -> int:
        if line + 1 >= len(self._starts):
            return len(self.text)
        end = self._starts[line + 1] - 1
        is_crlf = self.text[end] == "\n" and end > 0 and self.text[end - 1] == "\r"
        return end - 1 if is_crlf else end


def path_of(uri: str) -> Path | None:
    """Return the path in a URI; None if there is none. A null character is no part of one."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # brackets that hold no address
        return None
    if not parts.path.startswith("/"):
        return None
    host = parts.netloc if parts.scheme == "file" else ""
    text = to_fs_path(urlunsplit(("file", host, parts.path, "", ""))) or ""
    return Path(text) if text and "\0" not in text else None


def _starts_in(text: str, start: int, end: int) -> list[int]:
    if text.find("\r", start, end) >= 0:
        return [match.end() for match in _LINE_END.finditer(text, start, end)]
    # The pattern takes a hundred times as long, which a line of a megabyte makes felt.
    starts: list[int] = []
    at = text.find("\n", start, end)
    while at >= 0:
        starts.append(at + 1)
        at = text.find("\n", at + 1, end)
    return starts
