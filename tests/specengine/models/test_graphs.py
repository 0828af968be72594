"""Passes of fixed shapes, here without an accelerator: what is recorded is run again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.models.decoder import Decoder
from specengine.models.graphs import PROMPT_ROWS, GraphDecoder, Inputs, Replay, run_again
from tests.specengine.tiny import tiny_architecture, tiny_decoder

TOKENS = torch.randint(0, 90, (700,), generator=torch.Generator().manual_seed(0)).tolist()


class Counting:
    """A recorder that counts what it records."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, one_pass: Replay) -> Replay:
        self.recorded += 1
        return one_pass


def graph_decoder(
    family: str = "llama", recorder: Callable[[Replay], Replay] = run_again, step_rows: int = 8
) -> GraphDecoder:
    plain = plain_decoder(family)
    return GraphDecoder(
        plain.architecture, plain.weights, "float32", step_rows=step_rows, recorder=recorder
    )


def plain_decoder(family: str = "llama") -> Decoder:
    return tiny_decoder(architecture=tiny_architecture(family=family, context_len=4096))


def cache_of(decoder: Decoder, capacity: int = 1024) -> KVCache:
    return KVCache(decoder.kv_shape, capacity)


def logits_of(decoder: Decoder, cache: KVCache, pieces: list[int]) -> torch.Tensor:
    """Read a text in pieces of these lengths; return the logits of the last piece's last rows."""
    start, logits = 0, torch.empty(0)
    for num in pieces:
        logits = decoder.forward(TOKENS[start : start + num], cache, num_logits=min(num, 8))
        start += num
    return logits


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("pieces", [[1], [8], [5, 3, 1], [256, 8], [300, 1], [256, 256, 20, 4]])
def test_it_computes_what_the_plain_decoder_computes(family: str, pieces: list[int]) -> None:
    plain, ours = plain_decoder(family), graph_decoder(family)
    expected = logits_of(plain, cache_of(plain), pieces)
    logits = logits_of(ours, cache_of(ours), pieces)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_long_text_may_come_in_one_call() -> None:
    ours = graph_decoder()
    whole = ours.forward(TOKENS[:600], cache_of(ours), num_logits=8)
    torch.testing.assert_close(whole, logits_of(ours, cache_of(ours), [256, 256, 88]))


def test_a_step_has_the_same_bits_whatever_was_drafted() -> None:
    ours = graph_decoder()
    cache = cache_of(ours)
    logits_of(ours, cache, [256, 20])
    steps = [ours.forward([7], cache, num_logits=1)]
    for draft in ([5], [5, 6, 8], [1, 2, 3, 4, 5, 6, 9]):
        cache.truncate(276)
        steps.append(ours.forward([7, *draft], cache, num_logits=1 + len(draft)))
    assert all(torch.equal(step[0], steps[0][0]) for step in steps)


def test_padding_at_the_end_of_a_cache_overwrites_nothing() -> None:
    ours = graph_decoder()
    cache = cache_of(ours, 256)
    logits_of(ours, cache, [255])
    keys, values = cache.rows(0)
    ours.forward([7], cache, num_logits=1)
    assert cache.length == cache.capacity == 256
    assert torch.equal(cache.rows(0)[0][:255], keys)
    assert torch.equal(cache.rows(0)[1][:255], values)


def test_a_copied_prefix_goes_on_like_its_source() -> None:
    ours = graph_decoder()
    source, copy = cache_of(ours), cache_of(ours)
    logits_of(ours, source, [256, 44])
    copy.copy_prefix(source, 290)
    source.truncate(290)
    step = [ours.forward([3], cache, num_logits=1) for cache in (source, copy)]
    assert torch.equal(*step)


@pytest.mark.parametrize("num_pending", [1, 3, 8, 9, 300])
def test_a_chain_is_what_single_steps_would_choose(num_pending: int) -> None:
    ours = graph_decoder()
    cache, stepped = cache_of(ours), cache_of(ours)
    expected: list[int] = []
    pending = TOKENS[:num_pending]
    for _ in range(6):
        expected.append(int(ours.forward(pending, stepped, num_logits=1).argmax()))
        pending = expected[-1:]
    assert ours.greedy_chain(TOKENS[:num_pending], cache, 6) == expected
    assert cache.length == stepped.length == num_pending + 5
    step = [ours.forward([7, 8], each, num_logits=2) for each in (cache, stepped)]
    torch.testing.assert_close(*step)


def test_a_chain_is_sent_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, sent = graph_decoder(), list[int]()
    original = Inputs.set

    def counted(self: Inputs, token_ids: list[int], *others: Any) -> None:
        sent.append(len(token_ids))
        original(self, token_ids, *others)

    monkeypatch.setattr(Inputs, "set", counted)
    ours.greedy_chain(TOKENS[:5], cache_of(ours), 6)
    assert sent == [5]


def test_each_width_and_window_of_a_cache_is_recorded_once() -> None:
    recorder = Counting()
    ours = graph_decoder(recorder=recorder)
    first, second = cache_of(ours, 2048), cache_of(ours, 2048)
    logits_of(ours, first, [PROMPT_ROWS, 8, 8, 1])
    assert recorder.recorded == 2
    logits_of(ours, first, [8, 1])
    assert recorder.recorded == 2
    first.length = 1020
    ours.forward(TOKENS[:8], first, num_logits=1)
    assert recorder.recorded == 3, "a longer window"
    logits_of(ours, second, [8])
    assert recorder.recorded == 4, "another cache"


def test_what_was_recorded_does_not_keep_a_cache_alive() -> None:
    ours = graph_decoder()
    cache = cache_of(ours)
    logits_of(ours, cache, [8])
    assert len(ours._recorded) == 1
    del cache
    gc.collect()
    assert len(ours._recorded) == 0


def test_a_longer_cache_later_is_served_too() -> None:
    ours, plain = graph_decoder(), plain_decoder()
    short = cache_of(ours, 256)
    logits_of(ours, short, [8])
    long = logits_of(ours, cache_of(ours, 2048), [256, 256, 8])
    expected = logits_of(plain, cache_of(plain, 2048), [256, 256, 8])
    torch.testing.assert_close(long, expected, rtol=1e-4, atol=1e-4)
    again = logits_of(ours, short, [4])
    assert torch.isfinite(again).all()
