"""Runs one program in this process, after giving up most of what the process could do.

A script for ``sandbox``, in an interpreter of its own that finds the standard library only. Its
arguments are the numbers of ``sandbox.Limits``; the program is a file in the current folder.

A guard against mistakes, not against an attacker: the system holds the limits, but what the audit
hook refuses can be had by somebody who means to. Files can be read.

Source:  Chen et al. 2021, arXiv 2107.03374, section 2.3; PEP 578 on audit hooks.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any, Final

PROGRAM: Final = "program.py"
PASSED: Final = 87
"""Exit status after the program's last line; a program that exits by itself has not passed."""
FAILED: Final = 1
NOT_CONFINED: Final = 88
"""Exit status when a limit could not be set; the program has not run."""

REFUSED: Final = ("os.", "shutil.", "subprocess.", "socket.", "ctypes.", "fcntl.", "resource.")
"""Beginnings of audit events: processes, signals, changes of files, the network, native code."""
GRANTED: Final = frozenset({"os.listdir", "os.scandir", "os.walk", "os.fwalk"})
"""Events that begin so and are harmless; imports need the first."""
WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main(wall_s: float, cpu_s: int, memory_bytes: int) -> int:
    """Run the program within limits and return an exit status."""
    with open(PROGRAM, encoding="utf-8") as file:
        source = file.read()
    try:
        _limit(wall_s, cpu_s, memory_bytes)
    except (ImportError, OSError, ValueError):
        return NOT_CONFINED
    program = sys.modules["program"] = types.ModuleType("program")
    sys.addaudithook(_refuse)
    try:
        exec(compile(source, PROGRAM, "exec"), program.__dict__)
    except BaseException:
        return FAILED
    return PASSED


def _limit(wall_s: float, cpu_s: int, memory_bytes: int) -> None:
    # Windows has no such module, and the parent, which imports this one, must find that out.
    import resource
    import signal

    limits = {
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        # No process or thread more. It does not hold root, whose forks the hook refuses.
        resource.RLIMIT_NPROC: 0,
    }
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    # Should the parent be killed, nobody else would end a program that sleeps.
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        _, mode, flags = arguments
        is_refused = bool(flags & WRITES) or any(letter in (mode or "") for letter in "wax+")
    else:
        is_refused = event.startswith(REFUSED) and event not in GRANTED
    if is_refused:
        raise PermissionError(f"{event} is not for programs under test")


if __name__ == "__main__":
    # Nothing that the program has registered for the end of the process runs.
    os._exit(main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
