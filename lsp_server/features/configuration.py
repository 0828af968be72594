"""Settings from the editor: at ``initialize`` and whenever they change."""

from __future__ import annotations

from typing import cast

from lsprotocol import types

from lsp_server.positions import Encoding
from lsp_server.settings import read_settings
from lsp_server.state import State


def initialize(state: State, params: types.InitializeParams, encoding: str) -> None:
    """Read the settings; what is wrong is shown when the editor is ready for messages."""
    state.encoding = cast("Encoding", encoding)
    state.initial_settings, state.problems = read_settings(params.initialization_options)
    state.settings = state.initial_settings


def initialized(state: State) -> None:
    """Begin to work."""
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
    if state.settings.trace != before.trace:
        state.start_trace()
    is_same = (state.settings.engine, state.settings.upstream) == (before.engine, before.upstream)
    if not is_same or state.link is None:
        state.start_link()
    else:
        state.link.retry()


def _show_problems(state: State, problems: list[str]) -> None:
    for problem in problems:
        state.show_once(problem, problem, "warning")
