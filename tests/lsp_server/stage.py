"""A language server without pygls or a process: its editor notes, its engine does as told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from lsprotocol import types

from lsp_server.features.document_sync import did_change, did_open
from lsp_server.features.engine_status import EngineReporter
from lsp_server.features.inline_completion import inline_completion
from lsp_server.settings import CompletionSettings, EngineSettings, Settings
from lsp_server.state import EngineNote, Level, State
from lsp_server.trace_log import TraceLog, TraceRecord
from tests.fake_engine import FakeEngine

URI = "file:///project/main.py"


class NotedEditor:
    def __init__(self) -> None:
        self.shown: list[str] = []
        self.lines: list[str] = []
        self.bars: list[str] = []

    def show(self, text: str, level: Level) -> None:
        self.shown.append(text)

    def log(self, text: str) -> None:
        self.lines.append(text)

    def tell_status(self, note: EngineNote) -> None:
        pass

    def begin_progress(self, title: str) -> None:
        self.bars.append(title)

    def report_progress(self, text: str, fraction: float) -> None:
        self.bars.append(f"{text} {fraction:.0%}")

    def end_progress(self, text: str) -> None:
        self.bars.append("end")


class NotedTrace(TraceLog):
    def __init__(self) -> None:
        super().__init__(None, 0)
        self.records: list[TraceRecord] = []

    def write(self, record: TraceRecord) -> None:
        self.records.append(record)


class Stage:
    """A server without pygls, connected to a scripted engine."""

    def __init__(self, folder: Path) -> None:
        self.engine = FakeEngine(folder / "s")
        self.editor = NotedEditor()
        self.trace = NotedTrace()
        reporter = EngineReporter()
        self.state = reporter.state = State(self.editor, reporter, trace=self.trace)
        self.state.settings = Settings(
            engine=EngineSettings(socket=str(folder / "s"), wait_ms=2000),
            completion=CompletionSettings(max_debounce_ms=0),
        )

    async def connect(self) -> None:
        await self.engine.listen()
        self.state.start_link()
        assert self.state.link is not None
        attempt = self.state.link.attempt
        assert attempt is not None
        await attempt

    def open(self, text: str, uri: str = URI, language: str = "python") -> None:
        item = types.TextDocumentItem(uri, language, 1, text)
        did_open(self.state, types.DidOpenTextDocumentParams(item))

    def insert(self, line: int, character: int, text: str, uri: str = URI) -> None:
        at = types.Position(line, character)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), text)
        document = types.VersionedTextDocumentIdentifier(2, uri)
        did_change(self.state, types.DidChangeTextDocumentParams(document, [change]))

    def insert_everywhere(self, *places: tuple[int, int, str]) -> None:
        """Insert texts at several cursors, in one notification, as editors do: the last first."""
        changes: list[types.TextDocumentContentChangeEvent] = []
        for line, character, text in places:
            at = types.Position(line, character)
            changes.append(types.TextDocumentContentChangePartial(types.Range(at, at), text))
        document = types.VersionedTextDocumentIdentifier(2, URI)
        did_change(self.state, types.DidChangeTextDocumentParams(document, changes))

    async def settle(self) -> None:
        """Let everything happen that is under way: sockets need some turns of the loop."""
        for _ in range(20):
            await asyncio.sleep(0)

    def delete(self, line: int, start: int, end: int) -> None:
        where = types.Range(types.Position(line, start), types.Position(line, end))
        change = types.TextDocumentContentChangePartial(where, "")
        document = types.VersionedTextDocumentIdentifier(3, URI)
        did_change(self.state, types.DidChangeTextDocumentParams(document, [change]))

    def ask(
        self,
        line: int,
        character: int,
        uri: str = URI,
        selected: types.SelectedCompletionInfo | None = None,
        kind: types.InlineCompletionTriggerKind = types.InlineCompletionTriggerKind.Automatic,
    ) -> asyncio.Task[types.InlineCompletionList | None]:
        params = types.InlineCompletionParams(
            types.InlineCompletionContext(kind, selected),
            types.TextDocumentIdentifier(uri),
            types.Position(line, character),
        )
        return asyncio.ensure_future(inline_completion(self.state, params))

    async def item(
        self,
        line: int,
        character: int,
        text: str,
        selected: types.SelectedCompletionInfo | None = None,
    ) -> types.InlineCompletionItem:
        """Ask, let the engine write the text, and return the one item."""
        answer = self.ask(line, character, selected=selected)
        (await self.engine.next_request()).answer(text)
        result = await answer
        assert result is not None
        (item,) = result.items
        return item

    @property
    def exits(self) -> list[tuple[str, str]]:
        return [(str(record.outcome), record.exit) for record in self.trace.records]


def play(folder: Path, scene: Callable[[Stage], Awaitable[None]]) -> Stage:
    async def run() -> Stage:
        stage = Stage(folder)
        try:
            async with asyncio.timeout(5):
                await scene(stage)
        finally:
            await stage.state.shut_down()
            await stage.engine.kill()
        return stage

    return asyncio.run(run())


def texts(answer: types.InlineCompletionList | None) -> list[str] | None:
    return None if answer is None else [str(item.insert_text) for item in answer.items]
