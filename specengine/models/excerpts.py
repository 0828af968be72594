"""Decoders of some of a target's layers, with an output layer of their own: for drafters.

They compute in the target's arithmetic, over a view of its cache (``KVCache.layers``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from specengine.errors import LoadError
from specengine.models.adapters import Adapter
from specengine.models.architecture import Architecture
from specengine.models.decoder import Decoder
from specengine.models.graphs import GraphDecoder
from specengine.models.integer import IntegerDecoder, IntegerMatrix
from specengine.models.load import MergedReader, TensorReader, read_layer
from specengine.models.target import Target
from specengine.models.targets import Precision, matrix_maker
from specengine.models.weights import Product, Weights

Excerpt = Decoder | IntegerDecoder


def first_layers(
    target: Target, num_layers: int, norm: torch.Tensor, output: torch.Tensor
) -> Excerpt:
    """Return a decoder of the target's first layers, whose weights it shares.

    Shapes:  norm [hidden]; output [Vd, hidden], in any precision.
    Raises:  LoadError for a target on a GPU.
    """
    whole = _runnable(target)
    sizes = _sizes(whole, num_layers, output)
    norm = norm.float().contiguous()
    if isinstance(whole, IntegerDecoder):
        known, head = whole.weights, IntegerMatrix.of(output)
        layers = known.layers[:num_layers]
        return IntegerDecoder(sizes, Weights(known.embedding, layers, norm, head), whole.kernel)
    head = _maker(whole)(output, None)
    layers = whole.weights.layers[:num_layers]
    return Decoder(sizes, Weights(whole.weights.embedding, layers, norm, head), whole.precision)


def last_layers(
    target: Target,
    first: int,
    reader: TensorReader,
    change: Adapter,
    norm: torch.Tensor,
    output: torch.Tensor,
) -> Excerpt:
    """Return a decoder of the target's layers from ``first`` on with a change: copies of them.

    ``reader`` gives the weights that the target was made of. A pass begins with streams that have
    passed the layers before, in ``Rows.inputs``.

    Shapes:  as for ``first_layers``.
    Raises:  LoadError for a target on a GPU, and where weights and change do not fit the target.
    """
    whole = _runnable(target)
    num_layers = whole.architecture.num_layers
    sizes = _sizes(whole, num_layers - first, output)
    norm, changed = norm.float().contiguous(), MergedReader(reader, change)
    embedding, indices = whole.weights.embedding, range(first, num_layers)
    if isinstance(whole, IntegerDecoder):
        of = IntegerMatrix.of
        layers = [read_layer(changed, sizes, index, of, are_paired=False) for index in indices]
        weights = Weights(embedding, tuple(layers), norm, of(output))
        return IntegerDecoder(sizes, weights, whole.kernel)
    make = _maker(whole)
    layers = [read_layer(changed, sizes, index, make, are_paired=True) for index in indices]
    weights = Weights(embedding, tuple(layers), norm, make(output, None))
    return Decoder(sizes, weights, whole.precision)


def _runnable(target: Target) -> Excerpt:
    assert isinstance(target, Excerpt)
    if isinstance(target, GraphDecoder):
        raise LoadError(
            "drafters that run layers of the target cannot do so on a GPU yet.",
            hint="Choose another drafter, or --device cpu.",
        )
    return target


def _sizes(whole: Excerpt, num_layers: int, output: torch.Tensor) -> Architecture:
    return replace(whole.architecture, num_layers=num_layers, vocab_size=output.shape[0])


def _maker(whole: Decoder) -> Callable[[torch.Tensor, torch.Tensor | None], Product]:
    """Return what makes matrices like those of a decoder."""
    dtype = whole.dtype
    make = matrix_maker(cast("Precision", whole.precision), whole.device)

    def converted(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        return make(weight.to(dtype), None if bias is None else bias.to(dtype))

    return converted
