"""Where the training of a head begins: at what the target's own last layer would say.

A head that starts from the target's weights is useful after minutes; from random ones it would take
hours to learn what the last layer knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch

from specengine.heads.head import Head, HeadSizes, Kind
from specengine.models.architecture import Architecture
from specengine.train.heads_self import LastLayers, exit_tensors, stream_tensors
from specengine.train.objectives import Frozen

DRAFT_TOKENS: Final = 4096
"""Of a head's vocabulary: a few thousand are nearly all that code has, and the output layer over
them is half of a head's cost."""


EXIT_SHARE: Final = 0.2
"""Of the target's layers, in front of an exit: a drafted token costs as much of a pass."""
STREAMED_LAYERS: Final = 4
"""The last ones, which speculative streams pass."""


def taps_of(kind: Kind, num_layers: int) -> tuple[int, ...]:
    """Return which streams a kind reads: the last, or one early, in the middle and late.

    Source:  EAGLE-3, arXiv 2503.01840, section 3.1; the places are those of its published heads.
    """
    if kind == "draft_model":
        return ()
    if kind in ("medusa", "mtp"):
        return (num_layers,)
    if kind == "layer_skip":
        return (max(1, round(num_layers * EXIT_SHARE)),)
    if kind == "streaming":
        return tuple(range(max(0, num_layers - STREAMED_LAYERS), num_layers))
    return tuple(sorted({min(2, num_layers), num_layers // 2, max(0, num_layers - 3)}))


def draft_vocabulary(texts: Iterable[Iterable[int]], vocab_size: int) -> torch.Tensor:
    """Return the most frequent tokens, ascending, [Vd]."""
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(text)
    ids = [token_id for token_id, _ in counts.most_common(DRAFT_TOKENS) if token_id < vocab_size]
    return torch.tensor(sorted(ids))


def frozen_of(
    architecture: Architecture, weights: Mapping[str, torch.Tensor], passed: Sequence[int] = ()
) -> Frozen:
    """Return what of a checkpoint heads need in training, with the layers that streams pass."""
    embedding = weights["model.embed_tokens.weight"].float()
    head = embedding
    if not architecture.has_tied_embeddings:
        head = weights["lm_head.weight"].float()
    layers = LastLayers.of(architecture, weights, passed) if passed else None
    return Frozen(embedding, weights["model.norm.weight"].float(), head, layers)


def begin(
    kind: Kind,
    depth: int,
    architecture: Architecture,
    weights: Mapping[str, torch.Tensor],
    draft_ids: torch.Tensor,
    seed: int = 0,
) -> Head:
    """Return a head to train; its tensors are float32."""
    generator = torch.Generator().manual_seed(seed)
    sizes = _sizes(architecture)
    frozen = frozen_of(architecture, weights)
    hidden = sizes.hidden_size
    tensors = {
        "norm.weight": frozen.final_norm.clone(),
        "lm_head.weight": frozen.head[draft_ids].clone(),
    }
    if kind == "medusa":
        tensors["token_norm.weight"] = torch.ones(hidden)
        for number in range(depth):
            tensors[f"heads.{number}.linear.weight"] = torch.zeros(hidden, hidden)
            tensors[f"heads.{number}.token.weight"] = torch.zeros(hidden, hidden)
            tensors[f"heads.{number}.linear.bias"] = torch.zeros(hidden)
    elif kind == "draft_model":
        for number, source in enumerate(_spread(architecture.num_layers)):
            tensors |= _layer(f"layers.{number}", source, weights)
    elif kind == "layer_skip":
        tensors |= exit_tensors(hidden)
    elif kind == "streaming":
        passed = taps_of(kind, architecture.num_layers)
        tensors |= stream_tensors(architecture, passed, depth, generator)
    elif kind == "mtp":
        for number in range(depth):
            tensors |= _module(f"layers.{number}", architecture, weights, generator)
    else:
        tensors |= _fused(
            architecture, weights, len(taps_of(kind, architecture.num_layers)), generator
        )
    if kind == "parallel":
        tensors["mask_embedding"] = frozen.embedding.mean(0)
        tensors["mask_features"] = torch.randn(depth - 1, hidden, generator=generator) * 0.1
    taps = taps_of(kind, architecture.num_layers)
    return Head(kind, taps, depth, sizes, tensors, draft_ids)


def _sizes(architecture: Architecture) -> HeadSizes:
    return HeadSizes(
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_heads=architecture.num_heads,
        num_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        norm_eps=architecture.norm_eps,
        rope_theta=architecture.rope_theta,
    )


def _spread(num_layers: int) -> list[int]:
    """Return the layers that a draft model keeps: the outer ones, which carry most alone."""
    return sorted({0, num_layers - 1})


def _layer(name: str, source: int, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a layer of the target under another name, biases and head norms left out."""
    parts = [
        *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    return {
        f"{name}.{part}": weights[f"model.layers.{source}.{part}"].float().clone() for part in parts
    }


def _module(
    name: str,
    architecture: Architecture,
    weights: Mapping[str, torch.Tensor],
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Return a module that at first passes the feature on through the target's last layer."""
    hidden = architecture.hidden_size
    joint = torch.randn(hidden, 2 * hidden, generator=generator) * 0.02
    joint[:, hidden:] += torch.eye(hidden)
    return {
        **_layer(name, architecture.num_layers - 1, weights),
        f"{name}.enorm.weight": torch.ones(hidden),
        f"{name}.hnorm.weight": torch.ones(hidden),
        f"{name}.eh_proj.weight": joint,
    }


def _fused(
    architecture: Architecture,
    weights: Mapping[str, torch.Tensor],
    num_taps: int,
    generator: torch.Generator,
) -> dict[str, torch.Tensor]:
    """Return a layer over token and feature, whose feature is at first the latest stream."""
    hidden = architecture.hidden_size
    tensors = _layer("layers.0", architecture.num_layers - 1, weights)
    for part in "qkv":
        name = f"layers.0.self_attn.{part}_proj.weight"
        of_token = torch.randn(tensors[name].shape, generator=generator) * 0.02
        tensors[name] = torch.cat((of_token, tensors[name]), 1)
    tensors["layers.0.hidden_norm.weight"] = tensors["layers.0.input_layernorm.weight"].clone()
    tensors["layers.0.input_layernorm.weight"] = torch.ones(hidden)
    fuser = torch.randn(hidden, num_taps * hidden, generator=generator) * 0.002
    fuser[:, -hidden:] += torch.eye(hidden)
    tensors["fc.weight"] = fuser
    return tensors
