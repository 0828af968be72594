"""Texts of any form reach the screen and the file as they should; the engine is scripted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.editors.scripted_engine import STATEMENT, ScriptedEngine
from tests.editors.vscode.conftest import OpenWindow, Setup, Window

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

BLOCK = "if a is None:\n        a = 0\n        return a + b"
FILES = {
    "block.py": "def add(a, b):\n    \n",
    "crlf.py": "def add(a, b):\r\n    \r\n",
    "unicode.py": 'WORDS = "größer, 長い, 🎈"\n\n\ndef add(a, b):\n    """🎈 足す."""\n    \n',
}


@pytest.fixture(scope="module")
def window(open_window: OpenWindow, engine: ScriptedEngine) -> Iterator[Window]:
    settings = {
        "specengine.engine.socket": str(engine.path),
        # It would write its statement once more behind an accepted one.
        "specengine.completion.lookAhead": False,
    }
    with open_window(Setup(FILES, settings)) as window:
        window.workbench.await_status("^fake")
        yield window


def saved(window: Window, name: str) -> str:
    """Save the file; return what is in it."""
    window.workbench.press("Control+S")
    tab = window.workbench.page.locator(f'.tab.active.dirty[data-resource-name="{name}"]')
    tab.wait_for(state="hidden")
    return (window.folder / name).read_bytes().decode()


def test_a_block_is_shown_and_accepted_as_a_whole(window: Window, engine: ScriptedEngine) -> None:
    engine.statement = BLOCK
    workbench = window.workbench
    workbench.open("block.py", 2, 5)
    workbench.type("if")
    workbench.await_ghost_text(BLOCK[2:])
    workbench.picture("block_light")
    workbench.choose_theme("Dark Modern")
    workbench.run("SpecEngine: Suggest Here")
    workbench.await_ghost_text(BLOCK[2:])
    workbench.picture("block_dark")
    workbench.choose_theme("Light Modern")
    workbench.type(" a")
    workbench.await_ghost_text(BLOCK[4:])
    workbench.press("Tab")
    workbench.await_no_ghost_text()
    assert saved(window, "block.py") == f"def add(a, b):\n    {BLOCK}\n"


def test_lines_end_as_the_file_s_lines_do(window: Window, engine: ScriptedEngine) -> None:
    engine.statement = BLOCK
    workbench = window.workbench
    workbench.open("crlf.py", 2, 5)
    workbench.type("if")
    workbench.await_ghost_text(BLOCK[2:])
    workbench.press("Tab")
    workbench.await_no_ghost_text()
    expected = f"def add(a, b):\n    {BLOCK}\n".replace("\n", "\r\n")
    assert saved(window, "crlf.py") == expected


def test_wide_characters_move_nothing(window: Window, engine: ScriptedEngine) -> None:
    engine.statement = STATEMENT
    workbench = window.workbench
    workbench.open("unicode.py", 6, 5)
    workbench.type("ret")
    workbench.await_ghost_text(STATEMENT[3:])
    workbench.picture("unicode")
    workbench.press("Tab")
    workbench.await_no_ghost_text()
    assert saved(window, "unicode.py") == f"{FILES['unicode.py'].rstrip()}\n    {STATEMENT}\n"
