"""The real language server as a process, between pygls' client and an engine that does as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from specengine.protocol import CancelCause, EngineState, StopReason
from tests.fake_engine import FakeEngine, status

pytestmark = pytest.mark.e2e

URI = "file:///project/main.py"
TEXT = "def add(a, b):\n    \n\n\nprint(add(1, 2))\n"


class Editor:
    """A client with one document open; it says what real editors say."""

    def __init__(self, client: LanguageClient, engine: FakeEngine, folder: Path) -> None:
        self.client = client
        self.engine = engine
        self.trace_path = folder / "trace.jsonl"
        self.settings: dict[str, object] = {}
        self.version = 0
        self.messages: asyncio.Queue[str] = asyncio.Queue()
        self.logs: asyncio.Queue[str] = asyncio.Queue()
        self.progress: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.capabilities: types.ServerCapabilities | None = None

        @client.feature(types.WINDOW_SHOW_MESSAGE)
        def _(params: types.ShowMessageParams) -> None:
            self.messages.put_nowait(params.message)

        @client.feature(types.WINDOW_LOG_MESSAGE)
        def _(params: types.LogMessageParams) -> None:
            self.logs.put_nowait(params.message)

        @client.feature(types.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def _(params: types.WorkDoneProgressCreateParams) -> None:
            return None

        @client.feature(types.PROGRESS)
        def _(params: types.ProgressParams) -> None:
            self.progress.put_nowait(cast("dict[str, object]", params.value))

    async def start(self, options: dict[str, object] | None, *, is_asked: bool) -> None:
        environment = {**os.environ, "PYTHONWARNINGS": "error"}
        await self.client.start_io(
            sys.executable, "-m", "lsp_server.cli", env=environment, limit=2**24
        )
        self.settings = {
            "engine": {"socket": str(self.engine.path)},
            "completion": {"maxDebounceMs": 0, "lookAhead": False},
            "trace": {"path": str(self.trace_path)},
            **(options or {}),
        }
        capabilities = types.ClientCapabilities(
            workspace=types.WorkspaceClientCapabilities(configuration=is_asked),
            window=types.WindowClientCapabilities(work_done_progress=True),
            general=types.GeneralClientCapabilities(
                position_encodings=[types.PositionEncodingKind.Utf8]
            ),
            text_document=types.TextDocumentClientCapabilities(
                inline_completion=types.InlineCompletionClientCapabilities()
            ),
        )
        result = await self.client.initialize_async(
            types.InitializeParams(
                capabilities, initialization_options=None if is_asked else self.settings
            )
        )
        self.capabilities = result.capabilities
        self.client.initialized(types.InitializedParams())
        self.open(TEXT)

    def open(self, text: str, uri: str = URI, language: str = "python") -> None:
        item = types.TextDocumentItem(uri, language, self.version, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))

    def type(self, line: int, character: int, text: str) -> None:
        """Insert text, as one change."""
        self.version += 1
        at = types.Position(line, character)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), text)
        document = types.VersionedTextDocumentIdentifier(self.version, URI)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [change]))

    def ask(
        self, line: int, character: int, uri: str = URI
    ) -> asyncio.Future[types.InlineCompletionList | None]:
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
            types.TextDocumentIdentifier(uri),
            types.Position(line, character),
        )
        answer = asyncio.ensure_future(self.client.text_document_inline_completion_async(params))
        return cast("asyncio.Future[types.InlineCompletionList | None]", answer)

    def ask_raw(
        self, params: dict[str, object]
    ) -> asyncio.Future[types.InlineCompletionList | None]:
        """Ask with parameters that no type of ours could hold."""
        protocol = self.client.protocol
        future: Future[types.InlineCompletionList | None] = Future()
        protocol._request_futures["raw"] = future
        protocol._result_types["raw"] = types.InlineCompletionResponse
        method = types.TEXT_DOCUMENT_INLINE_COMPLETION
        protocol._send_data({"jsonrpc": "2.0", "id": "raw", "method": method, "params": params})
        return asyncio.wrap_future(future)

    async def all_received(self) -> None:
        """Wait until the server has begun with all that was sent: it answers this at once."""
        await self.ask(0, 0, uri="file:///not/open")

    async def stop(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    def trace(self) -> list[dict[str, object]]:
        records = [json.loads(line) for line in self.trace_path.read_text().splitlines()]
        requests = [record for record in records if "event" not in record]
        return [record for record in requests if record["exit"] != "unknown_document"]


def text_of(answer: types.InlineCompletionList | None) -> str | None:
    if answer is None:
        return None
    return str(answer.items[0].insert_text) if answer.items else ""


def play(
    folder: Path,
    scene: Callable[[Editor, FakeEngine], Awaitable[None]],
    options: dict[str, object] | None = None,
    *,
    prepare: Callable[[Editor], None] = lambda editor: None,
    is_asked: bool = False,
) -> Editor:
    """Run a scene with a started server and engine; return the editor when all has ended.

    ``is_asked``: the editor tells its settings only when it is asked.
    """

    @contextlib.asynccontextmanager
    async def stage() -> AsyncIterator[Editor]:
        engine = FakeEngine(folder / "engine.sock")
        await engine.listen()
        editor = Editor(LanguageClient("test", "1"), engine, folder)
        prepare(editor)
        await editor.start(options, is_asked=is_asked)
        try:
            yield editor
        finally:
            await editor.stop()
            await engine.kill()

    async def run() -> Editor:
        async with asyncio.timeout(60), stage() as editor:
            await scene(editor, editor.engine)
        return editor

    return asyncio.run(run())


def test_request_is_answered_by_the_engine(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        answer = editor.ask(1, 4)
        request = await engine.next_request()
        assert request.message.prefix == "def add(a, b):\n    "
        assert request.message.suffix == "\n\n\nprint(add(1, 2))\n"
        request.write("return a")
        request.write(" + b\n")
        request.write("\nprint")
        assert await request.stopped == "return a + b\n\nprint"
        result = await answer
        assert text_of(result) == "return a + b"
        assert result is not None
        cursor = types.Position(1, 4)
        assert result.items[0].range == types.Range(cursor, cursor)

    editor = play(tmp_path, scene)
    assert editor.capabilities is not None
    assert editor.capabilities.inline_completion_provider == types.InlineCompletionOptions()
    (record,) = editor.trace()
    assert record["outcome"] == "shown"
    assert record["exit"] == "stopped"
    assert record["scope"] == "block"
    assert record["steps"] == 3
    tokens, ms = record["tokens"], record["ms"]
    assert isinstance(tokens, dict)
    assert isinstance(ms, dict)
    assert tokens["reused"] == 7
    assert ms["verify"] == 3.0
    assert ms["total"] > 0
    assert "return" not in editor.trace_path.read_text()


def test_disagreeing_key_ends_the_work_without_a_cancel_from_the_editor(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        first = editor.ask(1, 4)
        request = await engine.next_request()
        request.write("return a")
        editor.type(1, 4, "x")
        assert await request.cancelled is CancelCause.SUPERSEDED
        assert await first is None
        second = editor.ask(1, 5)
        (await engine.next_request()).answer(" = a + b")
        assert text_of(await second) == " = a + b"

    editor = play(tmp_path, scene)
    assert [record["outcome"] for record in editor.trace()] == ["superseded", "shown"]
    assert editor.trace()[0]["exit"] == "document_changed"


def test_agreeing_keys_are_served_by_one_run(tmp_path: Path):
    """Adopted while it runs, cached when it is done: the engine is asked once."""

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        first = editor.ask(1, 4)
        request = await engine.next_request()
        request.write("return")
        editor.type(1, 4, "r")
        assert await first is None
        second = editor.ask(1, 5)
        await editor.all_received()
        request.answer(" a + b")
        assert text_of(await second) == "eturn a + b"
        editor.type(1, 5, "etu")
        assert text_of(await editor.ask(1, 8)) == "rn a + b"
        assert not request.cancelled.done()
        assert engine.num_requests == 1

    editor = play(tmp_path, scene)
    assert [r["outcome"] for r in editor.trace()] == ["superseded", "adopted", "cached"]


def test_suggestion_behind_the_accepted_one_is_there_at_once(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        answer = editor.ask(1, 4)
        (await engine.next_request()).answer("c = a + b\n")
        assert text_of(await answer) == "c = a + b"
        ahead = await engine.next_request()
        assert ahead.message.is_ahead
        assert ahead.message.prefix == "def add(a, b):\n    c = a + b\n"
        ahead.answer("    return c\n\n\nd")
        await ahead.stopped
        editor.type(1, 4, "c = a + b")
        assert text_of(await editor.ask(1, 13)) == "\n    return c"
        assert engine.num_requests == 2

    editor = play(tmp_path, scene, {"completion": {"maxDebounceMs": 0}})
    records = {(str(record["trigger"]), str(record["exit"])) for record in editor.trace()}
    assert ("ahead", "ahead") in records
    assert ("automatic", "ahead") in records


def test_whole_lines_are_shown_before_the_end_and_the_rest_after_they_are_accepted(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        first = editor.ask(1, 4)
        request = await engine.next_request()
        request.write("if a:\n        return b\n    re")
        assert text_of(await first) == "if a:\n        return b"
        editor.type(1, 4, "if a:\n        return b")
        second = editor.ask(2, 16)
        await editor.all_received()
        request.write("turn a + b\n")
        assert text_of(await second) == "\n    return a + b"
        assert not request.cancelled.done()
        assert engine.num_requests == 1
        request.finish()

    options: dict[str, object] = {
        "completion": {"maxDebounceMs": 0, "patienceMs": 1, "lookAhead": False}
    }
    editor = play(tmp_path, scene, options)
    assert [(r["outcome"], r["exit"]) for r in editor.trace()] == [
        ("shown", "whole_lines"),
        ("adopted", "whole_lines"),
    ]


def test_cancel_of_the_editor_reaches_the_engine(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        answer = editor.ask(1, 4)
        request = await engine.next_request()
        editor.client.cancel_request(types.CancelParams(_last_id(editor.client)))
        assert await request.cancelled is CancelCause.CLIENT
        with pytest.raises(Exception, match="cancel"):
            await answer

    editor = play(tmp_path, scene)
    assert [record["outcome"] for record in editor.trace()] == ["cancelled"]


def test_cancel_then_agreeing_key_keeps_the_run(tmp_path: Path):
    """VS Code cancels on every key before it says what was typed."""

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        first = editor.ask(1, 4)
        request = await engine.next_request()
        request.write("return")
        editor.client.cancel_request(types.CancelParams(_last_id(editor.client)))
        editor.type(1, 4, "r")
        second = editor.ask(1, 5)
        await editor.all_received()
        request.answer(" b")
        assert text_of(await second) == "eturn b"
        await asyncio.wait([first])
        assert first.exception() is not None

    editor = play(tmp_path, scene)
    assert sorted(str(r["outcome"]) for r in editor.trace()) == ["adopted", "cancelled"]


def test_killed_engine_is_told_once_and_found_again(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        answer = editor.ask(1, 4)
        await engine.next_request()
        await engine.kill()
        assert text_of(await answer) == ""
        assert "gone" in await editor.messages.get()
        await engine.listen()
        await engine.connected.wait()
        again = editor.ask(1, 4)
        (await engine.next_request()).answer("pass")
        assert text_of(await again) == "pass"
        assert editor.messages.qsize() == 0

    editor = play(tmp_path, scene)
    assert [record["outcome"] for record in editor.trace()] == ["error", "shown"]
    assert editor.trace()[0]["exit"] == "engine_unavailable"


def test_malformed_requests_are_answered(tmp_path: Path):
    """A trigger kind of 0 is an old client's; a request without a position is an error."""

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        document = {"uri": URI}
        position = {"line": 1, "character": 4}
        params = {"textDocument": document, "position": position, "context": {"triggerKind": 0}}
        answer = editor.ask_raw(params)
        (await engine.next_request()).answer("pass")
        assert text_of(await answer) == "pass"
        with pytest.raises(Exception, match="Invalid"):
            await editor.ask_raw({"textDocument": document})
        await editor.all_received()
        assert editor.messages.qsize() == 0

    editor = play(tmp_path, scene)
    assert editor.trace()[0]["trigger"] == "invoked"


def test_loading_is_shown_and_the_request_waits(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        await engine.connected.wait()
        engine.send_status(status(EngineState.LOADING, "reading weights"))
        assert (await editor.progress.get())["kind"] == "begin"
        report = await editor.progress.get()
        assert (report["kind"], report["percentage"]) == ("report", 50)
        answer = editor.ask(1, 4)
        request = await engine.next_request()
        engine.send_status(status())
        assert (await editor.progress.get())["kind"] == "end"
        assert not request.cancelled.done()
        request.answer("pass")
        assert text_of(await answer) == "pass"

    play(tmp_path, scene)


def test_length_limit_leaves_whole_lines(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        answer = editor.ask(1, 4)
        request = await engine.next_request()
        request.answer("c = a\n    d = c +", StopReason.LENGTH)
        assert text_of(await answer) == "c = a"

    play(tmp_path, scene)


def test_columns_are_counted_as_negotiated(tmp_path: Path):
    """Neovim counts bytes."""

    async def scene(editor: Editor, engine: FakeEngine) -> None:
        editor.open('name = "é😀"\ncall(name)\n', "file:///project/b.py")
        answer = editor.ask(0, 14, "file:///project/b.py")
        request = await engine.next_request()
        assert request.message.prefix == 'name = "é😀'
        request.answer("😀")
        assert text_of(await answer) == "😀"

    editor = play(tmp_path, scene)
    assert editor.capabilities is not None
    assert editor.capabilities.position_encoding == types.PositionEncodingKind.Utf8


def test_server_ends_when_its_editor_dies(tmp_path: Path):
    arguments = [sys.executable, "-m", "lsp_server.cli", "--stdio"]
    result = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    assert (result.returncode, result.stdout) == (0, b"")


def test_mistaken_setting_is_shown_and_defaulted(tmp_path: Path):
    async def scene(editor: Editor, engine: FakeEngine) -> None:
        assert "maxTokens" in await editor.messages.get()

    play(tmp_path, scene, {"completion": {"maxTokn": 3}})


def _last_id(client: LanguageClient) -> str | int:
    return next(reversed(client.protocol._request_futures))
