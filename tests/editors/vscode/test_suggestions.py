"""What a user sees of suggestions, whoever writes them.

Once the real engine with the default model, and once an engine that does as told: what that one
writes does not change with the model.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Container, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from specengine.models import registry
from tests.editors.processes import pids_of
from tests.editors.scripted_engine import ScriptedEngine
from tests.editors.vscode.conftest import OpenWindow, Setup, Window
from tests.editors.vscode.workbench import MODEL_PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.model]

ROOT: Final = Path(__file__).parents[3]
MODEL: Final = re.escape(registry.load(own_file=Path("no-own-models.toml")).default)

ABOVE: Final = '                "error": job.error,\n'
"""What stands above the line that is typed; it stands in the file once."""

INDENTATION: Final = len(ABOVE) - len(ABOVE.lstrip())
TYPED: Final = '"started_at": '
ENTRIES: Final = "".join(
    f'"{name}": job.{name},\n{" " * INDENTATION}' for name in ("started_at", "failed", "tags")
)
"""What the engine that does as told writes there."""

WITH_TEXT: Final = ("shown", "adopted", "cached")
NUM_FILES: Final = 12
"""One for each test, so that none depends on another."""


class Editing:
    """One file in the window, with the cursor in a line of blanks."""

    def __init__(self, window: Window, name: str) -> None:
        self.window = window
        self.workbench = window.workbench
        self.name = name
        self.version = 1
        """Of the document: each key and each accepted text is one change."""
        before, above, _ = (window.folder / name).read_text().partition(ABOVE)
        self._line = (before + above).count("\n") + 1
        self.open(INDENTATION + 1)

    def open(self, column: int) -> None:
        """Go to a place in the line of blanks."""
        self._since = self.last_request()
        self.workbench.open(self.name, self._line, column)

    def type(self, text: str) -> None:
        """Type a text, a key at a time."""
        self.workbench.type(text)
        self.version += len(text)

    def press(self, key: str) -> None:
        """Press a key that changes the text."""
        self.workbench.press(key)
        self.version += 1

    def ask(self) -> str:
        """Type the beginning of an entry; return the grey text behind it."""
        self.type(TYPED)
        return self.settled()

    def settled(self) -> str:
        """Return the grey text when it belongs to the last key, and the record of it is written."""
        self.await_served(WITH_TEXT)
        return self.workbench.await_ghost_text()

    def await_served(self, outcomes: Container[str]) -> None:
        """Wait for a record of the text as it is."""

        def is_served() -> bool:
            served = [each for each in self.records() if each["document_version"] == self.version]
            return any(each["outcome"] in outcomes for each in served)

        self.workbench.await_value(is_served, bool, MODEL_PATIENCE_S)

    def records(self) -> list[dict[str, Any]]:
        """Return those of requests since this file was gone to."""
        return [each for each in self.window.trace() if each["request"] > self._since]

    def last_request(self) -> int:
        """Return the number of the last one that has a record."""
        return max((each["request"] for each in self.window.trace()), default=0)

    def entries(self) -> str:
        """Return what is typed or accepted, from its line on."""
        _, begin, rest = self.workbench.text().partition(TYPED.rstrip())
        return begin + rest

    def line(self) -> str:
        """Return the text in the line, behind the blanks."""
        return self.entries().partition("\n")[0]

    def await_line(self, expected: str) -> None:
        """Wait until the line is as expected."""
        self.workbench.await_value(self.line, expected.rstrip().__eq__)


@pytest.fixture(scope="module", params=["scripted_engine", "real_engine"])
def model(request: pytest.FixtureRequest, engine: ScriptedEngine) -> str:
    """Who writes, as a pattern; ``fake`` is the engine that does as told."""
    engine.statement = ENTRIES.rstrip()
    return MODEL if request.param == "real_engine" else "fake"


@pytest.fixture(scope="module")
def window(open_window: OpenWindow, model: str, engine: ScriptedEngine) -> Iterator[Window]:
    text = (ROOT / "examples" / "job_queue.py").read_text(encoding="utf-8")
    text = text.replace(ABOVE, f"{ABOVE}{' ' * INDENTATION}\n")
    files = {f"queue_{number:02}.py": text for number in range(NUM_FILES)}
    settings = {"specengine.engine.socket": str(engine.path)} if model == "fake" else {}
    with open_window(Setup(files, settings)) as window:
        window.workbench.await_status(f"^{model}")
        yield window


@pytest.fixture(scope="module")
def numbers(model: str) -> Iterator[int]:
    """Those of files that no test has had; each window has files of its own."""
    return count()


@pytest.fixture
def editing(window: Window, numbers: Iterator[int]) -> Editing:
    return Editing(window, f"queue_{next(numbers):02}.py")


def test_ghost_text_appears_and_the_status_bar_says_how_long_it_took(
    editing: Editing, model: str
) -> None:
    assert editing.ask() != ""
    editing.await_line(TYPED)
    editing.workbench.await_status(rf"^{model} \d+(\.\d)? m?s$")
    editing.workbench.picture("ghost_text")


def test_typing_along_keeps_it_and_asks_nothing_of_the_engine(editing: Editing) -> None:
    suggested = editing.ask()
    before = editing.last_request()
    for num_typed in range(1, 5):
        editing.type(suggested[num_typed - 1])
        # A bracket that the editor has closed by itself is not suggested once more.
        rests = (suggested[num_typed:], suggested[num_typed:-1])
        editing.workbench.await_value(editing.workbench.ghost_text, rests.__contains__)
    editing.settled()
    editing.workbench.picture("typing_along")
    later = {each["outcome"] for each in editing.records() if each["request"] > before}
    assert later <= {"cached", "adopted", "superseded", "cancelled"}
    assert "cached" in later or "adopted" in later


def test_a_key_that_disagrees_replaces_it(editing: Editing) -> None:
    suggested = editing.ask()
    key = "x" if not suggested.startswith("x") else "y"
    editing.type(key)
    editing.await_line(f"{TYPED}{key}")
    editing.workbench.await_value(editing.workbench.ghost_text, is_none_of(suggested))
    editing.await_served((*WITH_TEXT, "empty"))
    editing.workbench.picture("disagreeing_key")
    assert is_none_of(suggested)(editing.workbench.ghost_text())
    assert editing.line() == f"{TYPED}{key}"


def test_tab_accepts_and_in_the_next_line_the_next_one_is_there(editing: Editing) -> None:
    first = editing.ask()
    editing.press("Tab")
    editing.await_line(f"{TYPED}{first}")
    editing.press("Enter")
    second = editing.settled()
    editing.press("Tab")
    both = f"{TYPED}{first}\n{' ' * INDENTATION}{second}\n"
    editing.workbench.await_value(editing.entries, lambda text: text.startswith(both))
    editing.workbench.picture("accepted")


def test_undo_takes_back_what_tab_accepted(editing: Editing) -> None:
    first = editing.ask().split("\n")[0]
    editing.press("Tab")
    editing.await_line(f"{TYPED}{first}")
    editing.press("Control+Z")
    editing.await_line(TYPED)


def test_a_word_can_be_accepted(editing: Editing) -> None:
    suggested = editing.ask()
    editing.press("Control+ArrowRight")
    editing.workbench.await_value(editing.line, lambda line: len(line) > len(TYPED))
    accepted = editing.line()[len(TYPED) :]
    assert suggested.startswith(accepted)
    assert accepted != suggested.split("\n")[0]
    editing.workbench.await_ghost_text(suggested[len(accepted) :])
    editing.workbench.picture("accepted_word")


def test_escape_dismisses(editing: Editing) -> None:
    editing.ask()
    editing.workbench.press("Escape")
    editing.workbench.await_no_ghost_text()
    editing.await_line(TYPED)
    editing.workbench.picture("dismissed")


def test_two_files_in_turn(editing: Editing, window: Window, numbers: Iterator[int]) -> None:
    first = editing.ask()
    other = Editing(window, f"queue_{next(numbers):02}.py")
    assert other.ask() == first
    editing.open(INDENTATION + len(TYPED) + 1)
    editing.type(first[0])
    editing.workbench.await_ghost_text(first[1:])
    editing.await_line(f"{TYPED}{first[0]}")


def test_grey_is_grey_in_dark_colours_too(editing: Editing) -> None:
    suggested = editing.ask()
    editing.workbench.choose_theme("Dark Modern")
    editing.type(suggested[0])
    editing.workbench.await_ghost_text(suggested[1:])
    editing.workbench.picture("ghost_text_dark")
    editing.workbench.choose_theme("Light Modern")


@pytest.mark.parametrize("model", ["real_engine"], indirect=True)
def test_an_engine_killed_in_the_middle_of_a_word_comes_back(editing: Editing) -> None:
    editing.ask()
    (pid,) = editing.workbench.await_value(
        lambda: engine_pids(editing.window), lambda pids: len(pids) == 1
    )
    os.kill(pid, signal.SIGKILL)
    editing.type("self._clo")
    editing.await_line(f"{TYPED}self._clo")
    editing.workbench.picture("engine_killed")
    editing.workbench.await_value(
        lambda: engine_pids(editing.window), lambda pids: len(pids) == 1 and pid not in pids
    )
    editing.workbench.await_status(f"^{MODEL}")
    editing.type("c")
    assert editing.settled() != ""
    assert editing.line() == f"{TYPED}self._cloc"
    editing.workbench.picture("engine_back")
    (notice,) = editing.workbench.notices()
    assert "started again" in notice


def is_none_of(suggested: str) -> Callable[[str], bool]:
    """Return whether a grey text is not what was there, moved by a key or not."""
    return lambda grey: not grey.startswith((suggested[:2], suggested[1:3]))


def engine_pids(window: Window) -> list[int]:
    """Return the engines that listen for a window."""
    return pids_of(b"\0serve\0", window.state)
