"""Facts about a request's way, with an editor that notes what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from lsprotocol import types

from lsp_server.documents import Document
from lsp_server.features.document_sync import did_change, did_close, did_open
from lsp_server.features.engine_status import EngineReporter
from lsp_server.features.inline_completion import inline_completion
from lsp_server.prompt import Prompt
from lsp_server.settings import CompletionSettings, EngineSettings, Settings
from lsp_server.state import EngineNote, Level, State
from lsp_server.trace_log import TraceLog, TraceRecord
from specengine.protocol import CancelCause, EngineState, StopReason
from tests.fake_engine import FakeEngine, status

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

    def insert(self, line: int, character: int, text: str) -> None:
        at = types.Position(line, character)
        change = types.TextDocumentContentChangePartial(types.Range(at, at), text)
        document = types.VersionedTextDocumentIdentifier(2, URI)
        did_change(self.state, types.DidChangeTextDocumentParams(document, [change]))

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


@pytest.mark.parametrize(
    ("uri", "text", "position", "exit_name"),
    [
        (URI, "value", (0, 2), "inside_word"),
        (URI, " \n ", (0, 0), "empty_document"),
        (URI, "x" * (2 * 2**20 + 1), (0, 0), "file_too_large"),
        ("file:///project/.env.local", "KEY=", (0, 4), "ignored_file"),
        ("file:///home/id_rsa", "x", (0, 1), "ignored_file"),
        ("git:/project/main.py", "x", (0, 1), "read_only"),
        (URI, "# Generated by protoc. DO NOT EDIT.\nx = ", (1, 4), "generated_file"),
        (URI, "x = [" + "1, " * 400, (0, 1205), "minified_file"),
        (URI, "while x:\n    break", (1, 9), "after_end"),
    ],
)
def test_place_where_nothing_helps_has_a_named_exit(
    tmp_path: Path, uri: str, text: str, position: tuple[int, int], exit_name: str
):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open(text, uri)
        assert texts(await stage.ask(*position, uri=uri)) == []
        assert stage.engine.num_requests == 0

    assert play(tmp_path, scene).exits == [("empty", exit_name)]


def test_document_that_is_not_open_has_a_named_exit(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        stage.open("x")
        did_close(stage.state, types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(URI)))
        assert texts(await stage.ask(0, 0)) == []

    assert play(tmp_path, scene).exits == [("empty", "unknown_document")]


def test_switched_off_server_answers_with_nothing(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        stage.state.settings = Settings(completion=CompletionSettings(enabled=False))
        stage.open("x = ")
        assert texts(await stage.ask(0, 4)) == []

    assert play(tmp_path, scene).exits == [("empty", "disabled")]


def test_missing_engine_is_told_once(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        stage.state.start_link()
        stage.open("x = ")
        assert texts(await stage.ask(0, 4)) == []
        assert texts(await stage.ask(0, 4)) == []

    stage = play(tmp_path, scene)
    assert stage.exits == [("empty", "engine_unavailable")] * 2
    (message,) = stage.editor.shown
    assert "no engine listens" in message


def test_failing_engine_is_told_once_and_the_answer_is_empty(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.engine.send_status(status(EngineState.FAILED, "no such weights"))
        stage.open("x = ")
        for _ in range(2):
            answer = stage.ask(0, 4)
            (await stage.engine.next_request()).fail("engine_failed", "no such weights.")
            assert texts(await answer) == []

    stage = play(tmp_path, scene)
    assert stage.exits == [("error", "engine_failed")] * 2
    assert len(stage.editor.shown) == 1


def test_busy_engine_gives_an_empty_answer(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        answer = stage.ask(0, 4)
        (await stage.engine.next_request()).fail("engine_busy", "too many.")
        assert texts(await answer) == []

    assert play(tmp_path, scene).exits == [("error", "engine_busy")]


def test_loading_is_shown_as_progress(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        stage.engine.status = status(EngineState.LOADING, "weights")
        await stage.connect()
        stage.engine.send_status(status())
        while "end" not in stage.editor.bars:  # noqa: ASYNC110  # an editor's bar tells nobody
            await asyncio.sleep(0)

    assert play(tmp_path, scene).editor.bars == [
        "SpecEngine",
        "loading model 50 %: weights 50%",
        "end",
    ]


def test_closing_bracket_behind_the_cursor_is_replaced(tmp_path: Path):
    """The item's range covers what the text brings along, on one line."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def add(\n    first)\n    😀 = add()\n")
        item = await stage.item(2, 13, "1,\n        2)")
        assert item.insert_text == "1,\n        2"
        assert item.range == types.Range(types.Position(2, 13), types.Position(2, 13))
        stage.open("x = [add()]\n")
        item = await stage.item(0, 9, "1)\n      ]")
        assert item.range == types.Range(types.Position(0, 9), types.Position(0, 11))

    play(tmp_path, scene)


def test_windows_document_gets_its_line_ends(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\r\n    \r\n")
        answer = stage.ask(1, 4)
        request = await stage.engine.next_request()
        assert request.message.prefix == "def f():\n    "
        request.answer("a = 1\n    return a")
        assert texts(await answer) == ["a = 1\r\n    return a"]

    play(tmp_path, scene)


def test_selected_word_of_the_popup_is_continued(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("pri")
        word = types.Range(types.Position(0, 0), types.Position(0, 3))
        item = await stage.item(0, 3, "(1)", types.SelectedCompletionInfo(word, "print"))
        assert item.insert_text == "print(1)"
        assert item.range == word

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("text", "start", "end"), [("x", 0, 3), ("print", 0, 2), ("pr\nint", 0, 3)]
)
def test_selection_that_completes_nothing_is_ignored(
    tmp_path: Path, text: str, start: int, end: int
):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("pri")
        word = types.Range(types.Position(0, start), types.Position(0, end))
        item = await stage.item(0, 3, "nt(1)", types.SelectedCompletionInfo(word, text))
        assert item.insert_text == "nt(1)"

    play(tmp_path, scene)


def test_text_that_the_rules_empty_names_the_rule(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    \n    return x\n")
        answer = stage.ask(1, 4)
        (await stage.engine.next_request()).answer("return x")
        assert texts(await answer) == []
        assert texts(await stage.ask(1, 4)) == []
        stage.insert(0, 0, "# ")
        answer = stage.ask(1, 4)
        (await stage.engine.next_request()).finish()
        assert texts(await answer) == []

    assert play(tmp_path, scene).exits == [
        ("empty", "end_at_next_line"),
        ("empty", "end_at_next_line"),
        ("empty", "nothing_written"),
    ]


def test_newer_request_answers_the_older_one_with_null(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = \ny = ")
        first = stage.ask(0, 4)
        request = await stage.engine.next_request()
        second = stage.ask(1, 4)
        assert await first is None
        assert await request.cancelled == "superseded"
        (await stage.engine.next_request()).answer("2")
        assert texts(await second) == ["2"]

    stage = play(tmp_path, scene)
    assert sorted(stage.exits) == [("shown", "end_token"), ("superseded", "newer_request")]


def test_same_request_again_joins_the_run(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        first = stage.ask(0, 4)
        request = await stage.engine.next_request()
        second = stage.ask(0, 4)
        assert await first is None
        request.answer("2")
        assert texts(await second) == ["2"]

    stage = play(tmp_path, scene)
    assert stage.exits[-1] == ("adopted", "adopted")
    counted = [record for record in stage.trace.records if record.steps]
    assert [str(record.outcome) for record in counted] == ["adopted"], "tokens are counted once"


def test_adopted_run_that_goes_another_way_is_asked_anew(tmp_path: Path):
    """The user types ahead of the stream, and the stream then disagrees."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        stage.ask(0, 4)
        request = await stage.engine.next_request()
        stage.insert(0, 4, "fu")
        answer = stage.ask(0, 6)
        await asyncio.sleep(0)
        request.write("bar")
        (await stage.engine.next_request()).answer("n(1)")
        assert texts(await answer) == ["n(1)"]

    assert play(tmp_path, scene).exits[-1] == ("shown", "end_token")


def test_rest_of_a_line_asks_for_fewer_tokens(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = + 1")
        answer = stage.ask(0, 4)
        request = await stage.engine.next_request()
        assert request.message.max_tokens == CompletionSettings().line_max_tokens
        request.answer("y ")
        await answer
        assert stage.trace.records[-1].scope == "line"

    play(tmp_path, scene)


def test_engine_that_ends_a_run_by_itself_gives_null(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        answer = stage.ask(0, 4)
        (await stage.engine.next_request()).finish(StopReason.CANCELLED)
        assert await answer is None

    assert play(tmp_path, scene).exits == [("superseded", "engine_cancelled")]


def test_engines_limit_shortens_the_prompt(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        stage.engine.status = msgspec.structs.replace(status(), prompt_tokens=100)
        await stage.connect()
        stage.open("value = 1\n" * 1000 + "x = ")
        answer = stage.ask(1000, 4)
        request = await stage.engine.next_request()
        assert len(request.message.prefix) <= 300
        request.answer("2")
        await answer

    play(tmp_path, scene)


def test_bug_is_logged_and_the_answer_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(self: Document, position: types.Position) -> None:
        raise AssertionError

    async def scene(stage: Stage) -> None:
        stage.open("x = ")
        assert texts(await stage.ask(0, 4)) == []

    monkeypatch.setattr(Document, "snapshot", fail)
    assert play(tmp_path, scene).exits == [("error", "internal")]
    assert "request 1 failed" in caplog.text


INVOKED = types.InlineCompletionTriggerKind.Invoked


def test_who_asks_explicitly_gets_more_and_alternatives(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    a()\n    ")
        answer = stage.ask(2, 4, kind=INVOKED)
        requests = [await stage.engine.next_request() for _ in range(3)]
        messages = [request.message for request in requests]
        assert len({message.document for message in messages}) == 3, "none supersedes another"
        assert [message.sampling.seed for message in messages] == [0, 1, 2]
        assert [message.sampling.temperature for message in messages] == [0, 0.6, 0.6]
        assert {message.max_tokens for message in messages} == {192}
        for request, text in zip(
            requests, ("b()\n    c()\n", "d()\n", "b()\n    c()\n"), strict=True
        ):
            request.answer(text)
        assert texts(await answer) == ["b()\n    c()", "d()"], "the same one is not told twice"

    stage = play(tmp_path, scene)
    assert stage.trace.records[0].scope == "blocks"


def test_automatic_request_asks_for_one(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        await stage.item(0, 4, "1\n")
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_failed_alternative_leaves_the_others(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ")
        answer = stage.ask(0, 4, kind=INVOKED)
        first, second, third = [await stage.engine.next_request() for _ in range(3)]
        second.fail("engine_busy", "too many.")
        first.answer("1\n")
        third.answer("2\n")
        assert texts(await answer) == ["1", "2"]

    play(tmp_path, scene)


def test_explicit_request_is_answered_where_an_automatic_one_is_not(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.state.settings = replace(
            stage.state.settings, completion=CompletionSettings(alternatives=1)
        )
        stage.open("while x:\n    break")
        answer = stage.ask(1, 9, kind=INVOKED)
        (await stage.engine.next_request()).answer("\n    y()\n")
        assert texts(await answer) == ["\n    y()"]

    play(tmp_path, scene)


def test_next_suggestion_is_there_when_the_shown_one_is_accepted(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        session = stage.state.documents[URI].session
        ahead = await stage.engine.next_request()
        assert ahead.message.prefix == "def f():\n    a()\n"
        assert ahead.message.is_ahead
        ahead.answer("    b()\n\n\nc")
        while session.find_cached(Prompt("def f():\n    a()", "")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)  # a run tells nobody of its end
        stage.insert(1, 4, "a()")
        answer = await stage.ask(1, 7)
        assert texts(answer) == ["\n    b()"]
        assert stage.engine.num_requests == 2

    stage = play(tmp_path, scene)
    record = next(record for record in stage.trace.records if record.trigger == "ahead")
    assert (record.outcome, record.exit, record.request, record.steps) == ("adopted", "ahead", 1, 3)
    assert ("cached", "ahead") in stage.exits


def test_ahead_that_is_not_wanted_is_counted(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        ahead = await stage.engine.next_request()
        ahead.write("    b()")
        stage.insert(1, 4, "x")
        await ahead.cancelled

    stage = play(tmp_path, scene)
    record = next(record for record in stage.trace.records if record.trigger == "ahead")
    assert (record.outcome, record.exit, record.steps) == ("superseded", "ahead", 3)


def test_request_in_another_document_ends_looking_ahead(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("x = ", uri="file:///other.py")
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        ahead = await stage.engine.next_request()
        answer = stage.ask(0, 4, uri="file:///other.py")
        assert await ahead.cancelled is CancelCause.SUPERSEDED
        (await stage.engine.next_request()).answer("1\n")
        assert texts(await answer) == ["1"]

    play(tmp_path, scene)


def test_looking_ahead_can_be_turned_off(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        completion = CompletionSettings(look_ahead=False)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        stage.open("def f():\n    ")
        await stage.item(1, 4, "a()\n\nb")
        assert stage.state.documents[URI].session._ahead is None  # pyright: ignore[reportPrivateUsage]

    play(tmp_path, scene)


def test_suggestion_stays_as_it_is_while_the_user_types_along(tmp_path: Path):
    """What the rules would make of the rest alone does not matter."""

    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        item = await stage.item(1, 4, "x = -y.z\n\nb")
        shown = str(item.insert_text)
        for at in range(1, len(shown)):
            stage.insert(1, 3 + at, shown[at - 1])
            assert texts(await stage.ask(1, 4 + at)) == [shown[at:]]
        assert stage.engine.num_requests == 1

    play(tmp_path, scene)


def test_going_back_shows_what_was_shown(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    ")
        await stage.item(1, 4, "x = 1\n\nb")
        stage.insert(1, 4, "y")
        answer = stage.ask(1, 5)
        (await stage.engine.next_request()).answer(" = 2\n")
        assert texts(await answer) == [" = 2"]
        stage.delete(1, 4, 5)
        assert texts(await stage.ask(1, 4)) == ["x = 1"]
        assert stage.engine.num_requests == 2

    play(tmp_path, scene)


def test_key_that_disagrees_asks_with_the_suffix_as_it_was(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        stage.open("def f():\n    x\n\ny = 1\n")
        await stage.item(1, 5, " = 1\n")
        stage.insert(1, 5, "()")
        answer = stage.ask(1, 6)
        request = await stage.engine.next_request()
        assert request.message.prefix == "def f():\n    x("
        assert request.message.suffix == "\n\ny = 1\n", "without the closing bracket"
        request.answer("a)\n")
        (item,) = (await answer or types.InlineCompletionList([])).items
        assert item.insert_text == "a"
        assert item.range == types.Range(types.Position(1, 6), types.Position(1, 6))

    play(tmp_path, scene)


def test_without_following_each_key_is_asked_anew(tmp_path: Path):
    async def scene(stage: Stage) -> None:
        await stage.connect()
        completion = CompletionSettings(follow_typing=False)
        stage.state.settings = replace(stage.state.settings, completion=completion)
        stage.open("def f():\n    ")
        await stage.item(1, 4, "return 1\n")
        stage.insert(1, 4, "r")
        item = await stage.item(1, 5, "eturn 1\n")
        assert item.insert_text == "eturn 1"
        assert stage.engine.num_requests == 2

    play(tmp_path, scene)
