"""Heads of random weights over a tiny target's own layers."""

from __future__ import annotations

import torch

from specengine.heads.head import Head, HeadSizes, Kind
from specengine.models.architecture import Architecture
from specengine.train.heads_self import exit_tensors, stream_tensors
from tests.specengine.tiny import tiny_tensors

DEPTH = 4
NUM_DRAFT_IDS = 90


def tiny_exit(architecture: Architecture, num_layers: int = 1, seed: int = 0) -> Head:
    """Return an exit that is sure of nonsense."""
    generator = torch.Generator().manual_seed(seed)
    hidden = architecture.hidden_size
    tensors = exit_tensors(hidden)
    tensors["adapter.weight"] += 0.2 * torch.randn(hidden, hidden, generator=generator)
    return _head("layer_skip", architecture, (num_layers,), tensors, generator)


def tiny_streams(architecture: Architecture, first: int = 1, seed: int = 0) -> Head:
    """Return streams whose weights differ much from the target's."""
    generator = torch.Generator().manual_seed(seed)
    layers = tuple(range(first, architecture.num_layers))
    tensors = stream_tensors(architecture, layers, DEPTH, generator, rank=4)
    for name, tensor in tensors.items():
        if name.endswith("lora_B.weight"):
            tensors[name] = 0.2 * torch.randn(tensor.shape, generator=generator)
    return _head("streaming", architecture, layers, tensors, generator)


def _head(
    kind: Kind,
    architecture: Architecture,
    layers: tuple[int, ...],
    tensors: dict[str, torch.Tensor],
    generator: torch.Generator,
) -> Head:
    sizes = HeadSizes(
        architecture.hidden_size,
        architecture.intermediate_size,
        architecture.num_heads,
        architecture.num_kv_heads,
        architecture.head_dim,
        architecture.norm_eps,
        architecture.rope_theta,
    )
    ids = torch.randperm(architecture.vocab_size, generator=generator)[:NUM_DRAFT_IDS].sort().values
    weights = tiny_tensors(architecture)
    tensors["norm.weight"] = weights["model.norm.weight"]
    tensors["lm_head.weight"] = 3 * weights["lm_head.weight"][ids]
    return Head(kind, layers, DEPTH, sizes, tensors, ids)
