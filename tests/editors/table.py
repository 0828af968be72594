"""Writes docs/editors/tests.md from the notes of the tests in real editors; see run.sh.

python -m tests.editors.table
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections import defaultdict
from typing import Any, Final

from tests.editors.conftest import RESULTS

PAGE: Final = RESULTS.parents[2] / "docs" / "editors" / "tests.md"

HEAD: Final = (
    "# Tests in real editors\n\n"
    "Written by `make editors`, which runs `tests/editors/run.sh`: seconds of each scenario, with "
    "the start of its editor, on {machine}. Most of the time goes into starting editors, so the "
    "figures are no measure of the product.\n\n"
    "`tests/editors/neovim` drives Neovim in tmux, `tests/editors/vscode` VS Code in Chromium; "
    "what they look at is the screen. In *suggestions with the real engine* the default model "
    "writes, in all others an engine that does as told.\n\n"
    "Each change must pass what `.ci/editors` runs of them: *suggestions*, *engine states* and "
    "*forms of text* in VS Code 1.139.1, Neovim 0.11.4 and 0.12-dev; with the real engine, that "
    "ghost text appears and that a killed engine comes back.\n"
)


def main() -> int:
    """Write the page; return 1 when not all passed, as when some were left out."""
    notes = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    newest = {(note["editor"], _scenario(note["test"])): note for note in notes}
    editors = sorted({editor for editor, _ in newest})
    by_part: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for (editor, (part, name)), note in newest.items():
        by_part[part][name][editor] = note
    machine = f"{platform.system()} with {os.cpu_count()} cores"
    lines = [HEAD.format(machine=machine)]
    for part, scenarios in sorted(by_part.items()):
        lines += [f"## {part}\n", _row(["scenario", *editors]), _row(["---"] * (len(editors) + 1))]
        for name, cells in sorted(scenarios.items()):
            lines.append(_row([name, *(_cell(cells.get(editor)) for editor in editors)]))
        lines.append("")
    passed = sum(note["outcome"] == "passed" for note in newest.values())
    lines.append(f"{passed} of {len(newest)} passed.")
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n")
    return int(passed < len(newest))


def _scenario(test: str) -> tuple[str, str]:
    """Return a file and a test of it as people read them."""
    match = re.search(r"test_(\w+)\.py::test_(\w+)", test)
    assert match is not None, test
    part, name = (words.replace("_", " ") for words in match.groups())
    writer = " with the real engine" if "real_engine]" in test else ""
    return part.capitalize() + writer, name


def _cell(note: dict[str, Any] | None) -> str:
    if note is None:
        return ""
    seconds = f"{note['seconds']:.1f}"
    return seconds if note["outcome"] == "passed" else f"**{note['outcome']}**"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
