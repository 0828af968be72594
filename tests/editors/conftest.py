"""Notes what each test in a real editor came to, and takes a picture of where one failed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import pytest

RESULTS: Final = Path(__file__).parents[2] / "build" / "editors" / "results.jsonl"
"""For the table in docs/editors/tests.md."""

Camera = Callable[[str], None]
"""Takes a picture by that name."""

Watch = Callable[[Camera], AbstractContextManager[None]]
"""Has a picture taken if the test fails inside."""

_CAMERAS: Final = pytest.StashKey[list[Camera]]()


class _Notes:
    """Collects the phases of each test; writes a line when it has ended."""

    def __init__(self) -> None:
        self._by_test: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        editor = dict(report.user_properties).get("editor")
        note = self._by_test.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        note["seconds"] += report.duration
        if report.outcome != "passed":
            note["outcome"] = report.outcome
        if report.when == "teardown" and editor is not None:
            self._write({"editor": editor, "test": report.nodeid, **note})

    def _write(self, note: dict[str, Any]) -> None:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(note) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Take part in the run."""
    config.pluginmanager.register(_Notes())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Take pictures of a failure while the editors of fixtures are still open."""
    try:
        yield
    except Exception:
        for camera in item.stash.get(_CAMERAS, []):
            camera(_name_of_failure(item))
        raise


@pytest.fixture
def watch(request: pytest.FixtureRequest) -> Watch:
    """A way to have an editor watched that is open in a fixture, or in the test itself."""
    cameras = request.node.stash.setdefault(_CAMERAS, [])

    @contextlib.contextmanager
    def watched(camera: Camera) -> Iterator[None]:
        cameras.append(camera)
        try:
            yield
        except Exception:
            camera(_name_of_failure(request.node))
            raise
        finally:
            cameras.remove(camera)

    return watched


def _name_of_failure(item: pytest.Item) -> str:
    return f"failed_{getattr(item, 'originalname', item.name)}"
