"""Notes what each test in a real editor came to, for the table in docs/editors/tests.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

RESULTS: Final = Path(__file__).parents[2] / "build" / "editors" / "results.jsonl"


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
