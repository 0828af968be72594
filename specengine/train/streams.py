"""What heads learn from: the target's residual streams over code, computed once and kept on disk.

A shard holds a few rows of tokens of one length. Their streams come from the very passes that the
engine makes, so a head learns on what it will see.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from specengine.cache.kv_cache import KVCache
from specengine.errors import ConfigError, LoadError
from specengine.models.target import Rows, Tap, Target
from specengine.models.tensor_files import FILE_ERRORS, read_tensors, write_tensors
from specengine.train.samples import Sample

LENGTH: Final = 256
"""Tokens of a row."""
ROWS: Final = 8
"""Rows of a shard."""
NUM_LIKELY: Final = 16
"""Of the target's next tokens: they have nearly all of the probability."""
SCORED_ROWS: Final = 8
"""Of a pass whose streams are kept: those of a step, which every target can score."""
LISTING: Final = "streams.json"

OnFraction = Callable[[float], None]


@dataclass(frozen=True)
class Shard:
    """Some rows, padded at their ends.

    Shapes:  token_ids [B, T]; likely_ids [B, T, k], the target's likeliest next tokens, the first
        of them its choice, and their probabilities, the same; mask [B, T], true where there is a
        token. Each of streams [B, T, hidden], by layers passed.
    """

    token_ids: torch.Tensor
    likely_ids: torch.Tensor
    probabilities: torch.Tensor
    mask: torch.Tensor
    streams: dict[int, torch.Tensor]

    @property
    def choices(self) -> torch.Tensor:
        """Return the target's own next token behind each one, [B, T]."""
        return self.likely_ids[..., 0]

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens, padding left out."""
        return int(self.mask.sum())


class _Listing(msgspec.Struct, frozen=True):
    """What a folder of shards was made of; another target's streams are worth nothing."""

    target: str
    layers: tuple[int, ...]


class StreamStore:
    """Shards in a folder."""

    def __init__(self, folder: Path, target: str, layers: Sequence[int]) -> None:
        """``target`` names the weights; a folder with the streams of others is emptied."""
        self._folder = folder
        self._listing = _Listing(target, tuple(layers))
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / LISTING
        if not file.exists() or file.read_bytes() != msgspec.json.encode(self._listing):
            shutil.rmtree(folder)
            folder.mkdir(parents=True)
            file.write_bytes(msgspec.json.encode(self._listing))

    def __len__(self) -> int:
        """Return the number of shards."""
        return len(list(self._folder.glob("*.safetensors")))

    def collect(
        self, target: Target, samples: Iterator[Sample], num_shards: int, on_fraction: OnFraction
    ) -> None:
        """Compute streams until there are so many shards; what is there stays.

        ``samples`` are those from the first shard on, so that a call that was interrupted goes on.
        """
        cache = KVCache(target.kv_shape, LENGTH + target.prompt_rows)
        for number in range(num_shards):
            rows = [next(samples) for _ in range(ROWS)]
            file = self._folder / f"{number:06}.safetensors"
            if file.exists():
                continue
            part = file.with_suffix(".part")
            write_tensors(part, self._tensors(target, cache, rows))
            part.replace(file)
            on_fraction((number + 1) / num_shards)

    def read(self, number: int) -> Shard:
        """Return a shard.

        Raises:  LoadError when it is missing or damaged.
        """
        file = self._folder / f"{number:06}.safetensors"
        try:
            tensors = read_tensors(file)
        except FILE_ERRORS as error:
            raise LoadError(
                f"cannot read {file}: {error}.", hint="Remove it; it will be made again."
            ) from error
        streams = {layer: tensors[f"stream.{layer}"] for layer in self._listing.layers}
        return Shard(
            tensors["token_ids"].long(),
            tensors["likely_ids"].long(),
            tensors["probabilities"].float(),
            tensors["mask"],
            streams,
        )

    def _tensors(
        self, target: Target, cache: KVCache, rows: Sequence[Sample]
    ) -> dict[str, torch.Tensor]:
        layers = self._listing.layers
        shape = (len(rows), LENGTH)
        tensors = {
            "token_ids": torch.zeros(shape, dtype=torch.int32),
            "likely_ids": torch.zeros(*shape, NUM_LIKELY, dtype=torch.int32),
            "probabilities": torch.zeros(*shape, NUM_LIKELY, dtype=torch.float16),
            "mask": torch.zeros(shape, dtype=torch.bool),
        }
        hidden = target.architecture.hidden_size
        for layer in layers:
            tensors[f"stream.{layer}"] = torch.zeros(*shape, hidden, dtype=torch.bfloat16)
        for row, sample in enumerate(rows):
            token_ids = list(sample.token_ids)
            num = len(token_ids)
            if num > LENGTH:
                raise ConfigError(f"a sample of {num} tokens; {LENGTH} are kept.")
            streams, likely_ids, probabilities = _run(target, cache, token_ids, layers)
            tensors["token_ids"][row, :num] = torch.tensor(token_ids)
            tensors["likely_ids"][row, :num] = likely_ids
            tensors["probabilities"][row, :num] = probabilities
            tensors["mask"][row, :num] = True
            for at, layer in enumerate(layers):
                tensors[f"stream.{layer}"][row, :num] = streams[at]
        return tensors


def _run(
    target: Target, cache: KVCache, token_ids: list[int], layers: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a text's streams [layers, T, hidden], and what the target thinks behind each token.

    Read in pieces that have few enough rows for all of them to be scored.
    """
    cache.truncate(0)
    streams: list[torch.Tensor] = []
    likely: list[torch.Tensor] = []
    probabilities: list[torch.Tensor] = []
    step = min(target.prompt_rows, SCORED_ROWS)
    for start in range(0, len(token_ids), step):
        piece = token_ids[start : start + step]
        tap = Tap(layers)
        (logits,) = target.forward_batch([Rows(piece, cache, len(piece), tap=tap)])
        best = logits.topk(NUM_LIKELY)
        likely.append(best.indices.cpu())
        probabilities.append((best.values - logits.logsumexp(-1, keepdim=True)).exp().cpu())
        streams.append(tap.streams.cpu())
    return torch.cat(streams, dim=1), torch.cat(likely), torch.cat(probabilities)


def order_of(num_shards: int, seed: int, epoch: int) -> list[int]:
    """Return the shards in the order of an epoch, which seed and number decide."""
    order = list(range(num_shards))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
