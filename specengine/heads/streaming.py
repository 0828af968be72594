"""Streams that guess the next positions: rows of their own through the target's last layers.

Its tensors; the layers that it reads are where the streams begin and all up to the target's last:

    embeddings       [depth, hidden]   of each stream, added to what the last position has there
    norm.weight      [hidden]
    lm_head.weight   [Vd, hidden]
    layers.N.self_attn.q_proj.lora_A.weight [r, in] and .lora_B.weight [out, r], for each of those
                     layers; so too for k_proj, v_proj, o_proj and for mlp.gate_proj, mlp.up_proj,
                     mlp.down_proj: the change of the target's weights

The streams that enter the later layers are needed in training only, for their keys.

Source:  Bhendawade et al. 2024, arXiv 2402.11131, section 3.1.
"""

from __future__ import annotations

from typing import Final

import torch

from specengine.errors import LoadError
from specengine.heads.head import Head
from specengine.models.adapters import Adapter, Factors

SCALE: Final = 2.0
"""Of the product of the factors."""
MATRICES: Final = (
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)
"""Of a layer, by their names in a checkpoint."""


def stream_embeddings(head: Head) -> torch.Tensor:
    """Return what the streams add to the position that they begin from, [depth, hidden]."""
    return head.tensor("embeddings", head.depth, head.sizes.hidden_size).float()


def factors_of(head: Head, layer: int, matrix: str) -> Factors:
    """Return the change of a matrix of the target.

    Raises:  LoadError when a factor is missing, or both are of different ranks.
    """
    name = f"layers.{layer}.{matrix}"
    down = head.tensor(f"{name}.lora_A.weight", -1, -1)
    return Factors(down, head.tensor(f"{name}.lora_B.weight", -1, len(down)))


def first_of(head: Head, num_layers: int) -> int:
    """Return where the streams begin in a target of so many layers.

    Raises:  LoadError when they do not pass all layers from there on.
    """
    if head.layers != tuple(range(head.layers[0], num_layers)):
        raise LoadError(
            f"the streaming head passes layers {head.layers}; its target ends with "
            f"{num_layers - 1}.",
            hint="It was trained for another model.",
        )
    return head.layers[0]


def change_of(head: Head) -> Adapter:
    """Return the change of the layers that streams pass."""
    places = [(layer, matrix) for layer in head.layers for matrix in MATRICES]
    return Adapter(
        SCALE,
        {
            f"model.layers.{layer}.{matrix}.weight": factors_of(head, layer, matrix)
            for layer, matrix in places
        },
    )
