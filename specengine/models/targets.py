"""From a model's folder to a target in the precision that is asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch

from specengine.errors import LoadError
from specengine.models.architecture import Architecture, read_architecture
from specengine.models.integer import (
    IntegerDecoder,
    IntegerLayer,
    IntegerMatrix,
    IntegerWeights,
    why_not,
)
from specengine.models.load import (
    OnFraction,
    TensorReader,
    WeightReader,
    check_memory,
    load_decoder,
)
from specengine.models.staging import cache_root
from specengine.models.target import Target
from specengine.native.build import Kernel, best_kernel

logger = logging.getLogger(__name__)

AnyPrecision = Literal["auto", "int8", "bfloat16", "float32"]


def load_target(
    folder: Path,
    precision: AnyPrecision = "auto",
    *,
    device: str = "cpu",
    on_fraction: OnFraction | None = None,
) -> Target:
    """Return the model whose weights lie in ``folder``.

    Raises:  LoadError when weights are missing, of a wrong shape, or too large for the memory, or
        when int8 is asked for and cannot be had.
    """
    if precision in ("bfloat16", "float32"):
        return load_decoder(folder, precision, device=device, on_fraction=on_fraction)
    architecture = read_architecture(folder)
    found = find_kernel(architecture, device)
    if isinstance(found, Kernel):
        check_memory(architecture, "int8", device)
        reader = WeightReader(folder, torch.bfloat16, torch.device(device))
        return _read(reader, architecture, found, on_fraction)
    if precision == "int8":
        raise LoadError(f"int8 cannot be had: {found}.", hint="Choose --precision bfloat16.")
    logger.info("int8 cannot be had (%s), so bfloat16 is used", found)
    return load_decoder(folder, "bfloat16", device=device, on_fraction=on_fraction)


def integer_decoder_from(
    architecture: Architecture, tensors: Mapping[str, torch.Tensor], kernel: Kernel
) -> IntegerDecoder:
    """Return an int8 decoder of tensors with Hugging Face names, for small models in memory."""
    return _read(TensorReader(tensors, torch.float32), architecture, kernel, None)


def find_kernel(architecture: Architecture, device: str = "cpu") -> Kernel | str:
    """Return the kernel that runs a model of these sizes, or why there is none."""
    if torch.device(device).type != "cpu":
        return f"it runs on the CPU, not on {device}"
    reason = why_not(architecture)
    if reason is not None:
        return f"the native pass cannot run {reason}"
    kernel = best_kernel(cache_root() / "native")
    return kernel or "it needs a C compiler, and a processor with AVX2 or of the Arm kind"


def _read(
    reader: TensorReader, sizes: Architecture, kernel: Kernel, on_fraction: OnFraction | None
) -> IntegerDecoder:
    embedding = reader.matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
    layers: list[IntegerLayer] = []
    for index in range(sizes.num_layers):
        layers.append(_read_layer(reader, sizes, f"model.layers.{index}"))
        if on_fraction is not None:
            on_fraction((index + 1) / sizes.num_layers)
    head = embedding
    if not sizes.has_tied_embeddings:
        head = reader.matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)
    final_norm = reader.vector("model.norm.weight", sizes.hidden_size)
    reader.check_all_taken()
    weights = IntegerWeights(embedding, tuple(layers), final_norm, IntegerMatrix.of(head))
    return IntegerDecoder(sizes, weights, kernel)


def _read_layer(reader: TensorReader, sizes: Architecture, name: str) -> IntegerLayer:
    hidden, inner, head_dim = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    mlp, attention = f"{name}.mlp", f"{name}.self_attn"
    heads = {"q": sizes.num_heads, "k": sizes.num_kv_heads, "v": sizes.num_kv_heads}
    qkv = [
        reader.matrix(f"{attention}.{part}_proj.weight", number * head_dim, hidden)
        for part, number in heads.items()
    ]
    bias = None
    if sizes.family == "qwen2":
        parts = [
            reader.matrix(f"{attention}.{part}_proj.bias", number * head_dim)
            for part, number in heads.items()
        ]
        bias = torch.cat(parts)

    def head_norm(part: str) -> torch.Tensor | None:
        if sizes.family != "qwen3":
            return None
        return reader.vector(f"{attention}.{part}_norm.weight", head_dim)

    gate_up = [reader.matrix(f"{mlp}.{part}_proj.weight", inner, hidden) for part in ("gate", "up")]
    output = reader.matrix(f"{attention}.o_proj.weight", hidden, sizes.num_heads * head_dim)
    return IntegerLayer(
        attention_norm=reader.vector(f"{name}.input_layernorm.weight", hidden),
        qkv=IntegerMatrix.of(torch.cat(qkv), bias),
        query_norm=head_norm("q"),
        key_norm=head_norm("k"),
        output=IntegerMatrix.of(output),
        mlp_norm=reader.vector(f"{name}.post_attention_layernorm.weight", hidden),
        gate_up=IntegerMatrix.of(torch.cat(gate_up)),
        down=IntegerMatrix.of(reader.matrix(f"{mlp}.down_proj.weight", hidden, inner)),
    )
