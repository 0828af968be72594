"""Makes the pictures in the README of the plugin for Neovim, with the default model.

.venv/bin/python -m tests.editors.neovim.pictures
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.editors.neovim.editor import BUILDS, ROOT, Profile, neovim
from tests.editors.neovim.terminal import DARK, LIGHT, MODEL_PATIENCE_S, Colours

ABOVE: Final = "        return sorted(job for job in self.jobs.values() if job.state == FAILED)\n"
LINES: Final = (
    "def running_jobs(self) -> list[Job]:",
    '"""Return the jobs that run, most urgent first."""',
)

ALONG: Final = "return "


def main() -> None:
    """Write docs/neovim-dark.svg and docs/neovim-light.svg."""
    for name, colours in (("dark", DARK), ("light", LIGHT)):
        with tempfile.TemporaryDirectory(prefix="nv") as folder:
            _draw(Path(folder), name, colours)


def _draw(folder: Path, name: str, colours: Colours) -> None:
    text = (ROOT / "examples" / "job_queue.py").read_text(encoding="utf-8")
    before, above, after = text.partition(ABOVE)
    path = folder / "job_queue.py"
    path.write_text(f"{before}{above}\n    \n{after}", encoding="utf-8")
    settings = {"server": {"engine": {"idleExitS": 20}}}
    with neovim(Profile(BUILDS[0], folder, settings=settings, colours=colours), path) as editor:
        editor.await_status(r"^smollm2\S*$")
        number = (before + above).count("\n") + 2
        editor.insert_at(number, 5)
        editor.ask(f"winrestview({{'topline': {number - 8}}})")
        for line in LINES:
            editor.type(line)
            editor.press("Enter")
        # Typed along, so that the time in the status line is that of such a key.
        for typed in range(1, len(ALONG) + 1):
            editor.type(ALONG[typed - 1])
            rest = f"{ALONG[typed:]}sorted("
            editor.terminal.await_value(
                editor.ghost_text,
                lambda grey, rest=rest: grey.startswith(rest),
                MODEL_PATIENCE_S,
            )
        editor.await_status(r" \d+ ms$")
        editor.picture(f"neovim-{name}", ROOT / "docs")


if __name__ == "__main__":
    main()
