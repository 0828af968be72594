"""Heads in folders of their own: ``config.json`` and ``model.safetensors``.

Kinds that the speculators library knows are written as it writes them, so that vLLM serves them:
``eagle`` as ``eagle3``, and ``dflash``. For the others the same keys are used under a
``speculators_model_type`` of our own, ``specengine_medusa``, ``specengine_mtp``,
``specengine_parallel`` and so on, as what that library calls ``mtp`` and ``peagle`` are other
networks. The keys that matter:

    transformer_layer_config           sizes of a layer; vocab_size is the target's
    draft_vocab_size                   tokens that the head can guess
    eagle_aux_hidden_state_layer_ids   how many layers the streams have passed that it reads
    speculators_config                 how many tokens it drafts, and for which target

Tensors have the names that networks ask for, in bfloat16. Beside them lie ``d2t``, int64, what to
add to the number of a draft token for the target's, and ``t2d``, bool, whether the head can guess a
target's token. They are left out where the head knows all tokens. The embedding is the target's
own, so it is not written unless a head was trained with another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import torch

from specengine.errors import LoadError
from specengine.heads.head import Head, HeadSizes, Kind, Variant
from specengine.heads.head_config import CONFIG, LayerConfig, Positive, read_config
from specengine.heads.head_tensors import (
    MAPS,
    check_blocks,
    draft_ids_of,
    num_blocks_of,
    read_head_tensors,
)
from specengine.models.architecture import Architecture, Llama3Scaling
from specengine.models.families import SUPPORTED
from specengine.models.tensor_files import write_tensors

WEIGHTS: Final = "model.safetensors"
FORMAT_VERSION: Final = "0.7.0"
"""Of the speculators library, whose keys are written."""
STORED: Final = torch.bfloat16

TYPES: Final[Mapping[Kind, str]] = {
    "eagle": "eagle3",
    "dflash": "dflash",
    "medusa": "specengine_medusa",
    "mtp": "specengine_mtp",
    "parallel": "specengine_parallel",
    "eagle1": "specengine_eagle1",
    "layer_skip": "specengine_layer_skip",
    "streaming": "specengine_streaming",
    "draft_model": "specengine_draft_model",
}
"""What each kind is called in its ``config.json``."""
BLOCKS: Final = ("eagle", "eagle1", "mtp", "parallel", "dflash", "draft_model")
"""Kinds with layers of their own."""
CLASSES: Final = {"eagle3": "Eagle3DraftModel", "dflash": "DFlashDraftModel"}


@dataclass(frozen=True)
class Verifier:
    """The target that a head was trained for."""

    name: str
    """A name or path that others can load it by."""
    architecture: Architecture


def save(head: Head, folder: Path, verifier: Verifier) -> None:
    """Write a head.

    Raises:  LoadError when it does not fit its target; OSError.
    """
    target = verifier.architecture
    head.check_fits(target.hidden_size, target.vocab_size, target.num_layers)
    config = _config_of(head, verifier)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / WEIGHTS, _stored(head, target.vocab_size))
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load(folder: Path, num_layers: int | None = None) -> Head:
    """Read what ``save`` has written, or the speculators library.

    ``num_layers`` of the target are needed where the file leaves to them which layers are read.

    Raises:  LoadError when a file is missing, damaged, or of a head that this engine cannot run.
    """
    config = read_config(folder, SpeculatorsConfig)
    path = folder / CONFIG
    kinds: dict[str, Kind] = {name: kind for kind, name in TYPES.items()}
    kind = kinds.get(config.speculators_model_type)
    if kind is None:
        raise LoadError(
            f"{path} is of a {config.speculators_model_type!r} head, which this engine does not "
            "run.",
            hint=f"It runs {', '.join(kinds)}.",
        )
    tensors = read_head_tensors(folder / WEIGHTS)
    draft_ids = _draft_ids(tensors, config, folder / WEIGHTS)
    _check_flags(config, tensors, path)
    if kind in BLOCKS:
        check_blocks(tensors, config.transformer_layer_config.num_hidden_layers, path)
    return Head(
        kind,
        _layers(config, num_layers, path),
        config.depth(kind, path),
        config.transformer_layer_config.sizes(path),
        {name: each for name, each in tensors.items() if name not in MAPS},
        draft_ids,
        _variant(config, kind, path),
    )


class _Proposal(msgspec.Struct):
    speculative_tokens: Positive


class _Method(msgspec.Struct):
    proposal_methods: Annotated[list[_Proposal], msgspec.Meta(min_length=1)]


class SpeculatorsConfig(msgspec.Struct):
    """What is read of a ``config.json`` of the speculators library, and of ours."""

    speculators_model_type: str
    transformer_layer_config: LayerConfig
    speculators_config: _Method
    draft_vocab_size: Positive | None = None
    eagle_aux_hidden_state_layer_ids: list[int] | None = None
    aux_hidden_state_layer_ids: list[int] | None = None
    norm_before_residual: bool | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    block_size: Annotated[int, msgspec.Meta(gt=1)] | None = None
    mask_token_id: int | None = None
    sample_from_anchor: bool = False

    def depth(self, kind: Kind, path: Path) -> int:
        """Return how many tokens the head was trained to draft in a row."""
        if kind != "dflash":
            return self.speculators_config.proposal_methods[0].speculative_tokens
        if self.block_size is None:
            raise LoadError(f"{path} lacks block_size.")
        return self.block_size if self.sample_from_anchor else self.block_size - 1


def _draft_ids(
    tensors: Mapping[str, torch.Tensor], config: SpeculatorsConfig, path: Path
) -> torch.Tensor:
    vocab_size = config.transformer_layer_config.vocab_size
    num_ids = config.draft_vocab_size or vocab_size
    if "d2t" not in tensors:
        if num_ids != vocab_size:
            raise LoadError(f"{path} lacks d2t, which names the {num_ids} tokens of the head.")
        return torch.arange(vocab_size)
    ids = draft_ids_of(tensors["d2t"], vocab_size, path)
    if len(ids) != num_ids:
        raise LoadError(f"d2t in {path} has {len(ids)} entries; {CONFIG} says {num_ids}.")
    t2d = tensors.get("t2d")
    if t2d is not None and not torch.equal(t2d.nonzero().flatten(), ids.sort().values):
        raise LoadError(f"d2t and t2d in {path} contradict each other.")
    return ids


def _layers(config: SpeculatorsConfig, num_layers: int | None, path: Path) -> tuple[int, ...]:
    named = config.aux_hidden_state_layer_ids or config.eagle_aux_hidden_state_layer_ids
    if named is not None:
        return tuple(named)
    if num_layers is None:
        raise LoadError(f"{path} does not say which layers the head reads.")
    return default_layers(num_layers)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return the layers that EAGLE-3 reads unless its files say otherwise."""
    return 2, num_layers // 2, num_layers - 3


def _check_flags(
    config: SpeculatorsConfig, tensors: Mapping[str, torch.Tensor], path: Path
) -> None:
    for flag, is_set, name in (
        ("fc_norm", config.fc_norm, "fc_norm.0.weight"),
        ("norm_before_fc", config.norm_before_fc, "input_norm.weight"),
    ):
        if is_set != (name in tensors):
            raise LoadError(f"{path} has {flag} {is_set}, but the weights do not: see {name}.")


def _variant(config: SpeculatorsConfig, kind: Kind, path: Path) -> Variant:
    if kind == "eagle" and config.norm_before_residual is None:
        raise LoadError(f"{path} lacks norm_before_residual, without which EAGLE-3 cannot be run.")
    if kind == "dflash" and config.mask_token_id is None:
        raise LoadError(f"{path} lacks mask_token_id.")
    return Variant(
        norm_before_residual=bool(config.norm_before_residual),
        norm_output=config.norm_output,
        mask_id=-1 if config.mask_token_id is None else config.mask_token_id,
        guesses_at_anchor=config.sample_from_anchor,
    )


def _stored(head: Head, vocab_size: int) -> dict[str, torch.Tensor]:
    stored = {
        name: tensor.detach().to("cpu", STORED, copy=True).contiguous()
        for name, tensor in head.tensors.items()
    }
    ids = head.draft_ids.cpu()
    if not torch.equal(ids, torch.arange(vocab_size)):
        assert bool((ids.diff() > 0).all()), "t2d can tell ascending draft_ids only"
        stored["d2t"] = ids - torch.arange(len(ids))
        stored["t2d"] = torch.zeros(vocab_size, dtype=torch.bool)
        stored["t2d"][ids] = True
    return stored


def _config_of(head: Head, verifier: Verifier) -> dict[str, Any]:
    assert head.kind in TYPES, f"a {head.kind} head has no file format"
    name, variant = TYPES[head.kind], head.variant
    config: dict[str, Any] = {
        "architectures": [CLASSES.get(name, "SpecEngineHead")],
        "speculators_model_type": name,
        "speculators_version": FORMAT_VERSION,
        "speculators_config": {
            "algorithm": name,
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": head.depth,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": verifier.name,
                "architectures": [_class_of(verifier.architecture)],
            },
        },
        "transformer_layer_config": _layer_config(head, verifier.architecture),
        "draft_vocab_size": len(head.draft_ids),
        "target_hidden_size": verifier.architecture.hidden_size,
        "dtype": str(STORED).removeprefix("torch."),
        "tie_word_embeddings": False,
    }
    if head.kind == "dflash":
        return config | {
            "aux_hidden_state_layer_ids": list(head.layers),
            "block_size": head.depth + (not variant.guesses_at_anchor),
            "mask_token_id": variant.mask_id,
            "sample_from_anchor": variant.guesses_at_anchor,
        }
    return config | {
        "eagle_aux_hidden_state_layer_ids": list(head.layers),
        "norm_before_residual": variant.norm_before_residual,
        "norm_before_fc": head.has("input_norm.weight"),
        "fc_norm": head.has("fc_norm.0.weight"),
        "norm_output": variant.norm_output,
        "embed_requires_grad": head.has("embed_tokens.weight"),
    }


def _layer_config(head: Head, target: Architecture) -> dict[str, Any]:
    sizes = head.sizes
    return {
        "model_type": "qwen3" if head.kind == "dflash" else "llama",
        "vocab_size": target.vocab_size,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": max(1, num_blocks_of(head.tensors)),
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": target.context_len,
        "rms_norm_eps": sizes.norm_eps,
        "rope_theta": sizes.rope_theta,
        "rope_scaling": _rope_scaling(sizes),
        "attention_bias": head.has("layers.0.self_attn.q_proj.bias"),
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def _rope_scaling(sizes: HeadSizes) -> dict[str, Any] | None:
    scaling = sizes.rope_scaling
    if scaling is None:
        return None
    if isinstance(scaling, Llama3Scaling):
        return {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    return {"rope_type": "linear", "factor": scaling.factor}


def _class_of(architecture: Architecture) -> str:
    return next(name for name, family in SUPPORTED.items() if family == architecture.family)
