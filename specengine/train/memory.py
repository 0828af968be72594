"""Memory that is freed and wanted again in each step of a training run."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's mallopt."""
_MOST_KEPT: Final = 2**31 - 1


def keep_memory() -> Callable[[], None]:
    """Let freed blocks stay with the process, where the C library is glibc; return how to trim.

    By default it gives large ones back at once, and a third of a step is the kernel clearing new
    ones. Kept for good, they fall to pieces over batches of different shapes: 12 GB after an hour.
    """
    if platform.libc_ver()[0] != "glibc":
        return lambda: None
    library = ctypes.CDLL(None)
    for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
        library.mallopt(parameter, _MOST_KEPT)
    return lambda: library.malloc_trim(0)
