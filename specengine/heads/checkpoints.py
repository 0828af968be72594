"""Heads that others have trained, in the formats in which they are shared.

    speculators    ``speculators_model_type`` in config.json; see ``files.py``
    EAGLE          a Llama of one layer; ``fc`` joins two rows; neither norm nor output of its own
    EAGLE-3        the layer is called ``midlayer``, or has a ``hidden_norm``; ``fc`` joins several
    Medusa-1       ``medusa_lm_head``: for each head a residual block and an output layer
    DFlash         ``dflash_config`` in config.json

Some are shared as pickles only. Of those only numbers are read: torch's unpickler with
``weights_only`` refuses whatever would run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import torch

from specengine.errors import LoadError, ModelsIncompatible
from specengine.heads import files
from specengine.heads.head import Head, HeadSizes, Variant
from specengine.heads.head_config import CONFIG, LayerConfig, Positive, read_config
from specengine.heads.head_tensors import (
    MAPS,
    check_blocks,
    checked,
    draft_ids_of,
    read_head_tensors,
)
from specengine.models.architecture import Architecture
from specengine.models.tokenizer import Tokenizer

EAGLE_DEPTH: Final = 5
"""Levels of the tree that the first EAGLE's authors draft."""
EAGLE3_DEPTH: Final = 7
"""Steps that EAGLE-3 is trained to take on its own rows."""
MAX_PADDING: Final = 1024
"""By so much the vocabularies of checkpoints may differ where both hold all tokens."""
WEIGHTS: Final = (files.WEIGHTS, "pytorch_model.bin")
MEDUSA_WEIGHTS: Final = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")


def load(folder: Path, target: Architecture, tokenizer: Tokenizer) -> Head:
    """Read a head of ours or of others for a target.

    Raises:  LoadError when a file is missing, damaged, of an unknown format, or was made for
        a target of other sizes; ModelsIncompatible when its tokens are others.
    """
    marks = read_config(folder, _Marks)
    if (folder / "tokenizer.json").exists():
        _check_tokens(tokenizer, Tokenizer.load(folder))
    if marks.speculators_model_type is not None:
        config = read_config(folder, files.SpeculatorsConfig)
        vocab_size = config.transformer_layer_config.vocab_size
        head = files.load(folder, target.num_layers)
    elif marks.dflash_config is not None:
        head, vocab_size = _dflash(folder, target)
    elif marks.medusa_num_heads is not None:
        head, vocab_size = _medusa(folder, target)
    else:
        head, vocab_size = _eagle(folder, target)
    _check_vocabulary(vocab_size, target, tokenizer)
    head = _cut(head, target.vocab_size)
    head.check_fits(target.hidden_size, target.vocab_size, target.num_layers)
    return head


class _DFlash(msgspec.Struct):
    mask_token_id: Annotated[int, msgspec.Meta(ge=0)]
    target_layer_ids: list[int] | None = None
    block_size: Annotated[int, msgspec.Meta(gt=1)] | None = None


class _Marks(msgspec.Struct):
    """What tells formats apart."""

    speculators_model_type: str | None = None
    dflash_config: dict[str, Any] | None = None
    medusa_num_heads: int | None = None


class _Medusa(msgspec.Struct):
    medusa_num_layers: Positive = 1


class _DFlashConfig(LayerConfig, kw_only=True):
    dflash_config: _DFlash
    block_size: Annotated[int, msgspec.Meta(gt=1)] | None = None
    num_target_layers: Positive | None = None


class _Eagle3(msgspec.Struct):
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    use_aux_hidden_state: bool = True


class _EagleConfig(LayerConfig):
    eagle_config: _Eagle3 = msgspec.field(default_factory=_Eagle3)
    target_hidden_size: Positive | None = None
    norm_before_residual: bool = False
    norm_output: bool = False


def _dflash(folder: Path, target: Architecture) -> tuple[Head, int]:
    config, path = read_config(folder, _DFlashConfig), folder / CONFIG
    own = config.dflash_config
    if config.num_target_layers not in (None, target.num_layers):
        raise LoadError(
            f"the dflash head reads a target of {config.num_target_layers} layers; its target has "
            f"{target.num_layers}.",
            hint="It was trained for another model.",
        )
    block_size = config.block_size or own.block_size
    if block_size is None:
        raise LoadError(f"{path} lacks block_size.")
    layers = own.target_layer_ids
    if layers is None:
        layers = _spread(config, path)
    tensors = _tensors(folder, WEIGHTS)
    check_blocks(tensors, config.num_hidden_layers, path)
    head = Head(
        "dflash",
        # They count layers from 0, and read what comes out of one.
        tuple(layer + 1 for layer in layers),
        block_size - 1,
        config.sizes(path),
        tensors,
        torch.arange(config.vocab_size),
        Variant(mask_id=own.mask_token_id),
    )
    return head, config.vocab_size


def _spread(config: _DFlashConfig, path: Path) -> list[int]:
    """Return the target's layers that DFlash reads unless its files say otherwise."""
    if config.num_target_layers is None:
        raise LoadError(f"{path} does not say which layers the head reads.")
    if config.num_hidden_layers == 1:
        return [config.num_target_layers // 2]
    step = (config.num_target_layers - 4) / (config.num_hidden_layers - 1)
    return [round(1 + number * step) for number in range(config.num_hidden_layers)]


def _medusa(folder: Path, target: Architecture) -> tuple[Head, int]:
    num_layers = read_config(folder, _Medusa).medusa_num_layers
    if num_layers != 1:
        raise LoadError(
            f"{folder / CONFIG} has {num_layers} residual blocks in a head; this engine runs one."
        )
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(folder, MEDUSA_WEIGHTS).items():
        number, _, rest = name.removeprefix("medusa_head.").partition(".")
        part = {"1.weight": "lm_head.weight"}.get(rest, rest.removeprefix("0."))
        renamed[f"heads.{number}.{part}"] = tensor
    # Configurations of some files speak of fewer heads than there are.
    depth = len({name.split(".")[1] for name in renamed})
    output = renamed.get("heads.0.lm_head.weight")
    if output is None or output.ndim != 2:
        raise LoadError(f"{folder} has no output layer for its first Medusa head, 0.1.weight.")
    num_ids, hidden = output.shape
    sizes = HeadSizes(hidden, hidden, 1, 1, hidden, target.norm_eps, 10_000.0)
    ids = torch.arange(num_ids)
    return Head("medusa", (target.num_layers,), depth, sizes, renamed, ids), num_ids


def _eagle(folder: Path, target: Architecture) -> tuple[Head, int]:
    config, path = read_config(folder, _EagleConfig), folder / CONFIG
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in _tensors(folder, WEIGHTS).items()
    }
    if "fc.weight" not in tensors or "layers.0.self_attn.q_proj.weight" not in tensors:
        raise LoadError(
            f"{folder} holds no head of a known format.",
            hint="Known are speculators, EAGLE, EAGLE-3, Medusa-1 and DFlash.",
        )
    check_blocks(tensors, config.num_hidden_layers, path)
    sizes = config.sizes(path)
    if config.target_hidden_size not in (None, sizes.hidden_size):
        raise LoadError(
            f"{path} has rows of {sizes.hidden_size} for a target of {config.target_hidden_size}; "
            "this engine runs heads as wide as their target."
        )
    is_third = "layers.0.hidden_norm.weight" in tensors
    head = _third(config, sizes, tensors, target, path) if is_third else None
    if head is None:
        ids = torch.arange(config.vocab_size)
        layers = (target.num_layers,)
        head = Head("eagle1", layers, EAGLE_DEPTH, sizes, tensors, ids)
    return head, config.vocab_size


def _third(
    config: _EagleConfig,
    sizes: HeadSizes,
    tensors: Mapping[str, torch.Tensor],
    target: Architecture,
    path: Path,
) -> Head:
    if not config.eagle_config.use_aux_hidden_state:
        raise LoadError(f"{path} reads one layer of its target only, which EAGLE-3 does not.")
    layers = config.eagle_config.eagle_aux_hidden_state_layer_ids
    ids = torch.arange(config.vocab_size)
    if "d2t" in tensors:
        ids = draft_ids_of(tensors["d2t"], config.vocab_size, path.parent)
    return Head(
        "eagle",
        files.default_layers(target.num_layers) if layers is None else tuple(layers),
        EAGLE3_DEPTH,
        sizes,
        {name: each for name, each in tensors.items() if name not in MAPS},
        ids,
        Variant(config.norm_before_residual, config.norm_output),
    )


def _tensors(folder: Path, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    for name in names:
        path = folder / name
        if path.exists():
            is_safe = path.suffix == ".safetensors"
            return read_head_tensors(path) if is_safe else _unpickled(path)
    raise LoadError(
        f"{folder} has no weights: there is no {' and no '.join(names)}.",
        hint="Fetch the head again, in one file.",
    )


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = cast("object", torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # what a damaged pickle raises is not bounded
        raise LoadError(
            f"{path} cannot be read as numbers: {str(error).splitlines()[0]}",
            hint="It is damaged, or holds more than numbers; fetch it as safetensors.",
        ) from error
    found = cast("dict[object, object]", content) if isinstance(content, dict) else {}
    tensors = {
        name: tensor
        for name, tensor in found.items()
        if isinstance(name, str)
        and isinstance(tensor, torch.Tensor)
        and tensor.layout == torch.strided
    }
    if len(tensors) < len(found) or not found:
        raise LoadError(f"{path} is no mapping of names to tensors.")
    return checked(tensors, path)


def _check_tokens(target: Tokenizer, head: Tokenizer) -> None:
    difference = target.difference(head)
    if difference is not None:
        raise ModelsIncompatible(
            f"target and head have different tokens: {difference}.",
            hint="The head was trained for another model.",
        )


def _check_vocabulary(vocab_size: int, target: Architecture, tokenizer: Tokenizer) -> None:
    """Refuse a head for another vocabulary; what pads them to round numbers may differ."""
    smaller = min(vocab_size, target.vocab_size)
    is_padding = abs(vocab_size - target.vocab_size) <= MAX_PADDING
    if vocab_size != target.vocab_size and not (is_padding and smaller >= tokenizer.vocab_size):
        raise LoadError(
            f"the head was trained for {vocab_size} tokens; its target has {target.vocab_size}.",
            hint="It was trained for another model.",
        )


def _cut(head: Head, vocab_size: int) -> Head:
    """Return a head without tokens that only pad its vocabulary, and an embedding that fits."""
    if not any(name.endswith("lm_head.weight") for name in head.tensors):
        # It guesses by the target's output layer.
        head = replace(head, draft_ids=torch.arange(vocab_size))
    known = head.draft_ids < vocab_size
    tensors = dict(head.tensors)
    for name, tensor in tensors.items():
        if name.endswith("lm_head.weight") and len(tensor) == len(known):
            tensors[name] = tensor[known]
        if name == "embed_tokens.weight":
            missing = max(0, vocab_size - len(tensor))
            tensors[name] = torch.nn.functional.pad(tensor[:vocab_size], (0, 0, 0, missing))
    return replace(head, tensors=tensors, draft_ids=head.draft_ids[known])
