"""Facts about what an editor is told of the engine."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from lsp_server.features.engine_status import EngineReporter
from lsp_server.settings import EngineSettings, Settings
from lsp_server.state import EngineNote, Level, State
from specengine.errors import EngineUnavailable
from specengine.protocol import EngineState, EngineStatus


class NotedEditor:
    def __init__(self) -> None:
        self.notes: list[EngineNote] = []
        self.bars: list[str] = []

    def show(self, text: str, level: Level) -> None:
        pass

    def log(self, text: str) -> None:
        pass

    def tell_status(self, note: EngineNote) -> None:
        self.notes.append(note)

    def begin_progress(self, title: str) -> None:
        self.bars.append(title)

    def report_progress(self, text: str, fraction: float) -> None:
        self.bars.append(text)

    def end_progress(self, text: str) -> None:
        self.bars.append("end")


@pytest.fixture
def editor() -> NotedEditor:
    return NotedEditor()


@pytest.fixture
def reporter(editor: NotedEditor) -> EngineReporter:
    reporter = EngineReporter()
    reporter.state = State(editor, reporter)
    reporter.state.settings = Settings(EngineSettings(model="wished", drafter="suffix"))
    return reporter


def loading(progress: float, detail: str = "weights") -> EngineStatus:
    return EngineStatus(EngineState.LOADING, "m", "d", progress, detail, 0, 0, 4096)


READY = EngineStatus(EngineState.READY, "m", "d", 1.0, "ready", 0, 0, 4096)
GONE = EngineUnavailable("the engine has gone.")


def test_status_has_the_five_fields_that_clients_read(
    reporter: EngineReporter, editor: NotedEditor
):
    reporter.on_status(loading(0.43))
    (note,) = editor.notes
    assert asdict(note) == {
        "state": "loading", "model": "m", "drafter": "d", "progress": 0.43, "detail": "weights",
    }  # fmt: skip


def test_every_change_is_told_and_nothing_else(reporter: EngineReporter, editor: NotedEditor):
    reporter.on_attempt()
    for status in (loading(0.1), loading(0.1), loading(0.2), loading(0.2, "tokens"), READY, READY):
        reporter.on_status(status)
    told = [(note.state, note.progress, note.detail) for note in editor.notes]
    assert told == [
        ("starting", 0.0, ""),
        ("loading", 0.1, "weights"),
        ("loading", 0.2, "weights"),
        ("loading", 0.2, "tokens"),
        ("ready", 1.0, "ready"),
    ]


def test_start_names_what_the_settings_wish_for(reporter: EngineReporter, editor: NotedEditor):
    reporter.on_attempt()
    assert editor.notes == [EngineNote("starting", "wished", "suffix", 0.0, "")]


def test_engine_that_has_gone_is_started_again_until_the_link_gives_up(
    reporter: EngineReporter, editor: NotedEditor
):
    reporter.on_status(READY)
    reporter.on_outage(GONE)
    reporter.on_attempt()
    reporter.on_give_up(GONE)
    reporter.on_attempt()
    assert [(note.state, note.model) for note in editor.notes] == [
        ("ready", "m"),
        ("starting", "m"),
        ("unavailable", "m"),
        ("starting", "m"),
    ]
    assert editor.notes[1].detail == str(GONE)


def test_failed_model_says_why(reporter: EngineReporter, editor: NotedEditor):
    reporter.on_status(EngineStatus(EngineState.FAILED, "m", "d", 0.5, "no memory", 0, 0, 0))
    assert [(note.state, note.detail) for note in editor.notes] == [("failed", "no memory")]


def test_progress_says_how_far_loading_is(reporter: EngineReporter, editor: NotedEditor):
    reporter.on_status(loading(0.43))
    reporter.on_status(READY)
    assert editor.bars == ["SpecEngine", "loading model 43 %: weights", "end"]
