"""What different editors say, to the real language server as a process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from specengine.protocol import CancelCause, EngineState
from tests.e2e.test_lsp_with_fake_engine import URI, Editor, play, text_of
from tests.fake_engine import FakeEngine, status

pytestmark = pytest.mark.e2e

MENU: dict[str, object] = {"completion": {"maxDebounceMs": 0, "menu": True}}


def events(editor: Editor) -> list[tuple[str, int, int]]:
    lines = [json.loads(line) for line in editor.trace_path.read_text().splitlines()]
    return [(line["event"], line["num"], line["chars"]) for line in lines if "event" in line]


async def shown_item(editor: Editor, engine: FakeEngine, text: str) -> types.InlineCompletionItem:
    """Return the item at the empty line of the document."""
    answer = editor.ask(1, 4)
    (await engine.next_request()).answer(text)
    result = await answer
    assert result is not None
    return result.items[0]


def raw(value: object) -> object:
    """Return a value of the protocol as it crosses the wire."""
    from pygls.protocol import default_converter

    return default_converter().unstructure(value)


def test_state_of_the_engine_is_told_with_five_fields(tmp_path: Path):
    told: list[dict[str, object]] = []

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        await engine.connected.wait()
        engine.send_status(status(EngineState.LOADING, "reading weights"))
        while (await editor.progress.get())["kind"] != "report":
            pass

    def listen(editor: Editor) -> None:
        @editor.client.feature("specengine/status")
        def _(params: Any) -> None:
            told.append(params._asdict())

    play(tmp_path, scene, prepare=listen)
    assert told[0]["state"] == "starting"
    assert told[-1] == {
        "state": "loading",
        "model": "fake",
        "drafter": "none",
        "progress": 0.5,
        "detail": "reading weights",
    }


def test_menu_is_offered_only_if_it_is_set(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        params = types.CompletionParams(types.TextDocumentIdentifier(URI), types.Position(1, 4))
        answer = asyncio.ensure_future(editor.client.text_document_completion_async(params))
        (await engine.next_request()).answer("return a + b\n")
        result = await answer
        assert isinstance(result, types.CompletionList)
        assert [item.label for item in result.items] == ["return a + b"]
        assert result.is_incomplete

    with_menu = play(tmp_path, scene, MENU)
    assert with_menu.capabilities is not None
    assert with_menu.capabilities.completion_provider is not None

    async def nothing(editor: Editor, engine: FakeEngine) -> None:
        await editor.all_received()

    without = play(tmp_path, nothing)
    assert without.capabilities is not None
    assert without.capabilities.completion_provider is None


def test_accepted_suggestion_is_told_by_edit_and_command(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        item = await shown_item(editor, engine, "return a + b")
        command = item.command
        assert command is not None
        assert editor.capabilities is not None
        provider = editor.capabilities.execute_command_provider
        assert provider is not None
        assert list(provider.commands) == [command.command]
        editor.type(1, 4, "return a + b")
        await editor.client.workspace_execute_command_async(
            types.ExecuteCommandParams(command.command, command.arguments)
        )

    editor = play(tmp_path, scene)
    assert events(editor) == [
        ("shown", 0, 12),
        ("accepted", 12, 12),
        ("kept", 12, 12),
    ]
    assert "return" not in editor.trace_path.read_text()


def test_command_with_other_arguments_does_nothing(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        item = await shown_item(editor, engine, "return a + b")
        assert item.command is not None
        for arguments in (None, [], ["x"], [10**30], [[1]], [None], [-1]):
            params = types.ExecuteCommandParams(item.command.command, arguments)
            await editor.client.workspace_execute_command_async(params)

    assert events(play(tmp_path, scene)) == [("shown", 0, 12)]


def test_what_clients_of_copilot_add_is_taken(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        answer = editor.ask_raw(
            {
                "textDocument": {"uri": URI, "version": 0},
                "position": {"line": 1, "character": 4},
                "context": {"triggerKind": 2},
                "formattingOptions": {"tabSize": 4, "insertSpaces": True},
            }
        )
        (await engine.next_request()).answer("return a + b")
        result = await answer
        assert text_of(result) == "return a + b"
        assert result is not None
        item = raw(result.items[0])
        protocol = editor.client.protocol
        protocol.notify("textDocument/didFocus", {"textDocument": {"uri": URI}})
        protocol.notify("textDocument/didShowCompletion", {"item": item})
        protocol.notify(
            "textDocument/didPartiallyAcceptCompletion", {"item": item, "acceptedLength": 6}
        )
        await editor.all_received()

    assert events(play(tmp_path, scene))[:2] == [("shown", 0, 12), ("partly_accepted", 6, 12)]


def test_odd_notifications_change_nothing(tmp_path: Path):
    methods = (
        "textDocument/didFocus",
        "textDocument/didShowCompletion",
        "textDocument/didPartiallyAcceptCompletion",
        "specengine/didCopy",
        "specengine/unknown",
    )
    odd: list[object] = [None, {}, {"item": None}, {"item": {"command": 3}}, [1], {"uri": 3}]

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        for method in methods:
            for params in odd:
                editor.client.protocol.notify(method, params)
        item = await shown_item(editor, engine, "return a + b")
        assert item.insert_text == "return a + b"
        assert editor.messages.qsize() == 0

    play(tmp_path, scene)


def test_editor_that_keeps_its_settings_is_asked_for_them(tmp_path: Path):
    """It sends no initializationOptions; the engine is started once, as the settings say."""
    told: list[object] = []

    def listen(editor: Editor) -> None:
        @editor.client.feature(types.WORKSPACE_CONFIGURATION)
        def _(params: types.ConfigurationParams) -> list[object]:
            told.append([item.section for item in params.items])
            return [editor.settings]

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        await engine.connected.wait()
        item = await shown_item(editor, engine, "return a + b")
        assert item.insert_text == "return a + b"

    editor = play(tmp_path, scene, prepare=listen, is_asked=True)
    assert told == [["specengine"]]
    assert editor.trace()


def test_cells_of_a_notebook_are_one_document(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        cells = [
            ("c:1", "python", "import os\n"),
            ("c:2", "markdown", "# T"),
            ("c:3", "python", "x = "),
        ]
        code, markup = types.NotebookCellKind.Code, types.NotebookCellKind.Markup
        notebook = types.NotebookDocument(
            "file:///project/n.ipynb",
            "jupyter-notebook",
            1,
            [types.NotebookCell(markup if ln == "markdown" else code, uri) for uri, ln, _ in cells],
        )
        items = [types.TextDocumentItem(uri, language, 1, text) for uri, language, text in cells]
        editor.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(notebook, items)
        )
        answer = editor.ask(0, 4, "c:3")
        request = await engine.next_request()
        assert request.message.prefix == "import os\n\n\nx = "
        request.answer("os.getcwd()")
        result = await answer
        assert text_of(result) == "os.getcwd()"
        assert result is not None
        at = types.Position(0, 4)
        assert result.items[0].range == types.Range(at, at)

        identifier = types.VersionedNotebookDocumentIdentifier(2, notebook.uri)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), "os")
        content = types.NotebookDocumentCellContentChanges(
            types.VersionedTextDocumentIdentifier(2, "c:3"), [change]
        )
        cell_changes = types.NotebookDocumentCellChanges(text_content=[content])
        editor.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                identifier, types.NotebookDocumentChangeEvent(cells=cell_changes)
            )
        )
        assert text_of(await editor.ask(0, 6, "c:3")) == ".getcwd()"

        array = types.NotebookCellArrayChange(0, 2)
        structure = types.NotebookDocumentCellChangeStructure(
            array, did_close=[types.TextDocumentIdentifier(uri) for uri in ("c:1", "c:2")]
        )
        editor.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                identifier,
                types.NotebookDocumentChangeEvent(
                    cells=types.NotebookDocumentCellChanges(structure=structure)
                ),
            )
        )
        answer = editor.ask(0, 6, "c:3")
        request = await engine.next_request()
        assert request.message.prefix == "x = os"
        request.answer(".sep")
        assert text_of(await answer) == ".sep"

        editor.client.notebook_document_did_close(
            types.DidCloseNotebookDocumentParams(
                types.NotebookDocumentIdentifier(notebook.uri),
                [types.TextDocumentIdentifier("c:3")],
            )
        )
        assert text_of(await editor.ask(0, 6, "c:3")) == ""

    play(tmp_path, scene)


def test_several_cursors_get_an_answer_for_the_one_that_asks(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        editor.version += 1
        changes = [
            types.TextDocumentContentChangePartial(types.Range(at, at), "x = ")
            for at in (types.Position(3, 0), types.Position(1, 4))
        ]
        document = types.VersionedTextDocumentIdentifier(editor.version, URI)
        editor.client.text_document_did_change(types.DidChangeTextDocumentParams(document, changes))
        answer = editor.ask(1, 8)
        request = await engine.next_request()
        assert request.message.prefix == "def add(a, b):\n    x = "
        assert request.message.suffix == "\n\nx = \nprint(add(1, 2))\n"
        request.answer("a + b")
        assert text_of(await answer) == "a + b"

    play(tmp_path, scene)


LARGE = [
    ("fifty thousand lines", "x = 1\n" * 50_000, 25_000, 5),
    ("a line of a megabyte", "x = '" + "a" * 2**20 + "'", 0, 2**20 + 6),
    ("a wide megabyte", "x = '" + "😀" * 2**18 + "'", 0, 4 * 2**18 + 6),
    ("beyond the last line", "x = 1\ny = ", 999_999, 999_999),
    ("beyond the line's end", "y =\n", 0, 999_999),
    ("the largest numbers", "y = ", 2**31 - 1, 2**31 - 1),
]


def test_large_files_and_wild_positions_are_answered(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        for name, text, line, character in LARGE:
            uri = f"file:///project/{name}.py"
            editor.open(text, uri)
            answer = editor.ask(line, character, uri)

            async def write() -> None:
                (await engine.next_request()).answer(" + 2")

            writing = asyncio.ensure_future(write())
            assert await answer is not None, name
            writing.cancel()
            await asyncio.wait([writing])
        assert (await shown_item(editor, engine, "pass")).insert_text == "pass"

    play(tmp_path, scene)


def test_document_that_changes_under_a_request_supersedes_it(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        first = editor.ask(1, 4)
        request = await engine.next_request()
        whole = types.TextDocumentContentChangeWholeDocument("y = ")
        document = types.VersionedTextDocumentIdentifier(5, URI)
        editor.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))
        assert await request.cancelled is CancelCause.SUPERSEDED
        assert await first is None
        answer = editor.ask(0, 4)
        (await engine.next_request()).answer("2")
        assert text_of(await answer) == "2"

    play(tmp_path, scene)
