"""One layer of a Llama, for rows whose attention somebody else provides.

The same lines run in training, on batches, and in the engine, on a few rows with stored keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specengine.heads.head import Head, HeadSizes, MakeProduct, norm
from specengine.models.weights import Product

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From queries [..., T, H, D], keys and values [..., T, KV, D] to [..., T, H x D]."""


@dataclass(frozen=True)
class Block:
    """The weights of a layer, and how they are applied."""

    sizes: HeadSizes
    qkv: Product
    output: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    down: Product

    @classmethod
    def of(cls, head: Head, name: str, num_in: int, make: MakeProduct) -> Block:
        """Take the layer ``name`` of a head; its attention reads rows of ``num_in``."""
        sizes = head.sizes
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        numbers = {"q": sizes.num_heads, "k": sizes.num_kv_heads, "v": sizes.num_kv_heads}
        qkv = [
            head.tensor(f"{name}.self_attn.{part}_proj.weight", number * sizes.head_dim, num_in)
            for part, number in numbers.items()
        ]
        gate_up = [
            head.tensor(f"{name}.mlp.{part}_proj.weight", inner, hidden) for part in ("gate", "up")
        ]
        num_values = sizes.num_heads * sizes.head_dim
        return cls(
            sizes,
            make(torch.cat(qkv), None),
            make(head.tensor(f"{name}.self_attn.o_proj.weight", hidden, num_values), None),
            head.tensor(f"{name}.post_attention_layernorm.weight", hidden),
            make(torch.cat(gate_up), None),
            make(head.tensor(f"{name}.mlp.down_proj.weight", hidden, inner), None),
        )

    def __call__(
        self,
        entering: torch.Tensor,
        residual: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> torch.Tensor:
        """Return the rows behind the layer.

        Shapes:  entering [..., T, num_in] is what attention reads; residual and result
            [..., T, hidden]; turns [T, D / 2] each.
        """
        sizes = self.sizes
        num_qk = sizes.num_heads + sizes.num_kv_heads
        qkv = self.qkv(entering)
        qkv = qkv.view(*qkv.shape[:-1], num_qk + sizes.num_kv_heads, sizes.head_dim)
        turned = rotate(qkv[..., :num_qk, :], turns)
        queries, keys = turned[..., : sizes.num_heads, :], turned[..., sizes.num_heads :, :]
        stream = residual + self.output(attend(queries, keys, qkv[..., num_qk:, :]))
        gate, up = self.gate_up(norm(stream, self.mlp_norm, sizes.norm_eps)).chunk(2, -1)
        return stream + self.down(F.silu(gate) * up)


def turns_of(sizes: HeadSizes, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of each position's angles, [T, D / 2] each."""
    half = torch.arange(0, sizes.head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = torch.outer(positions.double(), sizes.rope_theta ** (-half / sizes.head_dim))
    return angles.cos().float(), angles.sin().float()


def rotate(heads: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Turn the halves of each head by its row's angles; [..., T, heads, D]."""
    cos, sin = (each[:, None] for each in turns)
    first, second = heads.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def weigh(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor
) -> torch.Tensor:
    """Return the attention of rows to some keys; the mask says which ones each must not see.

    Shapes:  queries [..., T, H, D]; keys, values [..., S, KV, D]; hidden [T, S], bool; result
        [..., T, H x D].
    """
    *batch, num_heads, dim = queries.shape
    num_groups = keys.shape[-2]
    grouped = queries.reshape(*batch, num_groups, num_heads // num_groups, dim)
    scores = torch.einsum("...tgqd,...sgd->...gqts", grouped, keys) * queries.shape[-1] ** -0.5
    shares = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("...gqts,...sgd->...tgqd", shares, values).flatten(-3)
