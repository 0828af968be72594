"""What a trained head is made of, in memory: sizes, tensors by name, and its vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, cast

import torch

from specengine.errors import LoadError
from specengine.models.architecture import LinearScaling, Llama3Scaling
from specengine.models.weights import Product

Kind = Literal[
    "medusa",
    "eagle",
    "eagle1",
    "mtp",
    "parallel",
    "dflash",
    "streaming",
    "layer_skip",
    "draft_model",
]

MakeProduct = Callable[[torch.Tensor, torch.Tensor | None], Product]
"""From a weight and a bias to what rows can be multiplied with."""


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a head's layers, which may differ from the target's."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | LinearScaling | None = None


@dataclass(frozen=True)
class Variant:
    """Ways in which networks of one kind differ, beyond which tensors they have."""

    norm_before_residual: bool = False
    """Whether the residual of EAGLE-3's layer begins behind the norm of its features."""
    norm_output: bool = False
    """Whether EAGLE-3 goes on from its normed rows, as version 3.1 does."""
    mask_id: int = -1
    """The token that stands for what DFlash does not know yet."""
    guesses_at_anchor: bool = False
    """Whether DFlash guesses at the last known token too, not only at masks."""


STANDARD: Final = Variant()


@dataclass(frozen=True)
class Head:
    """A head as it is trained, saved and loaded."""

    kind: Kind
    layers: tuple[int, ...]
    """How many layers the streams have passed that it reads; see ``Tap``."""
    depth: int
    """Tokens that it was trained to draft in a row."""
    sizes: HeadSizes
    tensors: Mapping[str, torch.Tensor]
    draft_ids: torch.Tensor
    """[Vd] int64: the target's token for each of its own."""
    variant: Variant = STANDARD

    def has(self, name: str) -> bool:
        """Say whether there is a tensor of that name."""
        return name in self.tensors

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """Return a tensor of a given shape; -1 takes any size.

        Raises:  LoadError when it is missing or of another shape.
        """
        found = self.tensors.get(name)
        if found is None:
            raise LoadError(f"the {self.kind} head lacks {name}.")
        if len(found.shape) != len(shape) or any(
            want not in (-1, has) for want, has in zip(shape, found.shape, strict=True)
        ):
            raise LoadError(f"{name} of the {self.kind} head is {tuple(found.shape)}, not {shape}.")
        return found

    def ids(self) -> list[int]:
        """Return the target's token for each of its own, as a list."""
        return cast("list[int]", self.draft_ids.tolist())  # pyright: ignore[reportUnknownMemberType]

    def check_fits(self, hidden_size: int, vocab_size: int, num_layers: int) -> None:
        """Refuse a head that was trained for a target of other sizes.

        Raises:  LoadError.
        """
        if self.sizes.hidden_size != hidden_size:
            raise LoadError(
                f"the {self.kind} head has rows of {self.sizes.hidden_size}, its target has "
                f"{hidden_size}.",
                hint="It was trained for another model.",
            )
        if len(self.draft_ids) == 0 or not 0 <= int(self.draft_ids.max()) < vocab_size:
            raise LoadError(
                f"the {self.kind} head knows token {int(self.draft_ids.max())}; its target has "
                f"{vocab_size}.",
                hint="It was trained for another model.",
            )
        if any(not 0 <= layer <= num_layers for layer in self.layers):
            raise LoadError(
                f"the {self.kind} head reads layers {self.layers}; its target has {num_layers}.",
                hint="It was trained for another model.",
            )


def norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return rows scaled to a root mean square of one, times the weight."""
    wide = rows.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight
