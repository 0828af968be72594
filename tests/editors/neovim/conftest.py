"""Real Neovims of several builds, with the plugin of this checkout as a package."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import pytest

from tests.editors.conftest import Watch
from tests.editors.neovim.editor import BUILDS, Build, Neovim, Profile, neovim
from tests.editors.scripted_engine import ScriptedEngine, scripted_engine


class OpenNeovim(Protocol):
    """Opens a Neovim on files with these texts; the first is shown."""

    def __call__(
        self, files: Mapping[str, str], settings: Mapping[str, object] | None = None
    ) -> AbstractContextManager[Neovim]:
        """Yield it."""
        ...


@pytest.fixture(scope="module", params=BUILDS, ids=lambda build: build.id)
def build(request: pytest.FixtureRequest) -> Build:
    """A build of Neovim."""
    return request.param


@pytest.fixture(autouse=True)
def _label(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Tell the report which editor a test ran in."""
    if "build" in request.fixturenames:
        record_property("editor", request.getfixturevalue("build").label)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short: that of a socket may have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="nv") as folder:
        yield Path(folder)


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    """An engine that does as told."""
    with (
        tempfile.TemporaryDirectory() as folder,
        scripted_engine(Path(folder) / "engine.sock") as engine,
    ):
        yield engine


@pytest.fixture
def open_neovim(
    build: Build, short_folder: Path, engine: ScriptedEngine, watch: Watch
) -> OpenNeovim:
    """A way to open a Neovim whose server has the scripted engine."""

    @contextlib.contextmanager
    def open_one(
        files: Mapping[str, str], settings: Mapping[str, object] | None = None
    ) -> Iterator[Neovim]:
        # It would write its statement once more behind an accepted one.
        completion = {"lookAhead": False}
        server = {"engine": {"socket": str(engine.path)}, "completion": completion}
        profile = Profile(build, short_folder, settings={"server": server, **(settings or {})})
        with (
            neovim(profile, *write(short_folder, files)) as editor,
            watch(editor.picture),
        ):
            yield editor

    return open_one


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts as they are; return their paths."""
    paths = [folder / name for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="utf-8", newline="")
    return paths
