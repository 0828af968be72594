"""Model files of a few kilobytes, made anew for each test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS = 32, 4, 2, 8, 64, 2
SPECIAL = ("<|endoftext|>", "<|im_end|>", "<file_sep>")


@dataclass
class TinyGguf:
    """What a tiny GGUF file shall hold; tests change fields before they write it."""

    architecture: str = "llama"
    pre: str = "smollm"
    tokenizer_model: str = "gpt2"
    left_out: str = ""
    extra_tensors: dict[str, np.ndarray] = field(default_factory=dict)
    extra_numbers: dict[str, int] = field(default_factory=dict)
    quantised: bool = False
    hub_weights: dict[str, np.ndarray] = field(default_factory=dict)
    """Filled by `write`: every weight under its Hugging Face name."""

    def write(self, path: Path) -> Path:
        """Write the file and remember its weights as Hugging Face orders them."""
        writer = GGUFWriter(path, self.architecture)
        writer.add_context_length(128)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(100_000.0)
        for key, number in self.extra_numbers.items():
            writer.add_uint32(key, number)
        self._add_tokenizer(writer)
        for name, array in {**self._tensors(), **self.extra_tensors}.items():
            if name != self.left_out:
                self._add_tensor(writer, name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_tokenizer(self, writer: GGUFWriter) -> None:
        tokens, merges = tiny_vocabulary()
        kinds = [TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * len(tokens)
        writer.add_tokenizer_model(self.tokenizer_model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list([*SPECIAL, *tokens])
        writer.add_token_types(kinds)
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)

    def _add_tensor(self, writer: GGUFWriter, name: str, array: np.ndarray) -> None:
        if not self.quantised or array.ndim == 1:
            writer.add_tensor(name, array)
            return
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)

    def _tensors(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(7)
        tokens, _ = tiny_vocabulary()
        sizes = {"attn_q": HEADS, "attn_k": KV_HEADS}
        shapes = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        stored: dict[str, np.ndarray] = {}
        for layer in range(LAYERS):
            for part, shape in shapes.items():
                weight = random.standard_normal(shape).astype(np.float32)
                self.hub_weights[f"model.layers.{layer}.{HUB_PARTS[part]}.weight"] = weight
                is_turned = self.architecture == "llama" and part in sizes
                stored[f"blk.{layer}.{part}.weight"] = (
                    permute(weight, sizes[part]) if is_turned else weight
                )
        embedding = random.standard_normal((len(SPECIAL) + len(tokens), HIDDEN))
        stored["token_embd.weight"] = embedding.astype(np.float32)
        stored["output_norm.weight"] = random.standard_normal(HIDDEN).astype(np.float32)
        self.hub_weights["model.embed_tokens.weight"] = stored["token_embd.weight"]
        self.hub_weights["model.norm.weight"] = stored["output_norm.weight"]
        return stored


HUB_PARTS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Order the rows of a q or k weight as llama.cpp's converter does."""
    halves = weight.reshape(num_heads, 2, len(weight) // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def tiny_vocabulary() -> tuple[list[str], list[str]]:
    """Every byte, and a few merges."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    merges = ["Ġ Ġ", "d e", "de f", "Ġ f", "' r", "'r e", "Ã ©"]
    return characters + [merge.replace(" ", "") for merge in merges], merges
