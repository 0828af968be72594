"""Folders that appear whole or not at all, made by one process at a time.

Knows files, locks and hashes; knows nothing of models.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import platformdirs
from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

OnProgress: TypeAlias = Callable[[float, str], None]
"""Called with the fraction done, 0 to 1, and a few words on what is being done."""

CACHE_VARIABLE: Final = "SPECENGINE_CACHE"
CHUNK_BYTES: Final = 1 << 20
"""Read at once."""

WAIT_S: Final = 0.5
"""Between two calls of `on_progress` while another process holds the lock."""


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the folder below which everything lies that can be made or fetched again."""
    if cache_dir is not None:
        return cache_dir
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("specengine")


@contextmanager
def locked(target: Path, on_progress: OnProgress | None = None) -> Generator[None]:
    """Hold the one lock for making `target`; a second process waits here.

    The operating system frees the lock of a killed process. An error of `on_progress` ends the
    wait.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.parent / f".{target.name}.lock")
    timeout_s = 0.0
    while not _try_acquire(lock, timeout_s):
        (on_progress or no_progress)(0.0, "waiting for another process that fetches this model")
        timeout_s = WAIT_S
    try:
        yield
    finally:
        lock.release()


@contextmanager
def staged(target: Path) -> Generator[Path]:
    """Yield an empty folder that becomes `target` in one step if the block succeeds.

    The caller holds `locked(target)`, so older staging folders belong to killed processes and
    are removed. An older `target` is replaced.
    """
    for stale in target.parent.glob(f".{target.name}.part-*"):
        logger.info("removing %s, left by a process that was killed", stale.name)
        shutil.rmtree(stale, ignore_errors=True)
    part = target.parent / f".{target.name}.part-{os.getpid()}"
    part.mkdir()
    try:
        yield part
        if target.exists():
            shutil.rmtree(target)
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def hash_file(path: Path, on_progress: OnProgress | None = None) -> str:
    """Return the sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    size, done = max(path.stat().st_size, 1), 0
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            (on_progress or no_progress)(done / size, f"checking {path.name}")
    return digest.hexdigest()


def scaled(on_progress: OnProgress, start: float, end: float) -> OnProgress:
    """Return a callback whose 0 to 1 is `start` to `end` of the given one."""

    def report(fraction: float, detail: str) -> None:
        on_progress(start + (end - start) * min(max(fraction, 0.0), 1.0), detail)

    return report


def no_progress(fraction: float, detail: str) -> None:
    """Tell nobody."""


def _try_acquire(lock: FileLock, timeout_s: float) -> bool:
    try:
        lock.acquire(timeout=timeout_s)
    except Timeout:
        return False
    return True
