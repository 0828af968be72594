"""Facts about cells as parts of a notebook."""

from __future__ import annotations

from lsprotocol import types

from lsp_server.documents import Edit
from lsp_server.notebooks import Cell, Notebook


def notebook(*cells: tuple[str, str]) -> Notebook:
    whole = Notebook("file:///n.ipynb")
    for number, (language, text) in enumerate(cells):
        item = types.TextDocumentItem(f"cell:{number}", language, 1, text)
        cell = Cell.open(item, "utf-16")
        cell.notebook = whole
        whole.cells.append(cell)
    return whole


WHOLE = notebook(("python", "a = 1"), ("markdown", "# Title"), ("python", "b = a\n😀 = "))


def test_snapshot_of_a_cell_holds_the_cells_of_its_language():
    snapshot = WHOLE.cells[2].snapshot(types.Position(1, 5))
    assert snapshot.text == "a = 1\n\nb = a\n😀 = "
    assert (snapshot.before, snapshot.rest) == ("😀 = ", "")
    assert snapshot.uri == "file:///n.ipynb#python"


def test_offsets_are_those_of_the_notebook():
    cell = WHOLE.cells[2]
    for position in (types.Position(0, 0), types.Position(1, 2), types.Position(1, 5)):
        assert cell.position(cell.offset(position)) == position
    assert cell.offset(types.Position(0, 0)) == 7
    assert cell.position(0) == types.Position(0, 0)


def test_edits_of_a_cell_are_edits_of_the_notebook():
    whole = notebook(("python", "a = 1"), ("python", "b = "))
    at = types.Position(0, 4)
    change = types.TextDocumentContentChangePartial(types.Range(at, at), "a")
    assert whole.cells[1].apply(2, [change]) == [Edit(11, 11, "a")]
    assert whole.text("python") == "a = 1\n\nb = a"
    assert whole.cells[1].version == 2


def test_line_borders_are_those_of_the_cell():
    snapshot = WHOLE.cells[0].snapshot(types.Position(0, 2))
    assert (snapshot.before, snapshot.rest) == ("a ", "= 1")
