"""Facts about the suggestion as an item of the completion menu."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lsprotocol import types

from lsp_server.features.menu import LABEL_CHARS, completion
from tests.lsp_server.stage import URI, Stage, play


async def menu(stage: Stage, line: int, character: int, text: str) -> list[types.CompletionItem]:
    params = types.CompletionParams(
        types.TextDocumentIdentifier(URI), types.Position(line, character)
    )
    answer = asyncio.ensure_future(completion(stage.state, params))
    (await stage.engine.next_request()).answer(text)
    return list((await answer).items)


def test_item_replaces_the_word_that_editors_filter_by(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("😀 = total_su\n")
        (item,) = await menu(stage, 0, 13, "m(values)")
        assert item.label == "total_sum(values)"
        assert item.filter_text == "total_sum(values)"
        assert item.insert_text_format is types.InsertTextFormat.PlainText
        where = types.Range(types.Position(0, 5), types.Position(0, 13))
        assert item.text_edit == types.TextEdit(where, "total_sum(values)")
        assert item.command is not None

    play(tmp_path, scene)


def test_long_item_is_cut_in_the_menu_and_whole_beside_it(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f(a):\n    \n")
        text = f"if a == '{'x' * 80}':\n        return a"
        (item,) = await menu(stage, 1, 4, text)
        assert len(item.label) == LABEL_CHARS + 1
        assert item.label.endswith("…")
        assert isinstance(item.text_edit, types.TextEdit)
        assert item.text_edit.new_text == item.documentation == text

    play(tmp_path, scene)


def test_item_is_put_in_as_it_stands(tmp_path: Path):
    """Helix reads an item of the kind snippet as one, whatever its format: it indents each line
    once more and takes `$x` for a place to fill in. Others indent lines unless they are told."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f(a):\n    \n")
        (item,) = await menu(stage, 1, 4, "if a:\n        return '$a'")
        assert item.kind is types.CompletionItemKind.Text
        assert item.insert_text_format is types.InsertTextFormat.PlainText
        assert item.insert_text_mode is types.InsertTextMode.AsIs

    play(tmp_path, scene)


def test_nothing_to_say_is_an_empty_list_that_is_asked_for_again(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        params = types.CompletionParams(
            types.TextDocumentIdentifier("file:///none.py"), types.Position(0, 0)
        )
        result = await completion(stage.state, params)
        assert result == types.CompletionList(is_incomplete=True, items=[])

    play(tmp_path, scene)
