"""Some of a target's layers, by themselves and in its arithmetic."""

from __future__ import annotations

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.models.adapters import Adapter, Factors
from specengine.models.architecture import Architecture
from specengine.models.decoder import Decoder
from specengine.models.excerpts import first_layers, last_layers
from specengine.models.integer import IntegerDecoder
from specengine.models.load import TensorReader
from specengine.models.target import Rows, Tap
from specengine.models.targets import decoder_from, find_kernel, integer_decoder_from
from specengine.native.build import Kernel
from tests.specengine.tiny import (
    tiny_architecture,
    tiny_decoder,
    tiny_integer_decoder,
    tiny_tensors,
)

IDS = [5, 40, 9, 77, 120, 33, 8, 61]
NO_CHANGE = Adapter(1.0, {})
AnyDecoder = Decoder | IntegerDecoder
QWEN2 = tiny_architecture(family="qwen2", num_layers=3)
QWEN3 = tiny_architecture(family="qwen3", num_layers=3)
LLAMA = tiny_architecture(num_layers=3)


@pytest.fixture(params=["float32", "bfloat16", "int4", "int8", "native"])
def decoder(request: pytest.FixtureRequest) -> AnyDecoder:
    if request.param == "native":
        return tiny_integer_decoder(architecture=LLAMA)
    return tiny_decoder(precision=request.param, architecture=LLAMA)


def end_of(sizes: Architecture = LLAMA) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the target's own norm and output layer."""
    weights = tiny_tensors(sizes)
    return weights["model.norm.weight"], weights["lm_head.weight"]


def decoder_of(
    sizes: Architecture, weights: dict[str, torch.Tensor], is_native: bool
) -> AnyDecoder:
    if not is_native:
        return decoder_from(sizes, weights, "float32")
    kernel = find_kernel(sizes)
    if not isinstance(kernel, Kernel):
        pytest.skip(kernel)
    return integer_decoder_from(sizes, weights, kernel)


def test_the_first_of_all_layers_are_the_target(decoder: AnyDecoder) -> None:
    whole = first_layers(decoder, 3, *end_of())
    expected = decoder.forward(IDS, KVCache(decoder.kv_shape, 64), num_logits=8)
    cache = KVCache(decoder.kv_shape, 64)
    assert torch.equal(whole.forward(IDS, cache.layers(0, 3), num_logits=8), expected)


def test_first_layers_store_what_the_target_stores(decoder: AnyDecoder) -> None:
    one, other = KVCache(decoder.kv_shape, 64), KVCache(decoder.kv_shape, 64)
    decoder.forward(IDS, one, num_logits=0)
    short = first_layers(decoder, 2, *end_of())
    short.forward(IDS, other.layers(0, 2), num_logits=0)
    other.advance(len(IDS))
    for layer in range(2):
        for own, theirs in zip(other.rows(layer), one.rows(layer), strict=True):
            assert torch.equal(own, theirs)
    assert not other.rows(2)[0].any()


def test_last_layers_go_on_from_a_stream_as_the_target_does(decoder: AnyDecoder) -> None:
    """On the target's own rows, and with its bits."""
    reader = TensorReader(tiny_tensors(LLAMA), torch.float32)
    last = last_layers(decoder, 1, reader, NO_CHANGE, *end_of())
    cache, tap = KVCache(decoder.kv_shape, 64), Tap((1,))
    decoder.forward(IDS[:5], cache, num_logits=0)
    (expected,) = decoder.forward_batch([Rows(IDS[5:], cache, 3, tap=tap)])
    cache.truncate(5)
    rows = Rows([0] * 3, cache.layers(1, 3), 3, inputs=tap.streams[0])
    (made,) = last.forward_batch([rows])
    assert torch.equal(made, expected)
    assert cache.length == 5


@pytest.mark.parametrize("sizes", [LLAMA, QWEN2, QWEN3])
@pytest.mark.parametrize("is_native", [False, True])
def test_a_change_is_in_the_weights_of_the_copy(sizes: Architecture, is_native: bool) -> None:
    weights = tiny_tensors(sizes)
    generator = torch.Generator().manual_seed(4)
    name = "model.layers.2.self_attn.q_proj.weight"
    factors = Factors(
        torch.randn(4, 64, generator=generator), torch.randn(64, 4, generator=generator)
    )
    change = Adapter(0.3, {name: factors})
    changed = {**weights, name: change.merge(name, weights[name])}
    plain, tuned = (decoder_of(sizes, each, is_native) for each in (weights, changed))
    reader = TensorReader(weights, torch.float32)
    last = last_layers(plain, 1, reader, change, *end_of(sizes))
    tap = Tap((1,))
    rows = Rows(IDS, KVCache(tuned.kv_shape, 64), 8, tap=tap)
    (expected,) = tuned.forward_batch([rows])
    cache = KVCache(plain.kv_shape, 64).layers(1, 3)
    (made,) = last.forward_batch([Rows([0] * 8, cache, 8, inputs=tap.streams[0])])
    assert torch.equal(made, expected)
    assert not torch.equal(made, plain.forward(IDS, KVCache(plain.kv_shape, 64), num_logits=8))


def test_an_output_layer_of_a_few_tokens_scores_those() -> None:
    for decoder in (tiny_decoder(architecture=LLAMA), tiny_integer_decoder(architecture=LLAMA)):
        norm, output = end_of()
        ids = torch.tensor([7, 100, 31])
        short = first_layers(decoder, 3, norm, output[ids])
        assert short.vocab_size == 3
        expected = decoder.forward(IDS, KVCache(decoder.kv_shape, 64), num_logits=2)
        made = short.forward(IDS, KVCache(decoder.kv_shape, 64), num_logits=2)
        torch.testing.assert_close(made, expected[:, ids])
