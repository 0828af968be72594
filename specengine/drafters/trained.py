"""From the folder of a trained head to the drafts that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

import torch

from specengine.drafters.base import DrafterSource
from specengine.drafters.dflash import DFlashDrafts
from specengine.drafters.eagle import EagleDrafter
from specengine.drafters.feature_drafter import FeatureDrafter, FeatureDrafts
from specengine.drafters.layer_skip import LayerSkipDrafts
from specengine.drafters.medusa import MedusaDrafts
from specengine.drafters.mtp import MtpDrafter
from specengine.drafters.parallel import ParallelDrafter
from specengine.drafters.pruned import PrunedDrafts
from specengine.drafters.streaming import StreamingDrafts
from specengine.errors import LoadError, SettingsInvalid
from specengine.heads import checkpoints
from specengine.heads.dflash import DFlashNetwork
from specengine.heads.features import FeatureNetwork
from specengine.heads.head import Head
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.heads.medusa import MedusaNetwork
from specengine.heads.pruned import PrunedNetwork
from specengine.heads.recorded import Recording
from specengine.models.convert import ensure_model
from specengine.models.graphs import CudaRecorder, GraphDecoder, Recorder
from specengine.models.load import TensorReader, WeightReader
from specengine.models.memory import check_memory_of_files
from specengine.models.registry import ModelEntry
from specengine.models.sources import head_folder
from specengine.models.target import Target
from specengine.models.targets import (
    DTYPES,
    STEP_ROWS,
    Precision,
    embedding_of,
    final_norm_of,
    output_of,
    product_maker,
)
from specengine.models.tokenizer import Tokenizer

Weights = Callable[[], TensorReader]

CACHE_ROWS: Final = 1024
"""Of each of a head's layers for one text: it looks at the end of a long one."""
FEATURE_DRAFTERS: Final[Mapping[str, type[FeatureDrafter]]] = {
    "eagle": EagleDrafter,
    "mtp": MtpDrafter,
    "parallel": ParallelDrafter,
}
"""By kinds of heads; EAGLE-1 drafts as EAGLE-3 does."""


def trained_drafts(
    folder: Path,
    target: Target,
    tokenizer: Tokenizer,
    num_slots: int,
    weights: Weights | None = None,
) -> DrafterSource:
    """Return the drafts of the head in a folder, which keeps rows for so many texts.

    ``weights`` gives those that the target was made of, which ``streaming`` changes copies of.

    Raises:  LoadError when it is missing, damaged, or was trained for another target;
        ModelsIncompatible when its tokens are others.
    """
    check_memory_of_files(folder, target.kv_shape.device)
    head = checkpoints.load(folder, target.architecture, tokenizer)
    return drafts_of(head, target, num_slots, weights)


def declared_drafts(
    entry: ModelEntry, kind: str, target: Target, tokenizer: Tokenizer, num_slots: int
) -> DrafterSource:
    """Return the drafts of the head that models.toml names for a model.

    Raises:  SettingsInvalid when it names none; ConfigError, LoadError.
    """
    if kind not in entry.heads:
        known = ", ".join(entry.heads) or "none"
        raise SettingsInvalid(
            f"models.toml names no {kind} head for {entry.name}; it has {known}.",
            hint=f"Train one with: specengine train heads --kind {kind}",
        )

    def weights() -> TensorReader:
        dtype = DTYPES[cast("Precision", target.precision)]
        return WeightReader(ensure_model(entry), dtype, target.kv_shape.device)

    folder = head_folder(entry.heads[kind])
    return trained_drafts(folder, target, tokenizer, num_slots, weights)


def drafts_of(
    head: Head,
    target: Target,
    num_slots: int,
    weights: Weights | None = None,
    recorder: Recorder | None = None,
) -> DrafterSource:
    """Return the drafts of a head beside a target; see ``trained_drafts``.

    ``recorder`` records drafts of several passes; beside a target on CUDA there is one anyway.

    Raises:  LoadError when it lacks a tensor, has one too many, or does not fit the target.
    """
    sizes = target.architecture
    head.check_fits(sizes.hidden_size, sizes.vocab_size, sizes.num_layers)
    asked = _Asked(_completed(head, target))
    if recorder is None and target.kv_shape.device.type == "cuda":
        recorder = CudaRecorder()
    most_tokens = target.step_rows if isinstance(target, GraphDecoder) else STEP_ROWS
    recording = None if recorder is None else Recording(recorder, most_tokens)
    source = _source(replace(head, tensors=asked), target, num_slots, weights, recording)
    left = asked.left()
    if left:
        raise LoadError(
            f"{len(left)} tensors have no place in a head of the kind {head.kind}, {min(left)} "
            "among them.",
            hint="It is of a variant that this engine cannot run.",
        )
    asked.forget()
    return source


def _completed(head: Head, target: Target) -> dict[str, torch.Tensor]:
    """Return a head's tensors where the target is, with those of it that the head is used with."""
    device = target.kv_shape.device
    tensors = {name: tensor.to(device) for name, tensor in head.tensors.items()}
    if head.kind == "eagle1" or head.has("heads.0.lm_head.weight"):
        tensors.setdefault("norm.weight", final_norm_of(target))
    embedding, own = embedding_of(target), tensors.get("embed_tokens.weight")
    if own is not None and torch.equal(own.to(embedding), embedding):
        del tensors["embed_tokens.weight"]  # A copy of the target's needs no memory.
    return tensors


def _source(
    head: Head,
    target: Target,
    num_slots: int,
    weights: Weights | None,
    recording: Recording | None,
) -> DrafterSource:
    if head.kind == "layer_skip":
        return LayerSkipDrafts(head, target)
    if head.kind == "streaming":
        if weights is None:
            raise LoadError("a streaming head needs the weights of its target, which are not here.")
        return StreamingDrafts(head, target, weights())
    make, embedding = product_maker(target), embedding_of(target)
    if head.kind == "medusa":
        return MedusaDrafts(MedusaNetwork(head, embedding, make))
    output = None
    if not head.has("lm_head.weight") and head.kind in ("eagle1", "dflash"):
        output = output_of(target)
    if head.kind == "draft_model":
        pruned = PrunedNetwork(head, embedding, make)
        store = _store(head, target, [0] * pruned.num_layers, num_slots)
        return PrunedDrafts(pruned, store, recording)
    if head.kind == "dflash":
        network = DFlashNetwork(head, embedding, make, output)
        lags = [0] * network.num_layers
        return DFlashDrafts(network, _store(head, target, lags, num_slots))
    network = FeatureNetwork(head, embedding, make, output)
    # A module reads one token more than the one before it.
    lags = [module + 1 for module in range(network.num_modules)]
    store = _store(head, target, lags, num_slots)
    name = head.kind if head.kind in FEATURE_DRAFTERS else "eagle"
    return FeatureDrafts(name, FEATURE_DRAFTERS[name], network, store, recording)


def _store(head: Head, target: Target, lags: Sequence[int], num_slots: int) -> HeadStore:
    def new_caches() -> list[HeadCache]:
        device = target.kv_shape.device
        return [HeadCache(head.sizes, CACHE_ROWS, device, lag) for lag in lags]

    return HeadStore(new_caches, num_slots)


class _Asked(Mapping[str, torch.Tensor]):
    """Tensors that note who is asked for: a network would run without the others."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors: Mapping[str, torch.Tensor] = tensors
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> torch.Tensor:
        self._asked.add(name)
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def left(self) -> set[str]:
        """Return the names that nobody has asked for."""
        return set(self._tensors) - self._asked

    def forget(self) -> None:
        """Let go of all: networks have made products of their own of them."""
        self._tensors = {}
