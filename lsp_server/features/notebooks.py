"""Open, change and close of notebooks; one run follows the user through all cells of a language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lsprotocol import types

from lsp_server.features.document_sync import take_changes
from lsp_server.notebooks import Cell, Notebook
from lsp_server.state import State

OPTIONS: Final = types.NotebookDocumentSyncOptions(
    notebook_selector=[types.NotebookDocumentFilterWithNotebook(notebook="*")]
)
"""All notebooks, whatever program they belong to."""


def did_open(state: State, params: types.DidOpenNotebookDocumentParams) -> None:
    """Take a notebook in."""
    notebook = Notebook(params.notebook_document.uri)
    state.notebooks[notebook.uri] = notebook
    uris = [cell.document for cell in params.notebook_document.cells]
    _take_cells(state, notebook, params.cell_text_documents, uris)


def did_change(state: State, params: types.DidChangeNotebookDocumentParams) -> None:
    """Apply changes of the order of cells, then those inside cells."""
    notebook = state.notebooks.get(params.notebook_document.uri)
    cells = params.change.cells
    if notebook is None or cells is None:
        return
    if cells.structure is not None:
        array = cells.structure.array
        uris = [cell.uri for cell in notebook.cells]
        new = [cell.document for cell in array.cells or ()]
        uris[array.start : array.start + array.delete_count] = new
        _take_cells(state, notebook, cells.structure.did_open or (), uris)
    for change in cells.text_content or ():
        opened = state.documents.get(change.document.uri)
        if opened is not None:
            take_changes(state, opened, change.document.version, change.changes)


def did_close(state: State, params: types.DidCloseNotebookDocumentParams) -> None:
    """Forget a notebook and its cells."""
    notebook = state.notebooks.pop(params.notebook_document.uri, None)
    for cell in notebook.cells if notebook is not None else ():
        state.close(cell.uri)


def _take_cells(
    state: State, notebook: Notebook, opened: Iterable[types.TextDocumentItem], uris: list[str]
) -> None:
    """Let the notebook have these cells in this order; all runs in it end, as offsets change."""
    known = {cell.uri: cell for cell in notebook.cells}
    for uri in known.keys() - set(uris):
        state.close(uri)
    for item in opened:
        cell = Cell.open(item, state.encoding)
        cell.notebook = notebook
        known[item.uri] = cell
    notebook.cells = [known[uri] for uri in uris if uri in known]
    state.open_cells(notebook)
