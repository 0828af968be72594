"""What may lie in the file of a head's weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from specengine.errors import LoadError
from specengine.models.tensor_files import FILE_ERRORS, read_tensors

MAPS: Final = ("d2t", "t2d")
UNUSED: Final = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")
"""Endings of tensors that some files hold though no network needs them."""
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32)


def read_head_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file: numbers, norms and biases in float32.

    Raises:  LoadError when it is missing, damaged, or holds tensors of another type.
    """
    try:
        tensors = read_tensors(path)
    except FILE_ERRORS as error:
        raise LoadError(f"{path} cannot be read: {error}.", hint="Fetch the head again.") from error
    return checked(tensors, path)


def checked(tensors: Mapping[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors that a network may need, vectors in float32.

    Raises:  LoadError for numbers that are no floats, where they are not ``d2t`` or ``t2d``.
    """
    wanted = {"d2t": (torch.int64,), "t2d": (torch.bool,)}
    for name, tensor in tensors.items():
        if tensor.dtype not in wanted.get(name, _FLOATS):
            kind = str(tensor.dtype).removeprefix("torch.")
            raise LoadError(f"{name} in {path} is {kind}, which a head cannot have there.")
    return {
        name: each.float() if each.ndim == 1 and name not in MAPS else each
        for name, each in tensors.items()
        if not name.endswith(UNUSED)
    }


def check_blocks(tensors: Mapping[str, torch.Tensor], num_blocks: int, path: Path) -> None:
    """Refuse weights with other layers than a config promises.

    Raises:  LoadError.
    """
    found = num_blocks_of(tensors)
    if found != num_blocks:
        raise LoadError(f"{path} promises {num_blocks} layers, but the weights have {found}.")


def num_blocks_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return how many layers there are tensors of."""
    return len({name.split(".")[1] for name in tensors if name.startswith("layers.")})


def draft_ids_of(d2t: torch.Tensor, vocab_size: int, path: Path) -> torch.Tensor:
    """Return the target's tokens by the numbers of the head's.

    Raises:  LoadError when one is no token of the target, or two are the same.
    """
    ids = torch.arange(d2t.numel()) + d2t.flatten()
    if d2t.ndim != 1 or len(ids) == 0 or not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise LoadError(
            f"d2t in {path} points outside the target's {vocab_size} tokens.",
            hint="Fetch the head again.",
        )
    if not bool((ids.sort().values.diff() > 0).all()):
        raise LoadError(f"d2t in {path} names a token twice.", hint="Fetch the head again.")
    return ids
