"""Which processes an editor under test has started, directly or not."""

from __future__ import annotations

import os
from pathlib import Path


def pids_of(word: bytes, folder: Path) -> list[int]:
    """Return the processes with a word in their command line and a folder in their environment."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue  # it has just ended
        if word in command and os.fsencode(folder) in environment:
            found.append(int(process.name))
    return found
