"""What a user sees of suggestions, whoever writes them.

Once the real engine with the default model, and once an engine that does as told: what that one
writes does not change with the model.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from specengine.models import registry
from tests.editors.conftest import Watch
from tests.editors.neovim.conftest import write
from tests.editors.neovim.editor import ROOT, Build, Neovim, Profile, neovim
from tests.editors.neovim.terminal import MODEL_PATIENCE_S
from tests.editors.scripted_engine import ScriptedEngine

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.model]

MODEL: Final = re.escape(registry.load(own_file=Path("no-own-models.toml")).default)

ABOVE: Final = '                "error": job.error,\n'
"""What stands above the line that is typed; it stands in the file once."""

INDENTATION: Final = len(ABOVE) - len(ABOVE.lstrip())
TYPED: Final = '"started_at": '
LINE: Final = " " * INDENTATION + TYPED
ENTRIES: Final = "".join(
    f'"{name}": job.{name},\n{" " * INDENTATION}' for name in ("started_at", "failed", "tags")
)
"""What the engine that does as told writes there."""

WITH_TEXT: Final = ("shown", "adopted", "cached")


@pytest.fixture(scope="module")
def run_folder() -> Iterator[Path]:
    """One engine for all tests of this file."""
    with tempfile.TemporaryDirectory(prefix="nv") as folder:
        yield Path(folder)


@dataclass(frozen=True)
class Writer:
    """Who writes."""

    settings: Mapping[str, object]
    model: str
    """As a pattern."""


@pytest.fixture(params=["scripted_engine", "real_engine"])
def writer(request: pytest.FixtureRequest, engine: ScriptedEngine) -> Writer:
    if request.param == "real_engine":
        return Writer({"engine": {"idleExitS": 20}}, MODEL)
    engine.statement = ENTRIES.rstrip()
    return Writer({"engine": {"socket": str(engine.path)}}, "fake")


@pytest.fixture
def editor(
    build: Build, short_folder: Path, run_folder: Path, writer: Writer, watch: Watch
) -> Iterator[Neovim]:
    """A Neovim with a real file, inserting in an empty line of it."""
    text = (ROOT / "examples" / "job_queue.py").read_text(encoding="utf-8")
    before, above, after = text.partition(ABOVE)
    text = f"{before}{above}{' ' * INDENTATION}\n{after}"
    environment = {"XDG_RUNTIME_DIR": str(run_folder)}
    profile = Profile(build, short_folder, environment, {"server": writer.settings})
    files = {"job_queue.py": text, "second.py": text}
    with neovim(profile, *write(short_folder, files)) as editor, watch(editor.picture):
        editor.await_status(f"^{writer.model}")
        editor.insert_at((before + above).count("\n") + 1, INDENTATION + 1)
        yield editor


def suggestion(editor: Neovim) -> str:
    """Type the beginning of an entry; return the grey text behind it."""
    editor.type(TYPED)
    editor.await_line(LINE)
    return settled(editor)


def settled(editor: Neovim) -> str:
    """Return the grey text when it belongs to the last key, and the record of it is written."""
    await_served(editor, WITH_TEXT)
    return editor.await_ghost_text()


def await_served(editor: Neovim, outcomes: Container[str]) -> None:
    """Wait for a record of the text as it is."""

    def is_served() -> bool:
        tick = int(editor.ask("b:changedtick"))
        served = [each for each in editor.trace() if each["document_version"] == tick]
        return any(each["outcome"] in outcomes for each in served)

    editor.terminal.await_value(is_served, bool, MODEL_PATIENCE_S)


def last_request(editor: Neovim) -> int:
    return max((record["request"] for record in editor.trace()), default=0)


def test_ghost_text_appears_and_the_status_line_says_how_long_it_took(
    editor: Neovim, writer: Writer
) -> None:
    assert suggestion(editor) != ""
    editor.await_status(rf"^{writer.model} \d+(\.\d)? m?s$")
    editor.picture("ghost_text")


def test_typing_along_keeps_it_and_asks_nothing_of_the_engine(editor: Neovim) -> None:
    suggested = suggestion(editor)
    before = last_request(editor)
    for num_typed in range(1, 5):
        editor.type(suggested[num_typed - 1])
        editor.await_ghost_text(suggested[num_typed:])
    settled(editor)
    editor.picture("typing_along")
    later = {record["outcome"] for record in editor.trace() if record["request"] > before}
    assert later <= {"cached", "adopted", "superseded", "cancelled"}
    assert "cached" in later or "adopted" in later


def test_a_key_that_disagrees_replaces_it(editor: Neovim) -> None:
    suggested = suggestion(editor)
    key = "x" if not suggested.startswith("x") else "y"
    editor.type(key, 0)
    editor.terminal.await_value(editor.terminal.words, lambda words: TYPED + key in words)
    assert not editor.ghost_text().startswith(suggested[1:3])
    await_served(editor, (*WITH_TEXT, "empty"))
    assert not editor.ghost_text().startswith(suggested[1:3])
    assert editor.line() == LINE + key
    editor.picture("disagreeing_key")


def test_tab_accepts_and_in_the_next_line_the_next_one_is_there(editor: Neovim) -> None:
    first = suggestion(editor)
    editor.press("Tab")
    editor.await_text(LINE + first)
    editor.press("Enter")
    second = settled(editor)
    editor.press("Tab")
    editor.await_text(f"{LINE}{first}\n{' ' * INDENTATION}{second}")
    editor.picture("accepted")


def test_undo_takes_back_what_tab_accepted(editor: Neovim) -> None:
    before = editor.text()
    first = suggestion(editor).split("\n")[0]
    editor.press("Tab")
    editor.await_text(LINE + first)
    editor.normal()
    editor.press("u")
    empty_line = " " * INDENTATION
    expected = before.replace(f"{ABOVE}{empty_line}\n", f"{ABOVE}{LINE}\n")
    editor.terminal.await_value(editor.text, expected.__eq__)


def test_a_word_can_be_accepted(editor: Neovim) -> None:
    suggested = suggestion(editor)
    editor.press("C-Right")
    editor.terminal.await_value(editor.line, lambda line: len(line) > len(LINE))
    accepted = editor.line()[len(LINE) :]
    assert suggested.startswith(accepted)
    assert accepted != suggested.split("\n")[0]
    editor.await_ghost_text(suggested[len(accepted) :])
    editor.picture("accepted_word")


def test_escape_dismisses(editor: Neovim) -> None:
    suggestion(editor)
    editor.normal()
    editor.await_no_ghost_text()
    assert editor.line() == LINE
    editor.picture("escaped")


def test_two_files_in_turn(editor: Neovim) -> None:
    first = suggestion(editor)
    line = int(editor.ask("line('.')"))
    editor.edit(editor.profile.folder / "second.py")
    editor.insert_at(line, INDENTATION + 1)
    assert suggestion(editor) == first
    editor.run("buffer 1")
    editor.terminal.await_value(lambda: editor.ask("expand('%:t')"), "job_queue.py".__eq__)
    editor.insert_at(line, len(LINE) + 1)
    assert settled(editor) == first


@pytest.mark.parametrize("writer", ["real_engine"], indirect=True)
def test_an_engine_killed_in_the_middle_of_a_word_comes_back(
    editor: Neovim, run_folder: Path
) -> None:
    suggestion(editor)
    (pid,) = editor.terminal.await_value(
        lambda: engine_pids(run_folder), lambda pids: len(pids) == 1
    )
    os.kill(pid, signal.SIGKILL)
    editor.type("self._clo", 0.1)
    editor.await_line(LINE + "self._clo")
    editor.picture("engine_killed")
    editor.terminal.await_value(
        lambda: engine_pids(run_folder), lambda pids: len(pids) == 1 and pid not in pids
    )
    editor.await_status(f"^{MODEL}")
    editor.type("c")
    assert settled(editor) != ""
    assert editor.line() == LINE + "self._cloc"
    notices = [line for line in editor.messages().splitlines() if "SpecEngine" in line]
    assert len(notices) == 1, notices
    editor.picture("engine_back")


def engine_pids(run_folder: Path) -> list[int]:
    """Return the engines that listen in a folder."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has just ended
        if b"\0serve\0" in command and os.fsencode(run_folder) in command:
            found.append(int(folder.name))
    return found
