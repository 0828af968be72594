"""Texts of any form reach the screen and the file as they should; the engine is scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.editors.neovim.conftest import OpenNeovim, write
from tests.editors.neovim.editor import ROOT, Build, Neovim, Profile, neovim
from tests.editors.neovim.terminal import LIGHT
from tests.editors.scripted_engine import STATEMENT, ScriptedEngine

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

BLOCK = "if a is None:\n        a = 0\n        return a + b"
UNICODE = 'WORDS = "größer, 長い, 🎈"\n\n\ndef add(a, b):\n    """🎈 足す."""\n    \n'
TABS = "func add(a *int, b int) int {\n\t\n}\n"
GO_BLOCK = "if a == nil {\n\t\treturn b\n\t}"


def saved(editor: Neovim, name: str) -> str:
    """Save the file; return what is in it."""
    editor.run("write")
    editor.terminal.await_value(lambda: editor.ask("&modified").strip(), "0".__eq__)
    return (editor.profile.folder / name).read_bytes().decode()


def accept(editor: Neovim) -> None:
    """Accept all, and wait until nothing is grey any more."""
    editor.press("Tab")
    editor.await_no_ghost_text()


def test_a_block_is_shown_and_accepted_as_a_whole(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = BLOCK
    with open_neovim({"block.py": "def add(a, b):\n    \n\n\nprint(add(1, 2))\n"}) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 5)
        editor.type("if")
        editor.await_ghost_text(BLOCK[2:])
        editor.picture("block")
        editor.type(" a")
        editor.await_ghost_text(BLOCK[4:])
        accept(editor)
        assert editor.ask("col('.')").strip() == str(len("        return a + b") + 1)
        expected = f"def add(a, b):\n    {BLOCK}\n\n\nprint(add(1, 2))\n"
        assert saved(editor, "block.py") == expected


def test_a_line_of_a_block_can_be_accepted(open_neovim: OpenNeovim, engine: ScriptedEngine) -> None:
    engine.statement = BLOCK
    with open_neovim({"block.py": "def add(a, b):\n    \n"}) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 5)
        editor.type("if")
        editor.await_ghost_text(BLOCK[2:])
        editor.press("C-Down")
        editor.await_line(f"    {BLOCK.splitlines()[0]}")


def test_lines_end_as_the_file_s_lines_do(open_neovim: OpenNeovim, engine: ScriptedEngine) -> None:
    engine.statement = BLOCK
    with open_neovim({"crlf.py": "def add(a, b):\r\n    \r\n"}) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 5)
        editor.type("if")
        editor.await_ghost_text(BLOCK[2:])
        accept(editor)
        expected = f"def add(a, b):\n    {BLOCK}\n".replace("\n", "\r\n")
        assert saved(editor, "crlf.py") == expected


def test_wide_characters_move_nothing(open_neovim: OpenNeovim) -> None:
    with open_neovim({"unicode.py": UNICODE}) as editor:
        editor.await_status("^fake")
        editor.insert_at(6, 5)
        editor.type("ret")
        editor.await_ghost_text(STATEMENT[3:])
        editor.picture("unicode")
        accept(editor)
        assert saved(editor, "unicode.py") == f"{UNICODE.rstrip()}\n    {STATEMENT}\n"


def test_ghost_text_stands_behind_wide_characters_in_its_line(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = 'word = "🎈 長い" + größe'
    with open_neovim({"wide.py": "def name(größe):\n    \n"}) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 5)
        editor.type('word = "🎈 ')
        editor.await_ghost_text('長い" + größe')
        editor.picture("wide_line")
        editor.press("C-Right")
        editor.await_line('    word = "🎈 長い')
        editor.await_ghost_text('" + größe')
        accept(editor)
        assert saved(editor, "wide.py") == f"def name(größe):\n    {engine.statement}\n"


def test_tabs_are_as_wide_as_those_of_the_file(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = GO_BLOCK
    with open_neovim({"add.go": TABS}) as editor:
        editor.await_status("^fake")
        editor.ask("execute('setlocal tabstop=4 noexpandtab')")
        editor.insert_at(2, 2)
        editor.type("if")
        lines = " a == nil {\n        return b\n    }"
        if editor.profile.build.client == "own" or editor.profile.build.version.startswith("0.11"):
            editor.await_ghost_text(lines)
        else:
            editor.await_ghost_text()
        editor.picture("tabs")
        accept(editor)
        assert saved(editor, "add.go") == TABS.replace("\t", f"\t{GO_BLOCK}")


def test_a_bracket_behind_the_cursor_is_not_doubled(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = "print(a, b)"
    with open_neovim({"call.py": "def show(a, b):\n    print()\n"}) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 11)
        editor.type("a")
        editor.await_ghost_text(", b")
        editor.picture("bracket")
        accept(editor)
        assert saved(editor, "call.py") == "def show(a, b):\n    print(a, b)\n"


def test_a_block_goes_on_behind_the_bracket_at_the_cursor(
    open_neovim: OpenNeovim, engine: ScriptedEngine
) -> None:
    engine.statement = "if all(a):\n        return b"
    with open_neovim({"call.py": "def show(a, b):\n    if all()\n"}) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 12)
        editor.type("a")
        # Neovim itself leaves out the bracket that is there.
        right = ("):\n        return b", ":\n        return b")
        editor.terminal.await_value(editor.ghost_text, right.__contains__)
        editor.picture("bracket_and_block")
        accept(editor)
        assert saved(editor, "call.py") == f"def show(a, b):\n    {engine.statement}\n"


def test_in_light_colours(build: Build, short_folder: Path, engine: ScriptedEngine) -> None:
    engine.statement = BLOCK
    settings = {"server": {"engine": {"socket": str(engine.path)}}}
    profile = Profile(build, short_folder, settings=settings, colours=LIGHT)
    text = (ROOT / "examples" / "job_queue.py").read_text(encoding="utf-8")
    files = write(short_folder, {"block.py": "def add(a, b):\n    \n" + text})
    with neovim(profile, *files) as editor:
        editor.await_status("^fake")
        editor.insert_at(2, 5)
        editor.type("if")
        editor.await_ghost_text(BLOCK[2:])
        editor.picture("block_light")
