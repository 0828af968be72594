"""Small checkpoints in the formats of others, to the letter, and what their papers compute.

The references are in float64, one head and one row after the other, and share no line with the
networks that they check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.specengine.tiny import VOCAB_SIZE

HIDDEN, INNER, HEADS, GROUPS, DIM = 64, 96, 4, 2, 16
EPS, THETA = 1e-5, 10_000.0
NUM_DRAFT_IDS = 90
NUM_HEADS = 3
"""Medusa heads."""
BLOCK, MASK_ID = 6, 7
"""Rows of DFlash."""


@dataclass
class Checkpoint:
    """What lies in a folder."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    file: str = "model.safetensors"
    beside: dict[str, bytes] = field(default_factory=dict)

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config), "utf-8")
        if self.file.endswith(".safetensors"):
            save_file(self.tensors, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        for name, content in self.beside.items():
            (folder / name).write_bytes(content)
        return folder


class Weights:
    """Random tensors by name."""

    def __init__(self, seed: int = 0) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, name: str, *shape: int, scale: float = 1.0) -> None:
        values = torch.randn(shape, generator=self._generator) * scale / math.sqrt(shape[-1])
        self.tensors[name] = values

    def vector(self, name: str, size: int = HIDDEN, mean: float = 1.0) -> None:
        self.tensors[name] = mean + 0.2 * torch.randn(size, generator=self._generator)

    def layer(self, name: str, num_in: int) -> None:
        attention = f"{name}.self_attn"
        self.matrix(f"{attention}.q_proj.weight", HEADS * DIM, num_in)
        self.matrix(f"{attention}.k_proj.weight", GROUPS * DIM, num_in)
        self.matrix(f"{attention}.v_proj.weight", GROUPS * DIM, num_in)
        self.matrix(f"{attention}.o_proj.weight", HIDDEN, HEADS * DIM)
        self.matrix(f"{name}.mlp.gate_proj.weight", INNER, HIDDEN)
        self.matrix(f"{name}.mlp.up_proj.weight", INNER, HIDDEN)
        self.matrix(f"{name}.mlp.down_proj.weight", HIDDEN, INNER)
        self.vector(f"{name}.post_attention_layernorm.weight")

    def draft_vocabulary(self) -> None:
        ids = torch.randperm(VOCAB_SIZE, generator=self._generator)[:NUM_DRAFT_IDS].sort().values
        self.tensors["d2t"] = ids - torch.arange(NUM_DRAFT_IDS)
        self.tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        self.tensors["t2d"][ids] = True


def llama_config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "num_hidden_layers": 1,
        "head_dim": DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": VOCAB_SIZE,
        "tie_word_embeddings": False,
    } | changes


def eagle3_tensors(layer: str, *, with_norms: bool = False) -> dict[str, torch.Tensor]:
    weights = Weights(1)
    weights.layer(layer, 2 * HIDDEN)
    for name in ("input_layernorm", "hidden_norm"):
        weights.vector(f"{layer}.{name}.weight")
    weights.matrix("fc.weight", HIDDEN, 3 * HIDDEN)
    weights.vector("norm.weight")
    weights.matrix("lm_head.weight", NUM_DRAFT_IDS, HIDDEN, scale=4.0)
    if with_norms:
        for number in range(3):
            weights.vector(f"fc_norm.{number}.weight")
    weights.draft_vocabulary()
    return weights.tensors


def eagle3() -> Checkpoint:
    """As EAGLE's authors, SpecForge and AngelSlim share it."""
    config = llama_config(
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=NUM_DRAFT_IDS,
        eagle_config={
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
            "use_aux_hidden_state": True,
        },
    )
    return Checkpoint(config, eagle3_tensors("midlayer"), "pytorch_model.bin")


def speculators(**flags: Any) -> Checkpoint:
    """As the speculators library saves EAGLE-3; flags of the variants 3.1 and of gpt-oss."""
    config = {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": NUM_DRAFT_IDS,
        "dtype": "float32",
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "tiny"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.7.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": llama_config(),
    } | flags
    tensors = eagle3_tensors("layers.0", with_norms=bool(config["fc_norm"]))
    if config["norm_before_fc"]:
        weights = Weights(5)
        weights.vector("input_norm.weight", 3 * HIDDEN)
        tensors |= weights.tensors
    embedding = Weights(6)
    embedding.matrix("embed_tokens.weight", VOCAB_SIZE, HIDDEN)
    return Checkpoint(config, tensors | embedding.tensors)


def eagle1(*, has_bias: bool = True) -> Checkpoint:
    """As EAGLE's authors share the first version: a pickle, with the target's embedding."""
    weights = Weights(2)
    weights.layer("layers.0", HIDDEN)
    weights.matrix("fc.weight", HIDDEN, 2 * HIDDEN)
    if has_bias:
        weights.vector("fc.bias", mean=0.0)
    weights.matrix("embed_tokens.weight", VOCAB_SIZE, HIDDEN)
    config = llama_config(architectures=["LlamaForCausalLM"], bias=has_bias)
    return Checkpoint(config, weights.tensors, "pytorch_model.bin")


def medusa(file: str = "medusa_lm_head.pt") -> Checkpoint:
    """As Medusa's authors share it; their config speaks of two heads, whatever there are."""
    weights = Weights(3)
    for number in range(NUM_HEADS):
        weights.matrix(f"{number}.0.linear.weight", HIDDEN, HIDDEN)
        weights.vector(f"{number}.0.linear.bias", mean=0.0)
        weights.matrix(f"{number}.1.weight", VOCAB_SIZE, HIDDEN, scale=4.0)
    config = {
        "base_model_name_or_path": "tiny",
        "medusa_num_heads": 2,
        "medusa_num_layers": 1,
        "transformers_version": "4.34.1",
    }
    return Checkpoint(config, weights.tensors, file)


def dflash_tensors(num_layers: int = 2) -> dict[str, torch.Tensor]:
    weights = Weights(4)
    for number in range(num_layers):
        name = f"layers.{number}"
        weights.layer(name, HIDDEN)
        weights.vector(f"{name}.input_layernorm.weight")
        weights.vector(f"{name}.self_attn.q_norm.weight", DIM)
        weights.vector(f"{name}.self_attn.k_norm.weight", DIM)
    weights.matrix("fc.weight", HIDDEN, 2 * HIDDEN)
    weights.vector("hidden_norm.weight")
    weights.vector("norm.weight")
    return weights.tensors


def dflash() -> Checkpoint:
    """As DFlash's authors share it: embedding and output are the target's."""
    config = llama_config(
        architectures=["DFlashDraftModel"],
        auto_map={"AutoModel": "dflash.DFlashDraftModel"},
        model_type="qwen3",
        num_hidden_layers=2,
        layer_types=["full_attention"] * 2,
        sliding_window=None,
        block_size=BLOCK,
        num_target_layers=2,
        dflash_config={"mask_token_id": MASK_ID, "target_layer_ids": [0, 1]},
    )
    return Checkpoint(config, dflash_tensors())


Rows = torch.Tensor


class Reference:
    """Layers by the equations, from tensors by their names in a checkpoint."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = {name: each.double() for name, each in tensors.items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def rms(self, rows: Rows, name: str) -> Rows:
        return rms(rows, self[name])

    def linear(self, rows: Rows, name: str) -> Rows:
        result = rows @ self[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return result if bias is None else result + bias

    def layer(
        self,
        name: str,
        entering: Rows,
        residual: Rows,
        positions: Sequence[int],
        sees: torch.Tensor,
        beside: Rows | None = None,
        beside_positions: Sequence[int] = (),
    ) -> Rows:
        """Row i sees row j of those that have keys where ``sees`` [T, S] says so.

        Keys come from ``beside`` first, if there is any, then from the rows themselves.
        """
        attention = f"{name}.self_attn"
        keyed = entering if beside is None else torch.cat((beside, entering))
        places = [*beside_positions, *positions]
        attended = []
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            queries = self._head(entering, f"{attention}.q", head, positions)
            keys = self._head(keyed, f"{attention}.k", group, places)
            values = (keyed @ self[f"{attention}.v_proj.weight"].T)[
                :, group * DIM : (group + 1) * DIM
            ]
            scores = queries @ keys.T / math.sqrt(DIM)
            attended.append(scores.masked_fill(~sees, -torch.inf).softmax(-1) @ values)
        stream = residual + self.linear(torch.cat(attended, 1), f"{attention}.o_proj")
        normed = self.rms(stream, f"{name}.post_attention_layernorm.weight")
        gate = self.linear(normed, f"{name}.mlp.gate_proj")
        up = self.linear(normed, f"{name}.mlp.up_proj")
        return stream + self.linear(gate * torch.sigmoid(gate) * up, f"{name}.mlp.down_proj")

    def _head(self, rows: Rows, name: str, head: int, positions: Sequence[int]) -> Rows:
        part = self.linear(rows, f"{name}_proj")[:, head * DIM : (head + 1) * DIM]
        if f"{name}_norm.weight" in self.tensors:
            part = self.rms(part, f"{name}_norm.weight")
        first, second = part[:, : DIM // 2], part[:, DIM // 2 :]
        turned = torch.empty_like(part)
        for row, position in enumerate(positions):
            for pair in range(DIM // 2):
                angle = position / THETA ** (2 * pair / DIM)
                x, y = first[row, pair], second[row, pair]
                turned[row, pair] = x * math.cos(angle) - y * math.sin(angle)
                turned[row, pair + DIM // 2] = y * math.cos(angle) + x * math.sin(angle)
        return turned


def rms(rows: Rows, weight: torch.Tensor) -> Rows:
    return rows / (rows.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


def causal(num_rows: int) -> torch.Tensor:
    return torch.ones(num_rows, num_rows, dtype=torch.bool).tril()
