"""What a user sees of suggestions, with the real engine and the default model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from specengine.models import registry
from tests.editors.vscode.conftest import OpenWindow, Setup, Window

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.model]

ROOT: Final = Path(__file__).parents[3]
MODEL: Final = re.escape(registry.load(own_file=Path("no-own-models.toml")).default)

ABOVE: Final = '                "error": job.error,\n'
"""What stands above the line that is typed; it stands in the file once."""

TYPED: Final = '"started_at": '
WITH_TEXT: Final = ("shown", "adopted", "cached")
NUM_FILES: Final = 12
"""One for each test, so that none depends on another."""


class Editing:
    """One file in the window, with the cursor in a line of blanks."""

    def __init__(self, window: Window, name: str) -> None:
        self.window = window
        self.workbench = window.workbench
        self.before = max((record["request"] for record in window.trace()), default=0)
        before, above, _ = (window.folder / name).read_text().partition(ABOVE)
        indentation = len(ABOVE) - len(ABOVE.lstrip())
        self.workbench.open(name, (before + above).count("\n") + 1, indentation + 1)

    def ask(self) -> str:
        """Type the beginning of an entry; return the grey text behind it."""
        self.workbench.type(TYPED)
        return self.workbench.await_ghost_text()

    def await_record(self) -> int:
        """Wait for the record of what is shown: it is written a pass later; return its number."""
        records = self.window.trace

        def last() -> str:
            shown = [each["request"] for each in records() if each["outcome"] in WITH_TEXT]
            return str(max(shown, default=0))

        return int(self.workbench.await_value(last, lambda number: int(number) > self.before))

    def line(self) -> str:
        """Return the text in the line, behind the blanks."""
        lines = (line.strip() for line in self.workbench.text().split("\n"))
        return next((line for line in lines if line.startswith(TYPED.strip())), "")

    def await_line(self, expected: str) -> None:
        """Wait until the line is as expected."""
        self.workbench.await_value(self.line, lambda line: line == expected.rstrip())


@pytest.fixture(scope="module")
def window(open_window: OpenWindow) -> Iterator[Window]:
    text = (ROOT / "examples" / "job_queue.py").read_text(encoding="utf-8")
    text = text.replace(ABOVE, f"{ABOVE}{' ' * (len(ABOVE) - len(ABOVE.lstrip()))}\n")
    files = {f"queue_{number:02}.py": text for number in range(NUM_FILES)}
    with open_window(Setup(files)) as window:
        window.workbench.await_status(f"^{MODEL}")
        yield window


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return count()


@pytest.fixture
def editing(window: Window, numbers: Iterator[int]) -> Editing:
    return Editing(window, f"queue_{next(numbers):02}.py")


def test_ghost_text_appears_and_the_status_bar_says_how_long_it_took(editing: Editing) -> None:
    assert editing.ask() != ""
    editing.await_line(TYPED)
    editing.workbench.await_status(rf"^{MODEL} \d+(\.\d)? m?s$")
    editing.workbench.picture("ghost_text")


def test_typing_along_keeps_it_and_asks_nothing_of_the_engine(editing: Editing) -> None:
    suggested = editing.ask()
    before = editing.await_record()
    for num_typed in range(1, 5):
        editing.workbench.type(suggested[num_typed - 1])
        # A bracket that the editor has closed by itself is not suggested once more.
        rests = (suggested[num_typed:], suggested[num_typed:-1])
        editing.workbench.await_value(editing.workbench.ghost_text, rests.__contains__)
    editing.workbench.picture("typing_along")
    later = [record for record in editing.window.trace() if record["request"] > before]
    assert {record["outcome"] for record in later} <= {"cached", "adopted", "cancelled"}


def test_a_key_that_disagrees_replaces_it(editing: Editing) -> None:
    suggested = editing.ask()
    key = "x" if not suggested.startswith("x") else "y"
    editing.workbench.type(key)
    assert not editing.workbench.ghost_text().startswith(suggested[:2])
    editing.await_line(f"{TYPED}{key}")
    editing.workbench.picture("disagreeing_key")


def test_tab_accepts(editing: Editing) -> None:
    first = editing.ask().split("\n")[0]
    editing.workbench.press("Tab")
    editing.await_line(f"{TYPED}{first}")
    editing.workbench.picture("accepted")


def test_undo_takes_back_what_tab_accepted(editing: Editing) -> None:
    first = editing.ask().split("\n")[0]
    editing.workbench.press("Tab")
    editing.await_line(f"{TYPED}{first}")
    editing.workbench.press("Control+Z")
    editing.await_line(TYPED)


def test_a_word_can_be_accepted(editing: Editing) -> None:
    suggested = editing.ask()
    editing.workbench.press("Control+ArrowRight")
    editing.workbench.await_value(editing.line, lambda line: len(line) > len(TYPED))
    accepted = editing.line()[len(TYPED) :]
    assert suggested.startswith(accepted)
    assert accepted != suggested.split("\n")[0]
    editing.workbench.picture("accepted_word")


def test_escape_dismisses(editing: Editing) -> None:
    editing.ask()
    editing.workbench.press("Escape")
    editing.workbench.await_value(editing.workbench.ghost_text, lambda text: text == "")
    editing.await_line(TYPED)
    editing.workbench.picture("dismissed")


def test_grey_is_grey_in_dark_colours_too(editing: Editing) -> None:
    suggested = editing.ask()
    editing.workbench.choose_theme("Dark Modern")
    editing.workbench.type(suggested[0])
    editing.workbench.await_ghost_text(suggested[1:])
    editing.workbench.picture("ghost_text_dark")
    editing.workbench.choose_theme("Light Modern")
