"""A model of a few thousand weights with a real tokenizer, and drafters that say what a test wants.

The greedy text of a tiny model is deterministic nonsense that depends on the whole prompt. It holds
no special token, so that it ends where its limit is; a test that wants an end gives one more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

from specengine.cache.kv_cache import KVCache
from specengine.draft import Draft
from specengine.models.architecture import Architecture
from specengine.models.decoder import Decoder
from specengine.models.integer import IntegerDecoder
from specengine.models.load import OnFraction
from specengine.models.targets import (
    Precision,
    decoder_from,
    find_kernel,
    integer_decoder_from,
    load_target,
)
from specengine.models.tokenizer import Tokenizer
from specengine.native.build import Kernel
from specengine.sampling import GREEDY, Sampling

END, BEGIN = "<end>", "<begin>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<fim_prefix>", "<fim_suffix>", "<fim_middle>"
SPECIAL: Final = (END, BEGIN, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
"""Texts of ids 0 to 4."""

END_ID: Final = 0

# GPT-2's alphabet: Ġ is a space, Ċ a newline, Ã© the two bytes of é.
MERGES: Final = (
    *("Ġ Ġ", "ĠĠ ĠĠ", "ĠĠ Ġ", "ĠĠĠĠ ĠĠĠ", "Ċ ĠĠĠ", "Ċ ĠĠĠĠĠĠĠ", "Ċ Ċ"),
    *("r e", "t u", "r n", "re tu", "retu rn", "Ġ return"),
    *("s e", "l f", "se lf", "Ġ self", "d e", "de f"),
    *("Ġ =", "( self", ") :", "' re", "= =", "1 2", "Ã ©"),
)

VOCAB_SIZE: Final = len(SPECIAL) + 256 + len(MERGES)


def tiny_architecture(**changes: Any) -> Architecture:
    """Return the sizes of a tiny Llama, with some fields changed."""
    fields: dict[str, Any] = {
        "family": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "context_len": 2048,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "has_tied_embeddings": False,
    }
    return Architecture(**{**fields, **changes})


def tiny_tensors(architecture: Architecture, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random float32 weights with Hugging Face names.

    Qwen2 gets biases, Qwen3 norms of queries and keys. An untied head gives special tokens 0.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = architecture
    queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
    tensors: dict[str, torch.Tensor] = {}

    def matrix(name: str, *shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator) * 1.5 / math.sqrt(shape[-1])
        return tensors.setdefault(name, values)

    def vector(name: str, size: int, mean: float) -> None:
        tensors[name] = mean + 0.2 * torch.randn(size, generator=generator)

    for index in range(sizes.num_layers):
        layer = f"model.layers.{index}"
        for part, num_rows in (("q", queries), ("k", keys), ("v", keys)):
            matrix(f"{layer}.self_attn.{part}_proj.weight", num_rows, sizes.hidden_size)
            if sizes.family == "qwen2":
                vector(f"{layer}.self_attn.{part}_proj.bias", num_rows, 0.0)
            if sizes.family == "qwen3" and part != "v":
                vector(f"{layer}.self_attn.{part}_norm.weight", sizes.head_dim, 1.0)
        matrix(f"{layer}.self_attn.o_proj.weight", sizes.hidden_size, queries)
        matrix(f"{layer}.mlp.gate_proj.weight", sizes.intermediate_size, sizes.hidden_size)
        matrix(f"{layer}.mlp.up_proj.weight", sizes.intermediate_size, sizes.hidden_size)
        matrix(f"{layer}.mlp.down_proj.weight", sizes.hidden_size, sizes.intermediate_size)
        vector(f"{layer}.input_layernorm.weight", sizes.hidden_size, 1.0)
        vector(f"{layer}.post_attention_layernorm.weight", sizes.hidden_size, 1.0)
    vector("model.norm.weight", sizes.hidden_size, 1.0)
    matrix("model.embed_tokens.weight", sizes.vocab_size, sizes.hidden_size)
    if not sizes.has_tied_embeddings:
        matrix("lm_head.weight", sizes.vocab_size, sizes.hidden_size)[: len(SPECIAL)] = 0
    return tensors


def load_decoder(
    folder: Path, precision: Precision = "bfloat16", on_fraction: OnFraction | None = None
) -> Decoder:
    """Return the model of a folder as torch runs it."""
    target = load_target(folder, precision, on_fraction=on_fraction)
    assert isinstance(target, Decoder)
    return target


def tiny_decoder(
    seed: int = 0, precision: Precision = "float32", architecture: Architecture | None = None
) -> Decoder:
    """Return a decoder of random weights."""
    architecture = architecture or tiny_architecture()
    return decoder_from(architecture, tiny_tensors(architecture, seed), precision)


def tiny_integer_decoder(seed: int = 0, architecture: Architecture | None = None) -> IntegerDecoder:
    """Return the same in 8-bit integers by the native pass; skips where that cannot be compiled."""
    architecture = architecture or tiny_architecture()
    kernel = find_kernel(architecture)
    if not isinstance(kernel, Kernel):
        pytest.skip(kernel)
    return integer_decoder_from(architecture, tiny_tensors(architecture, seed), kernel)


def greedy(model: Decoder, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
    """Return what plain decoding writes after a prompt, one pass a token."""
    kv = KVCache(model.kv_shape, len(prompt_ids) + num_tokens)
    written: list[int] = []
    pending = list(prompt_ids)
    while len(written) < num_tokens:
        written.append(int(model.forward(pending, kv, num_logits=1)[-1].argmax()))
        pending = written[-1:]
    return written


@cache
def tiny_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer with GPT-2's words; ``<end>`` ends a text."""
    return Tokenizer(tiny_tokenizer_json(), [END_ID])


def tiny_tokenizer_json() -> bytes:
    """Return the content of its `tokenizer.json`."""
    pieces = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in MERGES)]
    vocabulary: Mapping[str, int] = {piece: at for at, piece in enumerate(pieces)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": at, "content": text, "special": True, **flags} for at, text in enumerate(SPECIAL)
    ]
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", **byte_level},
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": list(MERGES)},
    }
    return json.dumps(content).encode()


def save_tiny_model(folder: Path, seed: int = 0, architecture: Architecture | None = None) -> Path:
    """Write a model folder that the engine can load by its path, and return it."""
    architecture = architecture or tiny_architecture()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tiny_config(architecture)), "utf-8")
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer_json())
    save_file(tiny_tensors(architecture, seed), folder / "model.safetensors")
    return folder


def tiny_config(architecture: Architecture) -> dict[str, Any]:
    """Return the ``config.json`` that describes an architecture."""
    families = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    return {
        "architectures": [f"{families[architecture.family]}ForCausalLM"],
        "vocab_size": architecture.vocab_size,
        "hidden_size": architecture.hidden_size,
        "intermediate_size": architecture.intermediate_size,
        "num_hidden_layers": architecture.num_layers,
        "num_attention_heads": architecture.num_heads,
        "num_key_value_heads": architecture.num_kv_heads,
        "head_dim": architecture.head_dim,
        "max_position_embeddings": architecture.context_len,
        "rms_norm_eps": architecture.norm_eps,
        "rope_theta": architecture.rope_theta,
        "tie_word_embeddings": architecture.has_tied_embeddings,
        "eos_token_id": END_ID,
    }


Script = Sequence[Sequence[int]] | Callable[[Sequence[int], int], Sequence[int]]
"""Drafted ids call by call, then none; or a function of tokens and room, as ``propose`` is."""


class ScriptedDrafts:
    """Source of drafters that follow one script; it remembers them."""

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.name = name
        self.started: list[ScriptedDrafter] = []
        self._script = script

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> ScriptedDrafter:
        self.started.append(ScriptedDrafter(self._script, self.name))
        return self.started[-1]


class ScriptedDrafter:
    """Proposes what the script says, even where a real drafter may not: too much, or no token."""

    def __init__(self, script: Script, name: str = "scripted") -> None:
        self.calls: list[tuple[tuple[int, ...], int]] = []
        """Tokens and room of each call."""
        self.num_closed = 0
        self._script = script
        self._name = name

    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft:
        at = len(self.calls)
        self.calls.append((tuple(token_ids), max_tokens))
        if callable(self._script):
            drafted = self._script(token_ids, max_tokens)
        else:
            drafted = self._script[at] if at < len(self._script) else ()
        return Draft.chain(list(drafted), self._name if drafted else "")

    def close(self) -> None:
        self.num_closed += 1
