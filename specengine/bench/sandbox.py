"""Says whether programs that a model has written run to their end, each in a process of its own.

A fresh interpreter without site packages, environment or input, in a session and an empty folder of
its own, limited in time, memory, processes and files. What it prints is lost. It keeps mistakes in;
whoever fears malice runs the whole benchmark in a container or a virtual machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

from specengine.bench import confined


@dataclass(frozen=True)
class Limits:
    """How much one program may take."""

    wall_s: float = 8.0
    """From the start of its process; enough for ``cpu_s`` on a busy machine."""
    cpu_s: int = 3
    """Whole seconds of one core."""
    memory_bytes: int = 1 << 30
    """Of address space, the interpreter's included."""


LIMITS: Final = Limits()


def is_available() -> bool:
    """Whether this system can limit a process; Windows cannot, as Python has it."""
    return sys.platform != "win32" and passes("", LIMITS)


def all_passes(programs: Sequence[str], limits: Limits = LIMITS) -> list[bool]:
    """Return for each program whether it passes; equal ones run once, one a core at a time."""
    distinct = list(dict.fromkeys(programs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(passes, distinct, repeat(limits))
        has_passed = dict(zip(distinct, outcomes, strict=True))
    return [has_passed[program] for program in programs]


def passes(program: str, limits: Limits = LIMITS) -> bool:
    """Run a program; return whether it came to its end, without exception or exit, in time."""
    with tempfile.TemporaryDirectory(prefix="specengine-", ignore_cleanup_errors=True) as folder:
        Path(folder, confined.PROGRAM).write_text(program, "utf-8", errors="replace")
        return _exit_status(Path(folder), limits) == confined.PASSED


def _exit_status(folder: Path, limits: Limits) -> int | None:
    """Run the program of a folder; return its exit status, or None if it took too long."""
    numbers = (limits.wall_s, limits.cpu_s, limits.memory_bytes)
    # -B: compiled modules are files too.
    command = [sys.executable, "-I", "-S", "-B", confined.__file__, *map(str, numbers)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={},
        start_new_session=True,
    ) as process:
        try:
            return process.wait(limits.wall_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill_group(process.pid)


def _kill_group(group: int) -> None:
    """End a process and all that it has started, unless that has left its session."""
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
