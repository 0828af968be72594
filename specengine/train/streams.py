"""What heads learn from: the target's residual streams over code, computed once and kept on disk.

A shard holds a few rows of tokens of one length: a prompt of code, and how the target itself goes
on. Both come from the very passes that the engine makes, so a head learns on what it will see. What
the target writes is simpler than what people do, and it is all that a head is ever asked about.

Source:  on-policy data, DistillSpec, arXiv 2310.08461, section 4.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from specengine.cache.kv_cache import KVCache
from specengine.errors import LoadError
from specengine.models.target import Rows, Tap, Target
from specengine.models.tensor_files import FILE_ERRORS, read_tensors, write_tensors

LENGTH: Final = 256
"""Tokens of a row."""
ROWS: Final = 8
"""Rows of a shard."""
NUM_LIKELY: Final = 16
"""Of the target's next tokens: they have nearly all of the probability."""
SCORED_ROWS: Final = 8
"""Of a pass that has one sequence: those of a step, which every target can score."""
LISTING: Final = "streams.json"

OnFraction = Callable[[float], None]


@dataclass(frozen=True)
class Opening:
    """A prompt, and how many tokens the target may write behind it."""

    token_ids: tuple[int, ...]
    num_written: int = 0

    def __post_init__(self) -> None:
        assert self.token_ids, "an empty prompt"
        assert len(self.token_ids) + self.num_written <= LENGTH, "a text longer than its row"


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
        self,
        target: Target,
        openings: Iterator[Opening],
        ends: Container[int],
        num_shards: int,
        on_fraction: OnFraction,
    ) -> None:
        """Let the target write texts until there are so many shards; what is there stays.

        ``openings`` are those from the first shard on, so that a call that was interrupted goes on.
        A text ends before a token of ``ends``.
        """
        together = max(1, target.batch_rows // ROWS)
        caches = [
            KVCache(target.kv_shape, LENGTH + target.prompt_rows) for _ in range(together * ROWS)
        ]
        missing: list[tuple[int, list[Opening]]] = []
        for number in range(num_shards):
            rows = [next(openings) for _ in range(ROWS)]
            if not self._file(number).exists():
                missing.append((number, rows))
            if len(missing) == together or (missing and number == num_shards - 1):
                every = [row for _, rows in missing for row in rows]
                texts = [_Text(row, cache) for row, cache in zip(every, caches, strict=False)]
                _write(target, self._listing.layers, texts, ends)
                for at, (which, _) in enumerate(missing):
                    self._save(which, target, texts[at * ROWS : (at + 1) * ROWS])
                missing = []
                on_fraction((number + 1) / num_shards)

    def read(self, number: int) -> Shard:
        """Return a shard.

        Raises:  LoadError when it is missing or damaged.
        """
        file = self._file(number)
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

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06}.safetensors"

    def _save(self, number: int, target: Target, texts: Sequence[_Text]) -> None:
        part = self._file(number).with_suffix(".part")
        write_tensors(part, self._tensors(target, texts))
        part.replace(self._file(number))

    def _tensors(self, target: Target, texts: Sequence[_Text]) -> dict[str, torch.Tensor]:
        layers = self._listing.layers
        shape = (len(texts), LENGTH)
        tensors = {
            "token_ids": torch.zeros(shape, dtype=torch.int32),
            "likely_ids": torch.zeros(*shape, NUM_LIKELY, dtype=torch.int32),
            "probabilities": torch.zeros(*shape, NUM_LIKELY, dtype=torch.float16),
            "mask": torch.zeros(shape, dtype=torch.bool),
        }
        hidden = target.architecture.hidden_size
        for layer in layers:
            tensors[f"stream.{layer}"] = torch.zeros(*shape, hidden, dtype=torch.bfloat16)
        for row, text in enumerate(texts):
            num = len(text.token_ids)
            tensors["token_ids"][row, :num] = torch.tensor(text.token_ids)
            tensors["likely_ids"][row, :num] = torch.cat(text.likely_ids)
            tensors["probabilities"][row, :num] = torch.cat(text.probabilities)
            tensors["mask"][row, :num] = True
            streams = torch.cat(text.streams, dim=1)
            for at, layer in enumerate(layers):
                tensors[f"stream.{layer}"][row, :num] = streams[at]
        return tensors


class _Text:
    """A row as it grows, and what the target's passes over it left: pieces, by their tokens."""

    def __init__(self, opening: Opening, cache: KVCache) -> None:
        self.token_ids = list(opening.token_ids)
        self.cache = cache
        self.streams: list[torch.Tensor] = []
        self.likely_ids: list[torch.Tensor] = []
        self.probabilities: list[torch.Tensor] = []
        self._length = len(opening.token_ids) + opening.num_written

    @property
    def choice(self) -> int:
        """Return the target's next token."""
        return int(self.likely_ids[-1][-1, 0])

    def goes_on(self, ends: Container[int]) -> bool:
        """Return whether the target may write one more token."""
        return len(self.token_ids) < self._length and self.choice not in ends


def _write(
    target: Target, layers: tuple[int, ...], texts: Sequence[_Text], ends: Container[int]
) -> None:
    """Read the texts, and let the target go on with them."""
    piece = min(target.prompt_rows, target.batch_rows or SCORED_ROWS)
    for text in texts:
        text.cache.truncate(0)
        for start in range(0, len(text.token_ids), piece):
            _pass(target, layers, [(text, text.token_ids[start : start + piece])])
    together = max(1, target.batch_rows)
    while growing := [text for text in texts if text.goes_on(ends)]:
        for start in range(0, len(growing), together):
            parts = [(text, [text.choice]) for text in growing[start : start + together]]
            _pass(target, layers, parts)
            for text, token_ids in parts:
                text.token_ids += token_ids


def _pass(
    target: Target, layers: tuple[int, ...], parts: Sequence[tuple[_Text, list[int]]]
) -> None:
    """Run the target over the next tokens of some texts."""
    rows = [Rows(ids, text.cache, len(ids), tap=Tap(layers)) for text, ids in parts]
    for (text, _), row, logits in zip(parts, rows, target.forward_batch(rows), strict=True):
        assert row.tap is not None
        best = logits.topk(NUM_LIKELY)
        total = logits.logsumexp(-1, keepdim=True)
        text.likely_ids.append(best.indices.cpu())
        text.probabilities.append((best.values - total).exp().cpu())
        text.streams.append(row.tap.streams.cpu())


def order_of(num_shards: int, seed: int, epoch: int) -> list[int]:
    """Return the shards in the order of an epoch, which seed and number decide."""
    order = list(range(num_shards))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
