"""Heads of random weights for a tiny target."""

from __future__ import annotations

import math

import torch

from specengine.heads.head import Head, HeadSizes, Kind
from specengine.models.architecture import Architecture

DEPTH = 3
NUM_DRAFT_IDS = 90


def sizes_of(architecture: Architecture) -> HeadSizes:
    return HeadSizes(
        hidden_size=architecture.hidden_size,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        norm_eps=1e-5,
        rope_theta=10_000.0,
    )


def tiny_head(kind: Kind, architecture: Architecture, seed: int = 0) -> Head:
    """Return a head that guesses nonsense with some confidence."""
    generator = torch.Generator().manual_seed(seed)
    sizes = sizes_of(architecture)
    hidden, values = sizes.hidden_size, sizes.num_heads * sizes.head_dim
    tensors: dict[str, torch.Tensor] = {}

    def matrix(name: str, *shape: int, scale: float = 1.0) -> None:
        tensors[name] = torch.randn(shape, generator=generator) * scale / math.sqrt(shape[-1])

    def vector(name: str) -> None:
        tensors[name] = 1 + 0.2 * torch.randn(hidden, generator=generator)

    draft_ids = torch.randperm(architecture.vocab_size, generator=generator)[:NUM_DRAFT_IDS]
    matrix("lm_head.weight", NUM_DRAFT_IDS, hidden, scale=4.0)
    vector("norm.weight")
    last = architecture.num_layers
    if kind == "medusa":
        vector("token_norm.weight")
        for number in range(DEPTH):
            matrix(f"heads.{number}.linear.weight", hidden, hidden)
            matrix(f"heads.{number}.token.weight", hidden, hidden)
            tensors[f"heads.{number}.linear.bias"] = torch.zeros(hidden)
        return Head(kind, (last,), DEPTH, sizes, tensors, draft_ids.sort().values)
    layers = {"mtp": (last,), "draft_model": ()}.get(kind, (0, 1, last))
    num_in = hidden if kind in ("mtp", "draft_model") else 2 * hidden
    for module in range({"mtp": DEPTH, "draft_model": 2}.get(kind, 1)):
        name = f"layers.{module}"
        for part, rows in (("q", values), ("k", values // 2), ("v", values // 2)):
            matrix(f"{name}.self_attn.{part}_proj.weight", rows, num_in)
        matrix(f"{name}.self_attn.o_proj.weight", hidden, values)
        for part in ("gate", "up"):
            matrix(f"{name}.mlp.{part}_proj.weight", sizes.intermediate_size, hidden)
        matrix(f"{name}.mlp.down_proj.weight", hidden, sizes.intermediate_size)
        vector(f"{name}.post_attention_layernorm.weight")
        vector(f"{name}.input_layernorm.weight")
        if kind == "mtp":
            vector(f"{name}.enorm.weight")
            vector(f"{name}.hnorm.weight")
            matrix(f"{name}.eh_proj.weight", hidden, 2 * hidden)
        elif kind != "draft_model":
            vector(f"{name}.hidden_norm.weight")
    if kind not in ("mtp", "draft_model"):
        matrix("fc.weight", hidden, 3 * hidden)
    if kind == "parallel":
        matrix("mask_embedding", hidden)
        matrix("mask_features", DEPTH - 1, hidden)
    return Head(kind, layers, DEPTH, sizes, tensors, draft_ids.sort().values)
