"""From ``pass.c`` to a library for this processor, compiled once and kept in the cache.

There is one library for each instruction set that the C file knows; all of them give the same bits.
Without a C compiler there is none, and torch computes the same products instead.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

logger = logging.getLogger(__name__)

SOURCE: Final = Path(__file__).with_name("pass.c")
COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = (
    *("-O3", "-std=gnu11", "-shared", "-fPIC", "-Wall", "-Wno-psabi"),
    # Products and sums are fused only where the source says so: else the bits would depend on
    # the compiler's mood.
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
TIMEOUT_S: Final = 120


@dataclass(frozen=True)
class Variant:
    """An instruction set."""

    name: str
    flags: tuple[str, ...]
    """Of the compiler."""
    needs: frozenset[str]
    """Flags of the processor."""


_AVX512: Final = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mfma")
_AVX512_NEEDS: Final = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"})
X86: Final = (
    Variant(
        "amx",
        (*_AVX512, "-mamx-tile", "-mamx-int8"),
        _AVX512_NEEDS | {"amx_tile", "amx_int8"},
    ),
    Variant("avx512-vnni", _AVX512, _AVX512_NEEDS),
    Variant("avx-vnni", ("-mavx2", "-mfma", "-mavxvnni"), frozenset({"avx2", "fma", "avx_vnni"})),
    Variant("avx2", ("-mavx2", "-mfma"), frozenset({"avx2", "fma"})),
)
ARM: Final = (
    Variant("arm64-dotprod", ("-march=armv8.2-a+dotprod",), frozenset({"asimddp", "atomics"})),
    Variant("arm64", (), frozenset()),
)
CPU_FACTS: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Kernel:
    """A loaded library."""

    variant: str
    file: str
    """Name of the library's file, another one for each source and compiler's flags."""
    library: ctypes.CDLL
    parallel: int
    """Address of GOMP_parallel, or 0: then one thread does all."""
    thread_num: int
    """Address of omp_get_thread_num."""
    team_size: int
    """Address of omp_get_num_threads."""


@functools.cache
def best_kernel(folder: Path) -> Kernel | None:
    """Return the fastest kernel of this machine, or None; libraries are kept in a folder."""
    for variant in usable_variants():
        kernel = load_kernel(variant, folder)
        if kernel is not None:
            return kernel
    return None


def usable_variants() -> list[Variant]:
    """Return what this processor can run, fastest first."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        known = X86
    elif machine in ("arm64", "aarch64"):
        known = ARM
    else:
        return []
    has = _processor_flags()
    return [variant for variant in known if variant.needs <= has]


def load_kernel(variant: Variant, folder: Path) -> Kernel | None:
    """Return the kernel of an instruction set, compiled if it is not there yet, or None."""
    command = [*FLAGS, *variant.flags]
    facts = repr((SOURCE.read_bytes(), command, platform.machine()))
    file = folder / f"pass-{variant.name}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}.so"
    library = _opened(file) if file.exists() else None
    if library is None:
        library = _opened(file) if _compiled(command, file) else None
    if library is None:
        return None
    if not library.specengine_prepare():
        logger.info("the system does not let us use %s", variant.name)
        return None
    return Kernel(variant.name, file.name, library, *_threads())


def _opened(file: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        logger.warning("%s cannot be loaded: %s", file, error)
        return None


def _compiled(command: Sequence[str], target: Path) -> bool:
    """Compile to a file with the first compiler that can; return whether one could."""
    compilers = [path for name in COMPILERS if (path := shutil.which(name))]
    if not compilers:
        logger.info("There is no C compiler, so no native pass.")
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as scratch:
            made = Path(scratch) / target.name
            for compiler in compilers:
                output = _run([compiler, *command, "-o", str(made), str(SOURCE), "-lm"])
                if output is None:
                    os.replace(made, target)  # whole or not at all, whoever else compiles it too
                    return True
                logger.warning("%s did not compile %s:\n%s", compiler, target.stem, output)
    except OSError as error:
        logger.warning("no native pass can be kept in %s: %s", target.parent, error)
    return False


def _run(command: Iterable[str]) -> str | None:
    """Run a command; return its output if it fails."""
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr


def _threads() -> tuple[int, int, int]:
    """Return the addresses of the functions of the OpenMP runtime that torch has loaded.

    A runtime of our own would keep a second team of threads spinning beside torch's.
    """
    folder = Path(torch.__file__).parent / "lib"
    names = [str(path) for pattern in ("libgomp*", "libomp*") for path in folder.glob(pattern)]
    for name in [*names, "libgomp.so.1", "libomp.dylib"]:
        try:
            runtime = ctypes.CDLL(name)
            functions = (
                runtime.GOMP_parallel,
                runtime.omp_get_thread_num,
                runtime.omp_get_num_threads,
            )
        except (OSError, AttributeError):
            continue
        parallel, thread_num, team_size = (
            ctypes.cast(each, ctypes.c_void_p).value or 0 for each in functions
        )
        return parallel, thread_num, team_size
    logger.info("no OpenMP runtime was found: the native pass runs on one thread")
    return 0, 0, 0


def _processor_flags() -> frozenset[str]:
    if platform.system() == "Darwin":
        return ARM[0].needs  # Every Arm processor of Apple's computers has them.
    try:
        lines = CPU_FACTS.read_text("ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    # The first name is that of x86, the other of Arm.
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())
