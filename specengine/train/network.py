"""The forward pass to differentiate: a batch of token rows in, hidden states out.

It computes what ``models/decoder.py`` computes, for whole batches and without a cache; a test holds
one against the other. Weights are frozen. What learns is a low-rank change of each matrix, which is
merged into it before each step: a pass then costs what the plain model costs, and sees the very
weights that will be shipped. The gradient of the factors is taken from the product of the merged
matrix by the chain rule, without the gradient of the whole matrix.

Source:  LoRA, Hu et al. 2021, arXiv 2106.09685, equation 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
import torch.nn.functional as F

from specengine.errors import LoadError
from specengine.models.adapters import Adapter, Factors
from specengine.models.architecture import Architecture, rope_frequencies

ALPHA_PER_RANK: Final = 2.0
"""The usual scale of the product of the factors."""
LOSS_ROWS: Final = 128
"""Rows whose logits are in memory at one time: those of a batch would be half a gigabyte."""
COMPILE_OPTIONS: Final[Mapping[str, int]] = {"cpp.simdlen": 256}
"""Bits of a vector: with 512, torch 2.13 makes gradients of the attention that are no numbers on
CPUs with AMX. It is as fast, as the time goes into matrix products."""


@dataclass
class Matrix:
    """A frozen weight [out, in] with the low-rank change that is being learnt."""

    names: tuple[str, ...]
    """Of the checkpoint's weights that lie below each other in it."""
    sizes: tuple[int, ...]
    """Their numbers of rows."""
    frozen: torch.Tensor
    down: torch.Tensor
    """[rank, in], float32: A of the paper."""
    up: torch.Tensor
    """[out, rank], float32: B of the paper."""
    merged: torch.Tensor
    bias: torch.Tensor | None = None

    @torch.no_grad()
    def merge(self) -> None:
        """Add the change to the frozen weight, in float32, and round once."""
        changed = torch.addmm(self.frozen.float(), self.up, self.down, alpha=ALPHA_PER_RANK)
        self.merged.copy_(changed)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return what a product with it needs."""
        return (self.merged, self.down, self.up)


@dataclass
class TrainedLayer:
    """One layer; q, k, v are one matrix, gate and up another."""

    attention_norm: torch.Tensor
    qkv: Matrix
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Matrix
    mlp_norm: torch.Tensor
    gate_up: Matrix
    down: Matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Return all that learns."""
        return (self.qkv, self.output, self.gate_up, self.down)


class _MergedProduct(torch.autograd.Function):
    """x W'ᵀ with W' = W + s B A; gradients for x, A and B only."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, merged: torch.Tensor, down: torch.Tensor, up: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(x, merged, down, up)
        return F.linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, merged, down, up = cast("tuple[torch.Tensor, ...]", ctx.saved_tensors)
        grad = grads[0]
        grad_x = grad @ merged
        rows, grad_rows = x.flatten(0, -2), grad.flatten(0, -2)
        scaled = grad_rows * ALPHA_PER_RANK
        grad_up = scaled.T @ (rows @ down.to(x.dtype).T)
        grad_down = (scaled @ up.to(x.dtype)).T @ rows
        return grad_x, None, grad_down.float(), grad_up.float()


_product = cast(
    "Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]",
    _MergedProduct.apply,  # pyright: ignore[reportUnknownMemberType]
)


class _HeadLoss(torch.autograd.Function):
    """Cross entropy behind a frozen head; logits live for some rows only, gradients come at once.

    Shapes:  rows [N, hidden], head [vocabulary, hidden], targets [N]; losses and whether the target
    is the likeliest, each [N].
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, head: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        losses, likeliest = torch.empty(len(rows)), torch.empty(len(rows), dtype=torch.bool)
        losses, likeliest = losses.to(rows.device), likeliest.to(rows.device)
        grad = torch.empty_like(rows)
        for start in range(0, len(rows), LOSS_ROWS):
            part = slice(start, start + LOSS_ROWS)
            own = targets[part, None]
            logits = F.linear(rows[part], head).float()
            likeliest[part] = logits.argmax(-1) == targets[part]
            target_logits = logits.gather(1, own)
            normalizer = logits.logsumexp(-1, keepdim=True)
            losses[part] = (normalizer - target_logits)[:, 0]
            if rows.requires_grad:
                excess = logits.sub_(normalizer).exp_()
                excess.scatter_add_(1, own, torch.full_like(target_logits, -1.0))
                torch.mm(excess.to(head.dtype), head, out=grad[part])
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(likeliest)
        return losses, likeliest

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = cast("tuple[torch.Tensor, ...]", ctx.saved_tensors)
        return (grad * grads[0][:, None]).to(grad.dtype), None, None


_head_loss = cast(
    "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]",
    _HeadLoss.apply,  # pyright: ignore[reportUnknownMemberType]
)


class Network:
    """A decoder whose matrices learn; everything else stays as it was loaded."""

    def __init__(
        self,
        architecture: Architecture,
        weights: Mapping[str, torch.Tensor],
        rank: int,
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: str = "cpu",
        is_compiled: bool = True,
    ) -> None:
        """Take a checkpoint's weights by their Hugging Face names; all changes start at zero."""
        self.architecture = architecture
        self._weights, self._dtype, self._device = weights, dtype, torch.device(device)
        self._rank = rank
        self.embedding = self._get("model.embed_tokens.weight")
        self.head = (
            self.embedding if architecture.has_tied_embeddings else self._get("lm_head.weight")
        )
        self.final_norm = self._get("model.norm.weight").float()
        self.layers = [self._layer(index) for index in range(architecture.num_layers)]
        self._frequencies = rope_frequencies(architecture)
        compile_ = cast("Callable[..., Callable[..., torch.Tensor]]", torch.compile)  # pyright: ignore[reportUnknownMemberType]
        self._run_layer = _layer
        if is_compiled:
            self._run_layer = compile_(_layer, dynamic=False, options=COMPILE_OPTIONS)

    @property
    def matrices(self) -> list[Matrix]:
        """Return all that learns, in order."""
        return [matrix for layer in self.layers for matrix in layer.matrices]

    def parameters(self) -> list[torch.Tensor]:
        """Return the factors, which are what an optimizer changes."""
        return [factor for matrix in self.matrices for factor in (matrix.down, matrix.up)]

    def adapter(self) -> Adapter:
        """Return what was learnt, by the names of the checkpoint's weights."""
        factors: dict[str, Factors] = {}
        for matrix in self.matrices:
            ups = torch.split(matrix.up.detach(), list(matrix.sizes))
            for name, up in zip(matrix.names, ups, strict=True):
                factors[f"{name}.weight"] = Factors(matrix.down.detach(), up)
        return Adapter(ALPHA_PER_RANK, factors)

    @torch.no_grad()
    def take(self, adapter: Adapter) -> None:
        """Go on from an adapter of the same rank that this class has made.

        Raises:  LoadError when it has other weights or another rank.
        """
        for matrix in self.matrices:
            factors = [adapter.factors.get(f"{name}.weight") for name in matrix.names]
            ups = [part.up for part in factors if part is not None]
            first = factors[0]
            if first is None or len(ups) != len(factors) or first.down.shape != matrix.down.shape:
                raise LoadError(f"the adapter does not change {matrix.names[0]} as this run does.")
            matrix.down.copy_(first.down)
            matrix.up.copy_(torch.cat(ups) * (adapter.scale / ALPHA_PER_RANK))
        self.merge()

    def merge(self) -> None:
        """Bring the merged weights up to date with the factors."""
        for matrix in self.matrices:
            matrix.merge()

    def hidden(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [B, T, hidden] of rows that begin at position 0.

        Rows that are padded at their end need no mask: no position sees what follows it.
        """
        sizes = self.architecture
        num_tokens = token_ids.shape[1]
        angles = torch.outer(torch.arange(num_tokens, dtype=torch.float64), self._frequencies)
        cos, sin = (turn.float().to(self._device) for turn in (angles.cos(), angles.sin()))
        hidden_mask = torch.full((num_tokens, num_tokens), -1e9, device=self._device).triu(1)
        hidden = self.embedding[token_ids].requires_grad_()
        heads = (sizes.num_heads, sizes.num_kv_heads, sizes.head_dim)
        for layer in self.layers:
            hidden = self._run_layer(
                hidden,
                [matrix.tensors for matrix in layer.matrices],
                layer.qkv.bias,
                (layer.attention_norm, layer.query_norm, layer.key_norm, layer.mlp_norm),
                (cos, sin, hidden_mask),
                heads,
                sizes.norm_eps,
            )
        return hidden

    def losses(self, hidden: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return each row's loss in nats, and whether the target is the likeliest.

        Shapes:  hidden [N, hidden], targets [N], results [N].
        """
        rows = _norm(hidden, self.final_norm, self.architecture.norm_eps)
        return _head_loss(rows, self.head, targets)

    def _get(self, name: str) -> torch.Tensor:
        return self._weights[name].to(self._device, self._dtype)

    def _matrix(self, *names: str, has_bias: bool = False) -> Matrix:
        parts = [self._get(f"{name}.weight") for name in names]
        frozen = torch.cat(parts)
        down = torch.empty(self._rank, frozen.shape[1], device=self._device)
        torch.nn.init.kaiming_uniform_(down, a=math.sqrt(5))
        up = torch.zeros(frozen.shape[0], self._rank, device=self._device)
        return Matrix(
            names=names,
            sizes=tuple(part.shape[0] for part in parts),
            frozen=frozen,
            down=down.requires_grad_(),
            up=up.requires_grad_(),
            merged=frozen.clone(),
            bias=torch.cat([self._get(f"{name}.bias") for name in names]) if has_bias else None,
        )

    def _layer(self, index: int) -> TrainedLayer:
        name = f"model.layers.{index}"
        family = self.architecture.family
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"

        def norm(part: str) -> torch.Tensor:
            return self._get(f"{part}.weight").float()

        has_head_norms = family == "qwen3"
        return TrainedLayer(
            attention_norm=norm(f"{name}.input_layernorm"),
            qkv=self._matrix(
                *(f"{attention}.{part}_proj" for part in "qkv"), has_bias=family == "qwen2"
            ),
            query_norm=norm(f"{attention}.q_norm") if has_head_norms else None,
            key_norm=norm(f"{attention}.k_norm") if has_head_norms else None,
            output=self._matrix(f"{attention}.o_proj"),
            mlp_norm=norm(f"{name}.post_attention_layernorm"),
            gate_up=self._matrix(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=self._matrix(f"{mlp}.down_proj"),
        )


def _layer(
    hidden: torch.Tensor,
    matrices: list[tuple[torch.Tensor, ...]],
    qkv_bias: torch.Tensor | None,
    norms: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor],
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    heads: tuple[int, int, int],
    eps: float,
) -> torch.Tensor:
    """Run one layer on [B, T, hidden]; written as a function so that one compilation serves all."""
    qkv, output, gate_up, down = matrices
    attention_norm, query_norm, key_norm, mlp_norm = norms
    projected = _multiply(_norm(hidden, attention_norm, eps), qkv)
    if qkv_bias is not None:
        projected = projected + qkv_bias
    attended = _attend(projected, query_norm, key_norm, places, heads, eps)
    hidden = hidden + _multiply(attended, output)
    gate, up = _multiply(_norm(hidden, mlp_norm, eps), gate_up).chunk(2, -1)
    return hidden + _multiply(F.silu(gate) * up, down)


def _attend(
    projected: torch.Tensor,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    heads: tuple[int, int, int],
    eps: float,
) -> torch.Tensor:
    """Return the attention [B, T, H x D] of q, k and v, which lie side by side.

    Spelled out: torch's fused CPU attention in bfloat16 has a backward pass that took six times as
    long as these products.
    """
    num_heads, num_kv_heads, head_dim = heads
    cos, sin, mask = places
    batch, length, _ = projected.shape
    group = num_heads // num_kv_heads
    by_head = projected.view(batch, length, -1, head_dim).transpose(1, 2)
    queries, keys, values = torch.split(by_head, [num_heads, num_kv_heads, num_kv_heads], 1)
    if query_norm is not None and key_norm is not None:
        queries, keys = _norm(queries, query_norm, eps), _norm(keys, key_norm, eps)
    queries = _rotate(queries, cos, sin).reshape(batch * num_kv_heads, group * length, head_dim)
    keys = _rotate(keys, cos, sin).reshape(batch * num_kv_heads, length, head_dim)
    values = values.reshape(batch * num_kv_heads, length, head_dim)
    scores = torch.bmm(queries, keys.transpose(1, 2)).view(-1, group, length, length)
    weights = torch.softmax(scores.float() * head_dim**-0.5 + mask, -1).to(values.dtype)
    attended = torch.bmm(weights.view(-1, group * length, length), values)
    return attended.view(batch, num_heads, length, head_dim).transpose(1, 2).flatten(2)


def _multiply(rows: torch.Tensor, matrix: tuple[torch.Tensor, ...]) -> torch.Tensor:
    merged, down, up = matrix
    return _product(rows, merged, down, up)


def _norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = rows.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(rows.dtype)


def _rotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = rows.float().chunk(2, -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return turned.to(rows.dtype)
