"""Files of tensors. Only safetensors are read: they hold numbers and names, never code.

The library comes without types; this is the one place that gives it some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, cast

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

FILE_ERRORS: Final = (OSError, SafetensorError)
"""What reading raises about a file that is missing or damaged."""


class TensorFile(Protocol):
    """What is used of an open file."""

    def __enter__(self) -> TensorFile: ...

    def __exit__(self, *error: object) -> None: ...

    def keys(self) -> list[str]:
        """Return the names of all tensors."""
        ...

    def metadata(self) -> dict[str, str] | None:
        """Return what was written beside the tensors."""
        ...

    def get_tensor(self, name: str) -> torch.Tensor:
        """Read one tensor."""
        ...


def open_tensors(path: Path, device: str = "cpu") -> TensorFile:
    """Open a file, to read a part of it.

    Raises:  OSError, SafetensorError.
    """
    return cast("TensorFile", safe_open(path, framework="pt", device=device))


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a file.

    Raises:  OSError, SafetensorError.
    """
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors; each must be contiguous and have its own memory.

    Raises:  OSError.
    """
    save = cast(
        "Callable[[dict[str, torch.Tensor], Path, dict[str, str]], None]",
        safetensors.torch.save_file,  # pyright: ignore[reportUnknownMemberType]
    )
    save(dict(tensors), path, {"format": "pt", **(metadata or {})})
