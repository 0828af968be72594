"""Notebooks: the cells of one language are one document, and each cell is a part of it.

A cell has its own lines and version; offsets and snapshots of it are those of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from lsprotocol import types

from lsp_server.documents import Document, Edit, Snapshot

SEPARATOR: Final = "\n\n"
"""Stands between two cells."""


@dataclass
class Notebook:
    """The cells of a notebook in their order."""

    uri: str
    cells: list[Cell] = field(default_factory=list["Cell"])

    def part(self, language: str) -> list[Cell]:
        """Return the cells of a language."""
        return [cell for cell in self.cells if cell.language == language]

    def text(self, language: str) -> str:
        """Return the text of all cells of a language."""
        return SEPARATOR.join(cell.text for cell in self.part(language))

    def start(self, cell: Cell) -> int:
        """Return where a cell begins in the text of its language."""
        start = 0
        for one in self.part(cell.language):
            if one is cell:
                break
            start += len(one.text) + len(SEPARATOR)
        return start


@dataclass
class Cell(Document):
    """One cell, which speaks of itself as a part of its notebook."""

    notebook: Notebook = field(default_factory=lambda: Notebook(""), repr=False)

    @property
    def unit(self) -> str:
        """The URI of the notebook."""
        return self.notebook.uri

    @property
    def whole_text(self) -> str:
        """The text of all cells of this one's language."""
        return self.notebook.text(self.language)

    def apply(
        self, version: int, changes: Iterable[types.TextDocumentContentChangeEvent]
    ) -> list[Edit]:
        """Take over the changes; return them in code points of the notebook."""
        start = self.notebook.start(self)
        edits = super().apply(version, changes)
        return [replace(edit, start=edit.start + start, end=edit.end + start) for edit in edits]

    def offset(self, position: types.Position) -> int:
        """Return the code points of the notebook before a position of the cell."""
        return self.notebook.start(self) + self.local_offset(position)

    def position(self, offset: int) -> types.Position:
        """Return the cell's position of an offset in the notebook."""
        return super().position(max(0, offset - self.notebook.start(self)))

    def snapshot(self, position: types.Position) -> Snapshot:
        """Return the notebook's text with a cursor in this cell."""
        own, start = super().snapshot(position), self.notebook.start(self)
        return replace(
            own,
            uri=f"{self.notebook.uri}#{self.language}",
            text=self.notebook.text(self.language),
            cursor=own.cursor + start,
            line_start=own.line_start + start,
            line_end=own.line_end + start,
        )
