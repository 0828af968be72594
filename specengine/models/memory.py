"""Whether a model fits, asked before anything is loaded.

Weights, the keys and values of all sequences, and what a pass needs beside them are added up and
held against what is free: a clear refusal at the start, instead of an end in the middle of work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from specengine.cache.kv_cache import TILE, KVShape
from specengine.errors import LoadError
from specengine.models.architecture import Architecture
from specengine.models.graphs import PROMPT_ROWS

BYTES_PER_WEIGHT: Final = {"int4": 0.625, "int8": 1.0, "bfloat16": 2.0, "float32": 4.0}
"""A group of 32 in 4 bits has two numbers of 16 bits beside it."""
EMBEDDING_BYTES: Final = 2
"""Of one number of an embedding that is not part of the products, as it is read, not multiplied."""
WEIGHT_FILES: Final = (".safetensors", ".bin", ".pt")
DEVICE_SPARE: Final = 768 * 2**20
"""On an accelerator: its libraries, logits, and captured graphs."""


@dataclass(frozen=True)
class Sequences:
    """What is kept beside the weights: so many sequences of so many positions."""

    number: int = 0
    positions: int = 0


NO_SEQUENCES: Final = Sequences()


@dataclass(frozen=True)
class Need:
    """Bytes by purpose."""

    weights: int
    kv_shape: KVShape
    sequences: Sequences
    spare: int

    @classmethod
    def of(
        cls, sizes: Architecture, precision: str, device: torch.device, sequences: Sequences
    ) -> Need:
        """Return what a model needs."""
        kv_type = torch.float32 if precision == "float32" else torch.bfloat16
        kv = KVShape(sizes.num_layers, sizes.num_kv_heads, sizes.head_dim, kv_type, device)
        if device.type == "cuda":
            kv = replace(kv, spare_rows=PROMPT_ROWS)
        return cls(
            weights=_weight_bytes(sizes, precision),
            kv_shape=kv,
            sequences=sequences,
            spare=0 if device.type == "cpu" else DEVICE_SPARE,
        )

    @property
    def kv(self) -> int:
        """Return the bytes of all keys and values."""
        return self.sequences.number * self.kv_shape.num_bytes(self.sequences.positions)

    @property
    def total(self) -> int:
        """Return all of it."""
        return self.weights + self.kv + self.spare

    def positions_within(self, free: int) -> int:
        """Return how many positions each sequence may have in so much memory; 0 if none."""
        each = (free - self.weights - self.spare) // max(1, self.sequences.number)
        per_tile = self.kv_shape.num_bytes(TILE) - self.kv_shape.num_bytes(0)
        return max(0, (each - self.kv_shape.num_bytes(0)) // per_tile * TILE)


def check_memory(
    sizes: Architecture, precision: str, device: torch.device, sequences: Sequences = NO_SEQUENCES
) -> None:
    """Refuse a model that does not fit the free memory of a device.

    Raises:  LoadError with the bytes that are needed and free, and what would fit.
    """
    free = free_bytes(device)
    need = Need.of(sizes, precision, device, sequences)
    if free is not None and need.total > free:
        raise LoadError(
            f"the model needs {need.total:,} bytes in {precision}, {need.weights:,} of them for "
            f"weights and {need.kv:,} for {sequences.number} sequences of "
            f"{sequences.positions:,} tokens; {free:,} are free on {device}.",
            hint=_way_out(need, free, precision),
        )


def check_memory_of_files(folder: Path, device: torch.device) -> None:
    """Refuse a small network beside a target whose files are larger than the free memory.

    Raises:  LoadError with the bytes that are needed and free.
    """
    free = free_bytes(device)
    needed = sum(file.stat().st_size for file in folder.glob("*") if file.suffix in WEIGHT_FILES)
    if free is not None and needed > free:
        raise LoadError(
            f"the weights in {folder} need {needed:,} bytes; {free:,} are free on {device}.",
            hint="Choose a drafter without weights: suffix.",
        )


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a device, or None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _weight_bytes(sizes: Architecture, precision: str) -> int:
    """Return the bytes of all weights; in 8 and 4 bits the embedding stays in 16."""
    products, embedding = sizes.num_parameters, 0
    if BYTES_PER_WEIGHT[precision] < EMBEDDING_BYTES:
        embedding = sizes.vocab_size * sizes.hidden_size
        products -= 0 if sizes.has_tied_embeddings else embedding
    return round(products * BYTES_PER_WEIGHT[precision]) + embedding * EMBEDDING_BYTES


def _way_out(need: Need, free: int, precision: str) -> str:
    positions = need.positions_within(free)
    if positions >= 512:
        return f"Sequences of {positions:,} tokens fit: lower prompt_tokens, max_tokens or slots."
    smaller = [
        each for each, size in BYTES_PER_WEIGHT.items() if size < BYTES_PER_WEIGHT[precision]
    ]
    return (
        f"Choose {' or '.join([*reversed(smaller), f'a model of less than {free / 1e9:.1f} GB'])}: "
        "specengine models list shows what each needs."
    )
