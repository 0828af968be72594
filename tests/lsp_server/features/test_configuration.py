"""Facts about settings that come from the editor."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types

from lsp_server.features import configuration
from lsp_server.features.engine_status import EngineReporter
from lsp_server.state import EngineNote, Level, State


class QuietEditor:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def show(self, text: str, level: Level) -> None:
        self.shown.append(text)

    def log(self, text: str) -> None:
        pass

    def tell_status(self, note: EngineNote) -> None:
        pass

    def begin_progress(self, title: str) -> None:
        pass

    def report_progress(self, text: str, fraction: float) -> None:
        pass

    def end_progress(self, text: str) -> None:
        pass


class Links:
    """Counts starts instead of making them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_starts = 0
        monkeypatch.setattr(State, "start_link", self._start)

    def _start(self) -> None:
        self.num_starts += 1


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Links:
    return Links(monkeypatch)


@pytest.fixture
def state(links: Links, tmp_path: Path) -> State:
    state = State(QuietEditor(), EngineReporter())
    options = {"trace": {"path": str(tmp_path / "a.jsonl")}, "completion": {"seed": 3, "sed": 1}}
    params = types.InitializeParams(types.ClientCapabilities(), initialization_options=options)
    configuration.initialize(state, params, "utf-8")
    configuration.initialized(state)
    return state


def shown(state: State) -> list[str]:
    assert isinstance(state.editor, QuietEditor)
    return state.editor.shown


def test_initial_settings_are_taken(state: State, links: Links, tmp_path: Path):
    assert state.encoding == "utf-8"
    assert state.settings.completion.seed == 3
    assert state.trace.path == tmp_path / "a.jsonl"
    assert links.num_starts == 1


def test_mistake_is_shown_once(state: State):
    configuration.did_change_configuration(state, {"completion": {"sed": 1}})
    assert shown(state) == ["SpecEngine: unknown setting completion.sed; did you mean seed?"]


def test_change_is_read_on_top_of_the_initial_settings(state: State):
    configuration.did_change_configuration(state, {"completion": {"maxTokens": 9}})
    assert (state.settings.completion.seed, state.settings.completion.max_tokens) == (3, 9)
    configuration.did_change_configuration(state, {"completion": {"maxTokens": 8}})
    configuration.did_change_configuration(state, None)
    assert state.settings.completion.max_tokens == 8


def test_only_another_engine_is_connected_anew(state: State, links: Links):
    state.link = None
    configuration.did_change_configuration(state, {"engine": {"model": "other"}})
    assert links.num_starts == 2


def test_trace_can_be_turned_off(state: State):
    configuration.did_change_configuration(state, {"trace": {"enabled": False}})
    assert state.trace.path is None
    assert state.trace.on_line is None


@pytest.mark.parametrize("path", ["~nosuchuser/t.jsonl", "~a\0b/t.jsonl"])
def test_trace_path_of_nobody_is_told_and_the_engine_is_connected(links: Links, path: str):
    state = State(QuietEditor(), EngineReporter())
    options = {"trace": {"path": path}}
    params = types.InitializeParams(types.ClientCapabilities(), initialization_options=options)
    configuration.initialize(state, params, "utf-8")
    configuration.initialized(state)
    assert state.trace.path is None
    assert state.trace.on_line is not None
    assert links.num_starts == 1
    (message,) = shown(state)
    assert "trace.path" in message


def folders(**given: object) -> list[Path]:
    params = types.InitializeParams(types.ClientCapabilities(), **given)  # type: ignore[arg-type]
    return configuration.folders_of(params)


def test_folders_of_the_workspace_are_told_in_three_ways():
    several = [
        types.WorkspaceFolder("file:///a%20b", "a"),
        types.WorkspaceFolder("untitled:x", "x"),
    ]
    assert folders(workspace_folders=several, root_uri="file:///c") == [Path("/a b")]
    assert folders(root_uri="file:///c", root_path="/d") == [Path("/c")]
    assert folders(root_path="/d") == [Path("/d")]
    assert folders() == []


def test_folders_come_and_go(state: State):
    event = types.WorkspaceFoldersChangeEvent(
        [types.WorkspaceFolder("file:///new", "n")], [types.WorkspaceFolder("file:///old", "o")]
    )
    state.folders = [Path("/old"), Path("/kept")]
    configuration.did_change_folders(state, types.DidChangeWorkspaceFoldersParams(event))
    assert state.folders == [Path("/kept"), Path("/new")]
    assert state.rules.folders == (Path("/kept"), Path("/new"))


def test_rules_follow_the_settings(state: State, tmp_path: Path):
    assert not state.rules.why_ignored(tmp_path / "a.sql")
    configuration.did_change_configuration(state, {"completion": {"ignoredFiles": ["*.sql"]}})
    assert state.rules.why_ignored(tmp_path / "a.sql")


def test_settings_that_come_before_the_beginning_start_nothing(links: Links):
    """An editor that is asked for its settings answers before the engine is started."""
    state = State(QuietEditor(), EngineReporter())
    params = types.InitializeParams(types.ClientCapabilities())
    configuration.initialize(state, params, "utf-8")
    assert not state.is_configured
    configuration.did_change_configuration(state, {"engine": {"model": "m"}})
    assert links.num_starts == 0
    configuration.initialized(state)
    configuration.initialized(state)
    assert links.num_starts == 1
    assert state.settings.engine.model == "m"
