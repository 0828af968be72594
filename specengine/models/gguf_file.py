"""A GGUF file read as what Hugging Face calls it: config, tokenizer, named tensors.

Knows the llama, qwen2 and qwen3 architectures with a byte-level BPE vocabulary, and refuses
everything that it would only half understand. Knows nothing of where files lie.

Source: names and the order of q and k rows as in llama.cpp's `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from specengine.errors import LoadError

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

ROWS_AT_ONCE: Final = 8192
"""Rows of a matrix that are float32 at one time; bounds the memory a conversion takes."""

_CLASSES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TOP_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_QWEN2_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_WORDS: Final = _QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5


@dataclass(frozen=True)
class TensorInfo:
    """A tensor under its Hugging Face name, as it will be stored."""

    name: str
    shape: tuple[int, ...]


class GgufFile:
    """An open GGUF file of one of the known architectures."""

    def __init__(self, path: Path) -> None:
        """Open and check the file; no weight is read yet.

        Raises: LoadError when it is no GGUF file, is cut, or holds another architecture.
        """
        self.path = path
        with self._blamed():
            self._reader = GGUFReader(path)
            self._architecture = str(self._required("general.architecture"))
            if self._architecture not in _CLASSES:
                raise self._refused(f"has the architecture {self._architecture!r}")
            self._tensors = {self._hub_name(tensor.name): tensor for tensor in self._reader.tensors}
            self._config = self._build_config()
            self._check_shapes()

    @property
    def config(self) -> dict[str, Json]:
        """The content of `config.json`."""
        return self._config

    @property
    def tensors(self) -> list[TensorInfo]:
        """All tensors, in a stable order."""
        return [
            TensorInfo(name, tuple(int(size) for size in reversed(self._tensors[name].shape)))
            for name in sorted(self._tensors)
        ]

    def read_bytes(self, name: str) -> Iterator[bytes]:
        """Yield the tensor as bfloat16 in little-endian bytes, a bounded number of rows at a time.

        Raises: LoadError when the data cannot be decoded.
        """
        with self._blamed():
            tensor = self._tensors[name]
            order = self._row_order(name, tensor)
            rows = np.asarray(tensor.data)
            if rows.ndim == 1:
                values = _to_bfloat16(rows, tensor)
                yield _to_bytes(values if order is None else values[torch.as_tensor(order)])
                return
            for start in range(0, len(rows), ROWS_AT_ONCE):
                stop = min(start + ROWS_AT_ONCE, len(rows))
                block = rows[start:stop] if order is None else rows[order[start:stop]]
                yield _to_bytes(_to_bfloat16(block, tensor))

    def build_tokenizer(self) -> Tokenizer:
        """Build the tokenizer from vocabulary, merges and the named pre-tokenizer.

        Raises: LoadError when the vocabulary is not byte-level BPE or the pre-tokenizer unknown.
        """
        with self._blamed():
            if self._required("tokenizer.ggml.model") != "gpt2":
                raise self._refused("has no byte-level BPE vocabulary")
            pre = str(self._required("tokenizer.ggml.pre"))
            words = _pre_tokenizer(pre)
            if words is None:
                raise self._refused(f"names the pre-tokenizer {pre!r}, which is unknown")
            tokens = cast("list[str]", self._required("tokenizer.ggml.tokens"))
            types = cast("list[int]", self._required("tokenizer.ggml.token_type"))
            merges = cast("list[str]", self._required("tokenizer.ggml.merges"))
            tokenizer = Tokenizer(_bpe(tokens, types, merges, ignore_merges=pre == "llama-bpe"))
            tokenizer.pre_tokenizer = words
            tokenizer.decoder = ByteLevelDecoder()
            _add_special_tokens(tokenizer, tokens, types)
            return tokenizer

    def special_tokens(self) -> dict[str, str]:
        """Return the texts of `bos_token`, `eos_token` and `pad_token`, where named."""
        tokens = cast("list[str]", self._required("tokenizer.ggml.tokens"))
        keys = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
        ids = {role: self._get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
        return {
            role: tokens[token]
            for role, token in ids.items()
            if isinstance(token, int) and token < len(tokens)
        }

    def _build_config(self) -> dict[str, Json]:
        if self._get(f"{self._architecture}.expert_count"):
            raise self._refused("is a mixture of experts")
        hidden, heads = self._int("embedding_length"), self._int("attention.head_count")
        head_dim = self._int("attention.key_length", hidden // max(heads, 1))
        if self._int("rope.dimension_count", head_dim) != head_dim:
            raise self._refused("rotates only a part of each head")
        return {
            "architectures": [_CLASSES[self._architecture]],
            "model_type": self._architecture,
            "hidden_size": hidden,
            "intermediate_size": self._int("feed_forward_length"),
            "num_hidden_layers": self._int("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self._int("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "attention_bias": self._architecture == "qwen2",
            "mlp_bias": False,
            "max_position_embeddings": self._int("context_length"),
            "rms_norm_eps": self._float("attention.layer_norm_rms_epsilon"),
            "rope_theta": self._float("rope.freq_base", 10000.0),
            "rope_scaling": self._rope_scaling(),
            "vocab_size": int(self._tensor("model.embed_tokens.weight").shape[1]),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "bos_token_id": self._token_id("bos"),
            "eos_token_id": self._token_id("eos"),
            "pad_token_id": self._token_id("padding"),
            "torch_dtype": "bfloat16",
        }

    def _rope_scaling(self) -> Json:
        kind = self._get(f"{self._architecture}.rope.scaling.type") or "none"
        if kind == "none":
            return None
        if kind != "linear":
            raise self._refused(f"scales positions by {kind!r}")
        factor = self._float("rope.scaling.factor")
        return {"type": "linear", "rope_type": "linear", "factor": factor}

    def _check_shapes(self) -> None:
        """Refuse a file whose tensors are not all there, before half of it is converted."""
        config = self._config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        layers = cast(int, config["num_hidden_layers"])
        q_size = cast(int, config["num_attention_heads"]) * cast(int, config["head_dim"])
        kv_size = cast(int, config["num_key_value_heads"]) * cast(int, config["head_dim"])
        wanted = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (q_size, hidden),
            "self_attn.k_proj": (kv_size, hidden),
            "self_attn.v_proj": (kv_size, hidden),
            "self_attn.o_proj": (hidden, q_size),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes = {tensor.name: tensor.shape for tensor in self.tensors}
        for name, shape in wanted.items():
            for layer in range(layers):
                full_name = f"model.layers.{layer}.{name}.weight"
                if shapes.get(full_name) != shape:
                    found = shapes.get(full_name, "missing")
                    raise self._refused(f"has {full_name} {found} instead of {shape}")
        if shapes.get("model.norm.weight") != (hidden,):
            raise self._refused("has no final norm")

    def _hub_name(self, name: str) -> str:
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        if match is None:
            raise self._refused(f"has a tensor {name!r}")
        layer, part, kind = match.groups()
        hub_part = (_TOP_NAMES if layer is None else _LAYER_NAMES).get(part)
        has_biases = self._architecture == "qwen2" and part in ("attn_q", "attn_k", "attn_v")
        if hub_part is None or (kind == "bias" and not has_biases):
            raise self._refused(f"has a tensor {name!r}")
        prefix = "" if layer is None else f"model.layers.{layer}."
        return f"{prefix}{hub_part}.{kind}"

    def _row_order(self, name: str, tensor: ReaderTensor) -> np.ndarray | None:
        """Return which stored row each row is: llama.cpp interleaves both halves of a q, k head."""
        if self._architecture != "llama" or not re.search(r"\.[qk]_proj\.", name):
            return None
        key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
        num_rows = int(tensor.shape[-1])
        return (
            np.arange(num_rows).reshape(cast(int, self._config[key]), -1, 2).swapaxes(1, 2).ravel()
        )

    def _token_id(self, role: str) -> int | None:
        value = self._get(f"tokenizer.ggml.{role}_token_id")
        return value if isinstance(value, int) else None

    def _int(self, key: str, default: int | None = None) -> int:
        value = self._get(f"{self._architecture}.{key}")
        value = default if value is None else value
        if not isinstance(value, int) or value <= 0:
            raise self._refused(f"has {self._architecture}.{key} {value!r}")
        return value

    def _float(self, key: str, default: float | None = None) -> float:
        value = self._get(f"{self._architecture}.{key}")
        value = default if value is None else value
        if not isinstance(value, (int, float)) or not value > 0:
            raise self._refused(f"has {self._architecture}.{key} {value!r}")
        return float(str(np.float32(value)))  # 1e-5, not 9.999999747378752e-06

    def _tensor(self, name: str) -> ReaderTensor:
        if name not in self._tensors:
            raise self._refused(f"has no {name}")
        return self._tensors[name]

    def _required(self, key: str) -> object:
        value = self._get(key)
        if value is None:
            raise self._refused(f"has no {key}")
        return value

    def _get(self, key: str) -> object:
        field = self._reader.get_field(key)
        return None if field is None else cast(object, field.contents())

    def _refused(self, what: str) -> LoadError:
        known = ", ".join(_CLASSES)
        return LoadError(
            f"{self.path} {what}.", hint=f"Use a GGUF file of a {known} model with byte-level BPE."
        )

    @contextmanager
    def _blamed(self) -> Generator[None]:
        """Map what the readers raise on a damaged file."""
        try:
            yield
        except LoadError:
            raise
        except Exception as error:  # gguf, numpy and tokenizers each raise their own
            if isinstance(error, OSError):
                raise
            raise LoadError(
                f"{self.path} is damaged or no GGUF file: {error}", hint="Fetch it again."
            ) from error


def _to_bfloat16(stored: np.ndarray, tensor: ReaderTensor) -> torch.Tensor:
    values = dequantize(stored, tensor.tensor_type)
    # Stored float32 comes as a view of the file; torch wants memory that it may write.
    writable = np.require(values, np.float32, ["C", "W"])
    return torch.as_tensor(writable).to(torch.bfloat16)


def _to_bytes(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes()


def _pre_tokenizer(name: str) -> PreTokenizer | None:
    byte_level = ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level_words = ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return byte_level_words
    if name in ("smollm", "starcoder", "refact"):
        return Sequence([Digits(individual_digits=True), byte_level_words])
    if name in ("qwen2", "llama-bpe"):
        pattern = Regex(_QWEN2_WORDS if name == "qwen2" else _LLAMA3_WORDS)
        return Sequence([Split(pattern, behavior="isolated", invert=False), byte_level])
    return None


def _bpe(tokens: list[str], types: list[int], merges: list[str], *, ignore_merges: bool) -> BPE:
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind != _UNUSED
    }
    return BPE(
        vocab=vocabulary, merges=cast("list[tuple[str, str]]", pairs), ignore_merges=ignore_merges
    )


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    for token, kind in zip(tokens, types, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            special = kind == _CONTROL
            added = [AddedToken(token, special=special, normalized=False)]
            tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType] (stub has a bare list)
