"""What a user sees when the engine loads, fails, dies, or is slow; the engine does as told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from specengine.protocol import EngineState
from tests.editors.processes import pids_of
from tests.editors.scripted_engine import STATEMENT, ScriptedEngine
from tests.editors.vscode.conftest import OpenWindow, Setup, Window
from tests.editors.vscode.workbench import Look

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

READY = r"^fake"
FILE = "add.py"
TEXT = "def add(a, b):\n    \n"


@pytest.fixture(scope="module")
def opened(open_window: OpenWindow, engine: ScriptedEngine) -> Iterator[Window]:
    settings = {"specengine.engine.socket": str(engine.path), "editor.autoIndent": "none"}
    with open_window(Setup({FILE: TEXT}, settings)) as window:
        yield window


@pytest.fixture
def window(opened: Window, engine: ScriptedEngine) -> Window:
    """The window with an engine that is ready, and the file as it was."""
    engine.delay_s = 0.0
    engine.say(EngineState.READY, "ready")
    opened.workbench.await_status(READY)
    opened.workbench.open(FILE, 1, 1)
    opened.workbench.replace_all(TEXT.rstrip("\n"))
    return opened


def server_pids(window: Window) -> list[int]:
    """Return the language servers of a window."""
    return pids_of(b"lsp_server.cli", window.state)


def test_loading_is_shown_as_it_goes_on(window: Window, engine: ScriptedEngine) -> None:
    engine.say(EngineState.LOADING, "reading weights")
    window.workbench.await_status(r"loads fake 50 %$")
    window.workbench.picture("loading")
    engine.say(EngineState.READY, "ready")
    window.workbench.await_status(READY)


def test_a_model_that_cannot_be_loaded_is_an_error(window: Window, engine: ScriptedEngine) -> None:
    engine.say(EngineState.FAILED, "not enough memory")
    window.workbench.await_status(r"^SpecEngine$")
    assert "not enough memory" in window.workbench.status_label()
    window.workbench.picture("failed")


def test_typing_goes_on_while_the_engine_is_dead(window: Window, engine: ScriptedEngine) -> None:
    workbench = window.workbench
    workbench.type("ret")
    workbench.await_ghost_text(STATEMENT[3:])
    engine.kill()
    workbench.type("ur")
    workbench.await_status("SpecEngine")
    engine.listen()
    workbench.type("n")
    workbench.await_status(READY)
    workbench.type(" a")
    workbench.await_ghost_text(STATEMENT[8:])
    workbench.picture("typed_while_dead")
    assert workbench.look() == Look("def add(a, b):\n    return a", STATEMENT[8:])


def test_a_language_server_that_dies_is_started_again(window: Window) -> None:
    (pid,) = server_pids(window)
    os.kill(pid, signal.SIGKILL)
    window.workbench.await_value(
        lambda: server_pids(window), lambda pids: len(pids) == 1 and pid not in pids
    )
    window.workbench.await_status(READY)
    window.workbench.type("ret")
    window.workbench.await_ghost_text(STATEMENT[3:])


def test_a_slow_engine_shows_nothing_stale(window: Window, engine: ScriptedEngine) -> None:
    engine.delay_s = 1.0
    workbench = window.workbench
    seen: set[Look] = set()
    for key in "return":
        workbench.type(key)
        for _ in range(5):
            workbench.page.wait_for_timeout(50)
            seen.add(workbench.look())
    workbench.await_ghost_text(STATEMENT[6:])
    seen.add(workbench.look())
    right = TEXT.rstrip("\n") + STATEMENT
    # Blanks at the end of a line are not seen, so the words are compared.
    wrong = [look for look in seen if look.grey and look.words != right.split()]
    assert wrong == []
    workbench.picture("slow_engine")


def test_restarts_that_are_asked_for_at_once_are_one(window: Window) -> None:
    for _ in range(3):
        window.workbench.run("SpecEngine: Restart")
    window.workbench.await_status(READY)
    window.workbench.page.wait_for_timeout(1500)  # another restart would have begun by then
    window.workbench.await_status(READY)
    window.workbench.await_value(lambda: len(server_pids(window)), (1).__eq__)
