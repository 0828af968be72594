"""What a user sees when the engine loads, fails, dies, or is slow; the engine does as told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from specengine.protocol import EngineState
from tests.editors.neovim.conftest import OpenNeovim
from tests.editors.neovim.editor import GREY, Neovim
from tests.editors.neovim.terminal import coloured
from tests.editors.scripted_engine import STATEMENT, ScriptedEngine

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

READY = r"^fake"
NUMBER_WIDTH = 4
"""Of the line numbers on the screen."""

TEXT = "def add(a, b):\n    \n"


@pytest.fixture
def editor(open_neovim: OpenNeovim) -> Iterator[Neovim]:
    with open_neovim({"add.py": TEXT}) as editor:
        editor.await_status(READY)
        editor.insert_at(2, 5)
        yield editor


def test_loading_is_shown_as_it_goes_on(editor: Neovim, engine: ScriptedEngine) -> None:
    engine.say(EngineState.LOADING, "reading weights")
    editor.await_status(r"loads fake 50 %$")
    editor.picture("loading")
    editor.type("ret")
    editor.await_line("    ret")
    engine.say(EngineState.READY, "ready")
    editor.await_status(READY)
    assert "SpecEngine" not in editor.messages()


def test_a_model_that_cannot_be_loaded_is_an_error(editor: Neovim, engine: ScriptedEngine) -> None:
    engine.say(EngineState.FAILED, "not enough memory")
    editor.await_status("cannot be loaded$")
    editor.terminal.await_value(editor.messages, lambda text: "not enough memory" in text)
    editor.picture("failed")


def test_typing_goes_on_while_the_engine_is_dead(editor: Neovim, engine: ScriptedEngine) -> None:
    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])
    engine.kill()
    editor.type("ur")
    editor.await_status("^SpecEngine")
    engine.listen()
    editor.type("n")
    editor.await_status(READY)
    editor.type(" a")
    editor.await_ghost_text(STATEMENT[8:])
    assert editor.line() == "    return a"


def test_a_language_server_that_dies_is_started_again(editor: Neovim) -> None:
    (pid,) = editor.server_pids()
    os.kill(pid, signal.SIGKILL)
    editor.terminal.await_value(editor.server_pids, lambda pids: len(pids) == 1 and pid not in pids)
    editor.await_status(READY)
    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])


def test_a_slow_engine_shows_nothing_stale(editor: Neovim, engine: ScriptedEngine) -> None:
    engine.delay_s = 1.0
    seen: set[tuple[str, str]] = set()
    for key in "return":
        editor.type(key, 0.1)
        for _ in range(5):
            seen.add(what_is_seen(editor))
            time.sleep(0.03)
    editor.await_ghost_text(STATEMENT[6:])
    seen.add(what_is_seen(editor))
    wrong = [(line, grey) for line, grey in seen if grey and line.strip() + grey != STATEMENT]
    assert wrong == []
    editor.picture("slow_engine")


def test_a_slow_engine_s_answer_to_a_refuted_text_is_not_shown(
    editor: Neovim, engine: ScriptedEngine
) -> None:
    engine.delay_s = 1.0
    editor.type("rex")
    editor.terminal.await_value(lambda: what_is_seen(editor)[0], "    rex".__eq__)
    seen: set[tuple[str, str]] = set()
    end = time.monotonic() + 3
    while time.monotonic() < end:
        seen.add(what_is_seen(editor))
        time.sleep(0.05)
    assert seen == {("    rex", "")}  # the answer to "re" would have been "turn a + b"


def test_a_shown_text_that_a_key_refutes_goes_at_once(
    editor: Neovim, engine: ScriptedEngine
) -> None:
    editor.type("ret")
    editor.await_ghost_text(STATEMENT[3:])
    engine.delay_s = 1.0
    editor.type("x", 0)
    editor.terminal.await_value(lambda: editor.terminal.words(), lambda text: "retx" in text)
    assert editor.ghost_text() == ""


def what_is_seen(editor: Neovim) -> tuple[str, str]:
    """Return the second line of one look at the screen: what is typed, and what is grey."""
    screen = editor.terminal.screen()
    grey = coloured(screen[1:2], GREY)
    shown = screen[1].plain.rstrip()
    return shown[NUMBER_WIDTH : len(shown) - len(grey)], grey
