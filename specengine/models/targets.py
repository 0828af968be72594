"""From a model's folder to a target in the precision that is asked for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import torch
import torch.nn.functional as F

from specengine.errors import LoadError
from specengine.models.architecture import Architecture, read_architecture
from specengine.models.decoder import Decoder
from specengine.models.graphs import GraphDecoder
from specengine.models.int4 import Int4Linear
from specengine.models.integer import LANES, IntegerDecoder, IntegerLinear, IntegerMatrix, why_not
from specengine.models.limbs import LimbLinear
from specengine.models.linear import ROW_BLOCK, Linear, pack, proven_widths
from specengine.models.load import OnFraction, TensorReader, WeightReader, read_weights
from specengine.models.memory import NO_SEQUENCES, Sequences, check_memory
from specengine.models.staging import cache_root
from specengine.models.target import Target
from specengine.models.weights import Product
from specengine.native.build import Kernel, best_kernel

logger = logging.getLogger(__name__)

Precision = Literal["int8", "int4", "bfloat16", "float32"]
AnyPrecision = Literal["auto", "int8", "int4", "bfloat16", "float32"]
DTYPES: Final[Mapping[Precision, torch.dtype]] = {
    "int8": torch.bfloat16,
    "int4": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
"""Of activations, keys and values where torch runs the model."""
STEP_ROWS: Final = 8
CPU: Final = torch.device("cpu")


def load_target(
    folder: Path,
    precision: AnyPrecision = "auto",
    *,
    device: str = "auto",
    step_rows: int = STEP_ROWS,
    sequences: Sequences = NO_SEQUENCES,
    on_fraction: OnFraction | None = None,
) -> Target:
    """Return the model whose weights lie in ``folder``.

    ``step_rows`` is the width of a step: the longest draft and one more. ``sequences`` will be kept
    beside the weights.

    Raises:  LoadError when weights are missing, of a wrong shape, or too large for the memory.
    """
    architecture = read_architecture(folder)
    place = device_named(device)
    chosen = precision_on(place) if precision == "auto" else precision
    check_memory(architecture, chosen, place, sequences)
    reader = WeightReader(folder, DTYPES[chosen], place)
    try:
        return target_of(
            reader, architecture, chosen, place, step_rows=step_rows, on_fraction=on_fraction
        )
    except torch.OutOfMemoryError as error:
        raise LoadError(f"not enough memory on {place} for the model in {folder}.") from error


def target_of(
    reader: TensorReader,
    architecture: Architecture,
    precision: Precision,
    device: torch.device,
    *,
    step_rows: int = STEP_ROWS,
    on_fraction: OnFraction | None = None,
) -> Target:
    """Return a target of the weights that a reader gives."""
    if precision == "int8":
        kernel = find_kernel(architecture, device)
        if isinstance(kernel, Kernel):
            return _integer_decoder(reader, architecture, kernel, on_fraction)
        logger.info("int8 is computed by torch: %s", kernel)
    return _decoder(reader, architecture, precision, device, step_rows, on_fraction)


def device_named(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is a GPU of CUDA where torch can use one.

    Raises:  LoadError when it cannot be used.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        # A device without memory of its own, such as meta, has no number to give back.
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise LoadError(
            f"the device {name!r} cannot be used: {str(error).splitlines()[0][:200].rstrip('.')}.",
            hint="Choose cpu, or cuda with a build of torch for it.",
        ) from error
    return device


def precision_on(device: torch.device) -> Precision:
    """Return the precision that ``auto`` stands for."""
    return "int8" if device.type == "cpu" else "bfloat16"


def decoder_from(
    architecture: Architecture, tensors: Mapping[str, torch.Tensor], precision: Precision
) -> Decoder:
    """Return a decoder by torch of tensors with Hugging Face names, for small models in memory."""
    reader = TensorReader(tensors, DTYPES[precision])
    return _decoder(reader, architecture, precision, CPU, STEP_ROWS, None)


def integer_decoder_from(
    architecture: Architecture, tensors: Mapping[str, torch.Tensor], kernel: Kernel
) -> IntegerDecoder:
    """Return a decoder by the native pass, as ``decoder_from`` does."""
    return _integer_decoder(TensorReader(tensors, torch.float32), architecture, kernel, None)


def product_maker(target: Target) -> Callable[[torch.Tensor, torch.Tensor | None], Product]:
    """Return what makes products of small networks beside a target, in its own arithmetic."""
    if isinstance(target, IntegerDecoder):
        return functools.partial(_integer_product, target.kernel)
    assert isinstance(target, Decoder)
    device, dtype = target.device, target.dtype

    def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        own = weight.to(device, dtype)
        own_bias = None if bias is None else bias.to(device, dtype)
        return lambda rows: F.linear(rows.to(dtype), own, own_bias).float()

    return linear


def _integer_product(kernel: Kernel, weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    # Rows of other widths are rare; torch multiplies them, to the same bits.
    if weight.shape[1] % LANES:
        return LimbLinear.of(weight, bias)
    return IntegerLinear.of(weight, bias, kernel)


def embedding_of(target: Target) -> torch.Tensor:
    """Return a target's embedding, [V, hidden]."""
    assert isinstance(target, IntegerDecoder | Decoder)
    return target.weights.embedding


def final_norm_of(target: Target) -> torch.Tensor:
    """Return the weight of the norm in front of a target's output layer, [hidden], float32."""
    assert isinstance(target, IntegerDecoder | Decoder)
    return target.weights.final_norm


def output_of(target: Target) -> Product:
    """Return a target's output layer, for rows of a small network, [T, hidden] to [T, V]."""
    if isinstance(target, IntegerDecoder):
        return IntegerLinear(
            target.weights.head,
            target.vocab_size,
            target.architecture.hidden_size,
            target.kernel,
        )
    assert isinstance(target, Decoder)
    head, dtype = target.weights.head, target.dtype

    def scores(rows: torch.Tensor) -> torch.Tensor:
        padding = (0, 0, 0, -len(rows) % ROW_BLOCK)
        return head(F.pad(rows.to(dtype), padding))[: len(rows)].float()

    return scores


def find_kernel(architecture: Architecture, device: torch.device = CPU) -> Kernel | str:
    """Return the kernel of the native pass that runs such a model, or why there is none."""
    if device.type != "cpu":
        return f"it runs on the CPU, not on {device}"
    reason = why_not(architecture)
    if reason is not None:
        return f"the native pass cannot run {reason}"
    kernel = best_kernel(cache_root() / "native")
    return kernel or "it needs a C compiler, and a processor with AVX2 or of the Arm kind"


def _integer_decoder(
    reader: TensorReader, sizes: Architecture, kernel: Kernel, on_fraction: OnFraction | None
) -> IntegerDecoder:
    weights = read_weights(
        reader, sizes, IntegerMatrix.of, are_paired=False, on_fraction=on_fraction
    )
    return IntegerDecoder(sizes, weights, kernel)


def _decoder(
    reader: TensorReader,
    sizes: Architecture,
    precision: Precision,
    device: torch.device,
    step_rows: int,
    on_fraction: OnFraction | None,
) -> Decoder:
    make = matrix_maker(precision, device)
    weights = read_weights(reader, sizes, make, are_paired=True, on_fraction=on_fraction)
    if device.type == "cuda":
        return GraphDecoder(sizes, weights, precision, step_rows=step_rows)
    return Decoder(sizes, weights, precision)


def matrix_maker(
    precision: Precision, device: torch.device
) -> Callable[[torch.Tensor, torch.Tensor | None], Product]:
    """Return what makes the matrices of a decoder by torch, of a weight and its bias."""
    if precision == "int8":
        return LimbLinear.of
    if precision == "int4":
        return Int4Linear.of
    if device.type != "cpu":
        return lambda weight, bias: Linear(weight, bias, None)
    widths: dict[tuple[int, ...], tuple[int, ...]] = {}

    def linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        # Layers share shapes, and a kernel is chosen by shape: one proof serves them all.
        kind, packed = (*weight.shape, bias is not None), pack(weight)
        if kind not in widths:
            widths[kind] = proven_widths(packed, bias)
        return Linear(packed, bias, widths[kind])

    return linear
