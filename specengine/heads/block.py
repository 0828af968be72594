"""One layer of a Llama, for rows whose attention somebody else provides.

The same lines run in training, on batches, and in the engine, on a few rows with stored keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specengine.heads.head import Head, HeadSizes, MakeProduct, norm
from specengine.models.architecture import rope_frequencies
from specengine.models.weights import Product

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From queries [..., T, H, D], keys and values [..., T, KV, D] to [..., T, H x D]."""


@dataclass(frozen=True)
class Block:
    """The weights of a layer, and how they are applied."""

    sizes: HeadSizes
    qkv: Product
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Product
    mlp_norm: torch.Tensor
    gate_up: Product
    down: Product

    @classmethod
    def of(cls, head: Head, name: str, num_in: int, make: MakeProduct) -> Block:
        """Take the layer ``name`` of a head; its attention reads rows of ``num_in``.

        Biases, and norms of queries and keys, are taken if there are any.

        Raises:  LoadError when a tensor is missing or of another shape.
        """
        sizes = head.sizes
        hidden, inner = sizes.hidden_size, sizes.intermediate_size
        gate_up = [
            head.tensor(f"{name}.mlp.{part}_proj.weight", inner, hidden) for part in ("gate", "up")
        ]
        num_values = sizes.num_heads * sizes.head_dim
        attention = f"{name}.self_attn"
        return cls(
            sizes,
            make(*_qkv(head, attention, num_in)),
            _head_norm(head, attention, "q"),
            _head_norm(head, attention, "k"),
            make(
                head.tensor(f"{attention}.o_proj.weight", hidden, num_values),
                _optional(head, f"{attention}.o_proj.bias", hidden),
            ),
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
        stream = residual + self.output(attend(*self.queries_keys_values(entering, turns)))
        gate, up = self.gate_up(norm(stream, self.mlp_norm, self.sizes.norm_eps)).chunk(2, -1)
        return stream + self.down(F.silu(gate) * up)

    def queries_keys_values(
        self, entering: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what attention compares, turned: [..., T, H, D] and twice [..., T, KV, D]."""
        sizes = self.sizes
        qkv = self.qkv(entering)
        qkv = qkv.view(*qkv.shape[:-1], -1, sizes.head_dim)
        first_value = sizes.num_heads + sizes.num_kv_heads
        queries, values = qkv[..., : sizes.num_heads, :], qkv[..., first_value:, :]
        keys = qkv[..., sizes.num_heads : first_value, :]
        queries = rotate(self._normed(queries, self.query_norm), turns)
        return queries, rotate(self._normed(keys, self.key_norm), turns), values

    def _normed(self, heads: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return heads if weight is None else norm(heads, weight, self.sizes.norm_eps)


def turns_of(sizes: HeadSizes, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of each position's angles, [T, D / 2] each."""
    angles = torch.outer(positions.double(), _frequencies(sizes, positions.device))
    return angles.cos().float(), angles.sin().float()


@functools.cache
def _frequencies(sizes: HeadSizes, device: torch.device) -> torch.Tensor:
    # Sent to a device once, and kept: a pass that is recorded reads it where it lies.
    with torch.inference_mode(mode=False):
        return rope_frequencies(sizes).to(device)


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


def _qkv(head: Head, name: str, num_in: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return queries, keys and values as one weight and bias."""
    sizes = head.sizes
    numbers = {"q": sizes.num_heads, "k": sizes.num_kv_heads, "v": sizes.num_kv_heads}
    weights: list[torch.Tensor] = []
    biases: list[torch.Tensor] = []
    for part, number in numbers.items():
        num_out = number * sizes.head_dim
        weights.append(head.tensor(f"{name}.{part}_proj.weight", num_out, num_in))
        if any(head.has(f"{name}.{each}_proj.bias") for each in numbers):
            biases.append(head.tensor(f"{name}.{part}_proj.bias", num_out))
    return torch.cat(weights), torch.cat(biases) if biases else None


def _head_norm(head: Head, name: str, part: str) -> torch.Tensor | None:
    """Return the norm of queries or keys, where both have one."""
    if not any(head.has(f"{name}.{each}_norm.weight") for each in "qk"):
        return None
    return head.tensor(f"{name}.{part}_norm.weight", head.sizes.head_dim)


def _optional(head: Head, name: str, *shape: int) -> torch.Tensor | None:
    return head.tensor(name, *shape) if head.has(name) else None
