"""Settings from the editor: at ``initialize`` and whenever they change."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from lsprotocol import types

from lsp_server.documents import path_of
from lsp_server.positions import Encoding
from lsp_server.settings import read_settings
from lsp_server.state import State


def initialize(state: State, params: types.InitializeParams, encoding: str) -> None:
    """Read the settings; what is wrong is shown when the editor is ready for messages."""
    state.encoding = cast("Encoding", encoding)
    state.initial_settings, state.problems = read_settings(params.initialization_options)
    state.settings = state.initial_settings
    state.is_configured = params.initialization_options is not None
    state.folders = folders_of(params)
    state.set_rules()


def initialized(state: State) -> None:
    """Begin to work; a second call changes nothing."""
    if state.is_begun:
        return
    state.is_begun = True
    _show_problems(state, state.problems)
    state.start_trace()
    state.start_link()


def did_change_configuration(state: State, settings: object) -> None:
    """Take new settings over; another engine is connected only if its settings changed.

    An editor that sends null or an empty object has nothing of ours to say.
    """
    if not settings:
        return
    before = state.settings
    state.settings, problems = read_settings(settings, state.initial_settings)
    _show_problems(state, problems)
    state.set_rules()
    if not state.is_begun:
        return  # whoever begins takes them
    if state.settings.trace != before.trace:
        state.start_trace()
    is_same = (state.settings.engine, state.settings.upstream) == (before.engine, before.upstream)
    if not is_same or state.link is None:
        state.start_link()
    else:
        state.link.retry()


def folders_of(params: types.InitializeParams) -> list[Path]:
    """Return the folders of the workspace that have a path."""
    uris = [folder.uri for folder in params.workspace_folders or ()]
    if not uris:
        uris = [params.root_uri] if params.root_uri else []
    paths = [path_of(uri) for uri in uris]
    if not uris and params.root_path:
        paths = [Path(params.root_path)]
    return [path for path in paths if path is not None]


def did_change_folders(state: State, params: types.DidChangeWorkspaceFoldersParams) -> None:
    """Take folders of the workspace in, and out."""
    removed = {path_of(folder.uri) for folder in params.event.removed}
    added = [path_of(folder.uri) for folder in params.event.added]
    kept = [folder for folder in state.folders if folder not in removed]
    state.folders = kept + [path for path in added if path is not None]
    state.set_rules()


def _show_problems(state: State, problems: list[str]) -> None:
    for problem in problems:
        state.show_once(problem, problem, "warning")
