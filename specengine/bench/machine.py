"""What a number was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import msgspec
import torch


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hardware and versions, as they stand in a result file."""

    cpu: str
    cores: int
    """Those that this process may use."""
    threads: int
    """Those that torch uses."""
    system: str
    python: str
    torch: str
    transformers: str = ""
    """Empty when it is not installed."""
    xllamacpp: str = ""
    """Empty when it is not installed."""
    load_average: float | None = None
    """Of the last minute, before the run; far above zero means that others were at work."""


def describe() -> Machine:
    """Return this machine as it is now."""
    return Machine(
        cpu=_cpu(),
        cores=_cores(),
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        transformers=_version("transformers"),
        xllamacpp=_version("xllamacpp"),
        load_average=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    )


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
