"""Windows of a real VS Code with the packaged extension; one for each module of tests."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from tests.editors.conftest import Watch
from tests.editors.scripted_engine import ScriptedEngine, scripted_engine
from tests.editors.vscode import code_server
from tests.editors.vscode.workbench import Workbench, browser_page

ROOT: Final = Path(__file__).parents[3]
PICTURES: Final = ROOT / "build" / "editors" / f"vscode-{code_server.VERSION}"
VSIX: Final = Path(os.environ.get("VSIX", ROOT / "editors" / "vscode" / "dist" / "specengine.vsix"))


@dataclass(frozen=True)
class Window:
    """A workbench, with the folders around it."""

    workbench: Workbench
    folder: Path
    """What is open."""
    state: Path
    """Where the language server and the engine write."""
    data: Path
    """VS Code's own."""

    def trace(self) -> list[dict[str, Any]]:
        """Return the records of all requests so far."""
        path = self.state / "specengine" / "trace.jsonl"
        *lines, _ = path.read_text().split("\n") if path.exists() else [""]
        # What becomes of a suggestion has lines of its own.
        return [record for line in lines if "outcome" in (record := json.loads(line))]

    def log(self) -> str:
        """Return our output channel; nothing where VS Code has no native logger."""
        files = self.data.glob("logs/*/exthost*/specengine.specengine/SpecEngine.log")
        return "".join(file.read_text() for file in files)


@dataclass(frozen=True)
class Setup:
    """What a window is to begin with."""

    files: Mapping[str, str]
    """Names, also below folders, and texts; ``{folder}`` in a text is the folder of all."""
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    extensions: Sequence[Path] = ()
    """Others than ours."""


class OpenWindow(Protocol):
    """Opens a window on the first of the files."""

    def __call__(self, setup: Setup) -> AbstractContextManager[Window]:
        """Yield it."""
        ...


@pytest.fixture(autouse=True)
def _label(record_property: Callable[[str, object], None]) -> None:
    """Tell the report which editor a test ran in."""
    # code-server's version is VS Code's, with 4 in the place of 1.
    record_property("editor", f"VS Code 1.{code_server.VERSION.partition('.')[2]}")


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    """An engine that does as told."""
    # Not in pytest's own folder: the path of a socket may have 107 bytes at most.
    with (
        tempfile.TemporaryDirectory() as folder,
        scripted_engine(Path(folder) / "engine.sock") as engine,
    ):
        yield engine


@pytest.fixture(scope="module")
def open_workbenches() -> list[Workbench]:
    """Those that are open."""
    return []


@pytest.fixture(autouse=True)
def _watched(open_workbenches: list[Workbench], watch: Watch) -> Iterator[None]:
    """Have those pictured that several tests share."""
    with contextlib.ExitStack() as stack:
        for workbench in open_workbenches:
            stack.enter_context(watch(workbench.picture))
        yield


@pytest.fixture(scope="module")
def open_window(
    tmp_path_factory: pytest.TempPathFactory, open_workbenches: list[Workbench]
) -> OpenWindow:
    """A way to open windows with the extension and the engine of this checkout."""
    if not VSIX.is_file():
        pytest.fail(f"{VSIX} is missing: run make vscode")

    @contextlib.contextmanager
    def open_one(setup: Setup) -> Iterator[Window]:
        base = tmp_path_factory.mktemp("window")
        folder, state, run = base / "project", base / "state", base / "run"
        run.mkdir(mode=0o700)
        for name, text in setup.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{folder}", str(folder)), encoding="utf-8", newline="")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        settings = {
            "security.workspace.trust.enabled": False,
            "specengine.python": sys.executable,
            "specengine.engine.idleExitS": 5,
            **setup.settings,
        }
        # Sockets, logs and traces of its own: no engine of another window answers.
        own = {"XDG_RUNTIME_DIR": str(run), "XDG_STATE_HOME": str(state)}
        environment = {**own, **setup.environment}
        profile = code_server.Profile(base / "profile", settings, environment)
        profile.folder.mkdir()
        for vsix in (VSIX, *setup.extensions):
            code_server.install(profile, vsix)
        with code_server.serve(profile) as address, browser_page() as page:
            workbench = Workbench(page, address, folder, PICTURES)
            workbench.load(next(iter(setup.files)))
            open_workbenches.append(workbench)
            try:
                yield Window(workbench, folder, state, profile.folder / "data")
            finally:
                open_workbenches.remove(workbench)

    return open_one
