"""Open, change and close of documents; a change may end what the engine is doing for one."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from lsp_server.documents import Document
from lsp_server.state import OpenDocument, State


def did_open(state: State, params: types.DidOpenTextDocumentParams) -> None:
    """Take a document in."""
    state.open(Document.open(params.text_document, state.encoding))


def did_change(state: State, params: types.DidChangeTextDocumentParams) -> None:
    """Apply the changes, then let the typing session decide about its run."""
    opened = state.documents.get(params.text_document.uri)
    if opened is not None:
        take_changes(state, opened, params.text_document.version, params.content_changes)


def take_changes(
    state: State,
    opened: OpenDocument,
    version: int,
    changes: Sequence[types.TextDocumentContentChangeEvent],
) -> None:
    """Apply changes, and tell all who follow the document."""
    edits = opened.document.apply(version, changes)
    opened.last_used = state.next_tick()
    opened.edits.note(edits, opened.last_used)
    opened.acceptance.take_edits(edits)
    opened.pace.observe(state.now_ms())
    opened.session.take_edits(edits)


def did_close(state: State, params: types.DidCloseTextDocumentParams) -> None:
    """Forget a document."""
    state.close(params.text_document.uri)
