"""The decoder against transformers, and against itself in other shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from specengine.cache.kv_cache import TILE, KVCache
from specengine.errors import LoadError
from specengine.models.architecture import Architecture, LinearScaling, Llama3Scaling
from specengine.models.decoder import Decoder
from specengine.models.targets import decoder_from
from specengine.models.tokenizer import Tokenizer
from tests.specengine.tiny import (
    load_decoder,
    save_tiny_model,
    tiny_architecture,
    tiny_config,
    tiny_decoder,
    tiny_tensors,
)

PYTHON = '''def mean(values: list[float]) -> float:
    """Return the arithmetic mean."""
    return sum(values) / len(values)


def variance(values: list[float]) -> float:
    """Return the population variance."""
    center = mean(values)
    return sum((value - center) ** 2 for value in values) / len(values)
'''


def logits_of(model: Decoder, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
    """Return the logits of every position when the tokens come in the given chunks."""
    cache = KVCache(model.kv_shape, len(token_ids))
    rows: list[torch.Tensor] = []
    start = 0
    for num_rows in chunks:
        part = token_ids[start : start + num_rows]
        rows.append(model.forward(part, cache, num_logits=len(part)))
        start += num_rows
    assert start == len(token_ids)
    return torch.cat(rows)


def reference_logits(folder: Path, token_ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


def some_tokens(vocab_size: int, number: int) -> list[int]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab_size, (number,), generator=generator).tolist()


SCALING = Llama3Scaling(8.0, 1.0, 4.0, 64)

FAMILIES = {
    "llama": tiny_architecture(),
    "llama_tied": tiny_architecture(has_tied_embeddings=True),
    "llama3_rope": tiny_architecture(rope_scaling=SCALING),
    "linear_rope": tiny_architecture(rope_scaling=LinearScaling(4.0)),
    "qwen2": tiny_architecture(family="qwen2", rope_theta=1e6),
    "qwen3": tiny_architecture(family="qwen3", head_dim=32),
}


def save_config_with_rope(folder: Path, architecture: Architecture) -> None:
    config = tiny_config(architecture)
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": architecture.rope_theta}
    scaling = architecture.rope_scaling
    if isinstance(scaling, LinearScaling):
        rope |= {"rope_type": "linear", "factor": scaling.factor}
    elif scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_context,
        }
    config |= {"rope_parameters": rope, "model_type": architecture.family}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_those_of_transformers(tmp_path: Path, family: str) -> None:
    folder = save_tiny_model(tmp_path, architecture=FAMILIES[family])
    save_config_with_rope(folder, FAMILIES[family])
    token_ids = some_tokens(FAMILIES[family].vocab_size, 70)
    ours = logits_of(load_decoder(folder, "float32"), token_ids, [32, 32, 6])
    torch.testing.assert_close(ours, reference_logits(folder, token_ids), atol=1e-4, rtol=0)


@pytest.mark.model
def test_float32_logits_of_the_default_model_equal_those_of_transformers(
    default_model_dir: Path,
) -> None:
    token_ids = Tokenizer.load(default_model_dir).encode(PYTHON)
    ours = logits_of(load_decoder(default_model_dir, "float32"), token_ids, [len(token_ids)])
    theirs = reference_logits(default_model_dir, token_ids)
    # The logits reach 42: the two differ by 0.8e-4 to 1.01e-4, by CPU and number of threads.
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "chunks", [[7] * 43 + [3], [8] * 38, [32] * 9 + [16], [64, 3, 9, 32, 1, 1, 150, 44], [304]]
)
def test_chunking_does_not_change_a_bit(precision: str, chunks: list[int]) -> None:
    """304 rows lie on both sides of a tile's border."""
    assert sum(chunks) == 304 > TILE
    model = tiny_decoder(precision="bfloat16" if precision == "bfloat16" else "float32")
    token_ids = some_tokens(model.vocab_size, 304)
    plain = logits_of(model, token_ids, [1] * 304)
    assert torch.equal(logits_of(model, token_ids, chunks), plain)


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("threads", [1, 3, 4, 7])
def test_threads_do_not_cut_rows(precision: str, threads: int) -> None:
    """With 8,960 inner values a call is large enough for torch to split it, at any element."""
    architecture = tiny_architecture(intermediate_size=8960, num_layers=1)
    tensors = tiny_tensors(architecture)
    model = decoder_from(
        architecture, tensors, "bfloat16" if precision == "bfloat16" else "float32"
    )
    token_ids = some_tokens(model.vocab_size, 64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        plain = logits_of(model, token_ids, [1] * 64)
        for chunks in ([3] * 21 + [1], [8] * 8, [16] * 4, [32, 32]):
            assert torch.equal(logits_of(model, token_ids, chunks), plain)
    finally:
        torch.set_num_threads(before)


def test_rejected_rows_leave_no_trace() -> None:
    model = tiny_decoder(precision="bfloat16")
    token_ids = some_tokens(model.vocab_size, 40)
    plain = logits_of(model, token_ids, [40])
    cache = KVCache(model.kv_shape, 64)
    model.forward(token_ids[:39], cache, num_logits=0)
    for wrong in ([5], [6, 7, 8], list(range(15))):
        model.forward(wrong, cache, num_logits=1)
        cache.truncate(39)
    assert torch.equal(model.forward(token_ids[39:], cache, num_logits=1)[0], plain[39])


def test_a_position_sees_only_what_stands_before_it() -> None:
    model = tiny_decoder()
    token_ids = some_tokens(model.vocab_size, 24)
    changed = [*token_ids[:12], *some_tokens(7, 12)]
    before, after = (logits_of(model, ids, [24]) for ids in (token_ids, changed))
    assert torch.equal(before[:12], after[:12])
    assert not torch.equal(before[12:], after[12:])


def test_no_logits_are_computed_when_none_are_wanted() -> None:
    model = tiny_decoder()
    cache = KVCache(model.kv_shape, 16)
    assert model.forward([1, 2, 3], cache, num_logits=0).shape == (0, model.vocab_size)
    assert cache.length == 3


def test_a_cache_that_is_full_is_refused() -> None:
    model = tiny_decoder()
    cache = KVCache(model.kv_shape, TILE)
    model.forward([1] * TILE, cache, num_logits=0)
    with pytest.raises(AssertionError, match="257 positions in a cache of 256"):
        model.forward([1], cache, num_logits=1)


@pytest.mark.parametrize(("family", "part"), [("qwen3", "q_norm"), ("qwen2", "k_proj.bias")])
def test_a_family_cannot_do_without_its_own_weights(family: str, part: str) -> None:
    architecture = tiny_architecture(family=family)
    tensors = tiny_tensors(architecture)
    without = {name: tensor for name, tensor in tensors.items() if part not in name}
    with pytest.raises(LoadError, match=part):
        decoder_from(architecture, without, "float32")
