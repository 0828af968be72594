"""What the editor says of suggestions: shown, accepted, partly accepted.

Most editors say nothing, or only run an item's command; edits tell the rest, see
``lsp_server/acceptance.py``. The notifications are those that clients of GitHub's Copilot send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from lsprotocol import types

from lsp_server.documents import Document
from lsp_server.positions import chars_from_units
from lsp_server.state import State

ACCEPT_COMMAND: Final = "specengine.didAcceptCompletionItem"
DID_SHOW: Final = "textDocument/didShowCompletion"
DID_ACCEPT_PARTLY: Final = "textDocument/didPartiallyAcceptCompletion"
DID_FOCUS: Final = "textDocument/didFocus"


def note_shown(
    state: State,
    request: int,
    params: types.InlineCompletionParams,
    answer: types.InlineCompletionList,
) -> None:
    """Remember what an answer shows, and let its items say when they are accepted."""
    opened = state.documents.get(params.text_document.uri)
    if opened is None or not answer.items:
        return
    cursor = opened.document.offset(params.position)
    opened.acceptance.show(
        request, [_behind(opened.document, item, cursor) for item in answer.items], cursor
    )
    for item in answer.items:
        item.command = types.Command("Accepted", ACCEPT_COMMAND, arguments=[request])


def did_accept(state: State, arguments: tuple[object, ...]) -> None:
    """The command of an item has been run."""
    request = arguments[0] if arguments else None
    if isinstance(request, int):
        for opened in state.documents.values():
            opened.acceptance.accept(request)


def did_accept_partly(state: State, params: object) -> None:
    """The beginning of an item has been accepted; its length counts as the editor's columns do."""
    request = _request_of(params)
    text = getattr(getattr(params, "item", None), "insertText", None)
    length = getattr(params, "acceptedLength", None)
    if request is None or not isinstance(text, str) or not isinstance(length, int):
        return
    num_left = len(text) - chars_from_units(text, length, state.encoding)
    for opened in state.documents.values():
        opened.acceptance.accept_partly(request, text, num_left)


def did_focus(state: State, params: object) -> None:
    """The user looks at a document."""
    uri = getattr(getattr(params, "textDocument", None), "uri", None)
    opened = state.documents.get(uri) if isinstance(uri, str) else None
    if opened is not None:
        opened.last_used = state.next_tick()


def _behind(document: Document, item: types.InlineCompletionItem, cursor: int) -> str:
    """Return what of an item stands behind the cursor."""
    text = str(item.insert_text)
    return text if item.range is None else text[cursor - document.offset(item.range.start) :]


def _request_of(params: object) -> int | None:
    command = getattr(getattr(params, "item", None), "command", None)
    given: object = getattr(command, "arguments", None)
    arguments = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
    first = arguments[0] if arguments else None
    return first if isinstance(first, int) else None
