"""The packages of ``corpus.toml`` as folders of source files.

Wheels come by pip and npm packages by npm, each of one pinned version. Only source files are
unpacked, and nothing of them is ever run.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Final

import msgspec

from specengine.errors import ConfigError, LoadError
from specengine.models.staging import OnProgress, locked, staged
from specengine.train.corpus import FILE_BYTES, LANGUAGES, is_held_out

logger = logging.getLogger(__name__)

LISTING: Final = Path(__file__).with_name("corpus.toml")
TIMEOUT_S: Final = 180
"""For one package; one that does not come is left out."""
MAX_SHARE_MISSING: Final = 0.1


class Package(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A package of one registry at one version."""

    version: str
    licence: str


class Listing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``corpus.toml``: packages by their names."""

    pypi: dict[str, Package]
    npm: dict[str, Package]


def read_listing(file: Path = LISTING) -> Listing:
    """Read a list of packages.

    Raises:  ConfigError.
    """
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Listing)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error


def fetch_corpus(
    listing: Listing, folder: Path, on_progress: OnProgress, *, only_held_out: bool = False
) -> None:
    """Bring all packages into subfolders of a folder; those that are there stay.

    Raises:  ConfigError when more than a few cannot be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [(_fetch_wheel, name, name, package) for name, package in listing.pypi.items()]
    wanted += [
        (_fetch_npm, npm_folder(name), name, package) for name, package in listing.npm.items()
    ]
    if only_held_out:
        wanted = [wish for wish in wanted if is_held_out(wish[1])]  # by its folder
    missing: list[str] = []
    for number, (fetch, place, name, package) in enumerate(wanted):
        target = folder / place
        if target.exists():
            continue
        on_progress(number / len(wanted), f"fetching {name} {package.version}")
        try:
            with locked(target), staged(target) as part:
                fetch(name, package.version, part)
        except LoadError as error:
            logger.warning("%s", error)
            missing.append(name)
    library = folder / "python"
    if not library.exists():
        library.symlink_to(sysconfig.get_path("stdlib"), target_is_directory=True)
    if len(missing) > MAX_SHARE_MISSING * len(wanted):
        raise ConfigError(
            f"{len(missing)} of {len(wanted)} packages could not be fetched, {missing[0]} first.",
            hint="Check pip and npm, or give folders of your own: --data DIR.",
        )
    on_progress(1.0, f"{len(wanted) - len(missing)} packages are in {folder}")


def npm_folder(name: str) -> str:
    """Return the name of the folder of an npm package."""
    return f"npm-{name.replace('@', '').replace('/', '-')}"


def _fetch_wheel(name: str, version: str, folder: Path) -> None:
    requirement = f"{name}=={version}"
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory(prefix="specengine-") as scratch:
        _run([*pip, "--no-input", "-d", scratch, requirement], scratch)
        for wheel in Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                for member in archive.infolist():
                    if _is_wanted(member.filename, member.file_size):
                        with archive.open(member) as packed:
                            _write(folder, member.filename, packed)


def _fetch_npm(name: str, version: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="specengine-") as scratch:
        _run(["npm", "pack", "--silent", f"{name}@{version}"], scratch)
        for tarball in Path(scratch).glob("*.tgz"):
            with tarfile.open(tarball) as archive:
                for member, packed in _files(archive):
                    _write(folder, member.name, packed)


def _files(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for member in archive:
        if member.isreg() and _is_wanted(member.name, member.size):
            packed = archive.extractfile(member)
            assert packed is not None, member.name
            yield member, packed


def _is_wanted(name: str, size: int) -> bool:
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and ".." not in path.parts and "\\" not in name
    return is_inside and path.suffix in LANGUAGES and size <= FILE_BYTES[1]


def _write(folder: Path, name: str, packed: IO[bytes]) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LoadError(f"{command[-1]} could not be fetched: {error}.") from error
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise LoadError(f"{command[-1]} could not be fetched: {lines[-1]}.")
