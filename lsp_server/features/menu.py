"""``textDocument/completion``: the suggestion as an item of the menu, where there is no ghost text.

It is answered as ``textDocument/inlineCompletion`` is; only the form of the answer differs.
"""

from __future__ import annotations

from typing import Final

from lsprotocol import types

from lsp_server.documents import Document
from lsp_server.features.inline_completion import inline_completion
from lsp_server.state import State

TRIGGERS: Final = (".", "(", ",", "=", "[", "{", ":", " ")
LABEL_CHARS: Final = 60
"""A longer first line is cut in the menu."""


def options() -> types.CompletionOptions:
    """Return what the server says of itself."""
    return types.CompletionOptions(trigger_characters=list(TRIGGERS))


async def completion(state: State, params: types.CompletionParams) -> types.CompletionList:
    """Return a list with one item or none; it is asked for again after each key."""
    # Editors call it invoked when the user types a word, so that this says nothing.
    kind = types.InlineCompletionTriggerKind.Automatic
    asked = types.InlineCompletionParams(
        types.InlineCompletionContext(kind), params.text_document, params.position
    )
    answer = await inline_completion(state, asked)
    opened = state.documents.get(params.text_document.uri)
    if answer is None or opened is None:
        return types.CompletionList(is_incomplete=True, items=[])
    items = [_menu_item(opened.document, params.position, item) for item in answer.items]
    return types.CompletionList(is_incomplete=True, items=items)


def _menu_item(
    document: Document, position: types.Position, item: types.InlineCompletionItem
) -> types.CompletionItem:
    """Return an item that replaces the word before the cursor, by which editors filter items."""
    snapshot = document.snapshot(position)
    given = item.range or types.Range(position, position)
    word_start = snapshot.cursor - _word_len(snapshot.before)
    start = min(word_start, document.offset(given.start))
    text = snapshot.text[start : document.offset(given.start)] + str(item.insert_text)
    first_line = text.strip("\r\n").splitlines()[0].strip() if text.strip() else text
    is_cut = len(first_line) > LABEL_CHARS or "\n" in text.strip()
    return types.CompletionItem(
        label=first_line[:LABEL_CHARS] + ("…" if is_cut else ""),
        kind=types.CompletionItemKind.Text,  # Helix reads a snippet as one, whatever its format
        detail="SpecEngine",
        documentation=text if is_cut else None,
        filter_text=first_line,
        sort_text=" ",
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(types.Range(document.position(start), given.end), text),
        command=item.command,
    )


def _word_len(before: str) -> int:
    num = 0
    while num < len(before) and (before[-1 - num].isalnum() or before[-1 - num] == "_"):
        num += 1
    return num
