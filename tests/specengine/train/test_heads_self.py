"""Training of heads over the target's own layers, against what their drafters compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, Draft
from specengine.drafters import streaming
from specengine.drafters.streaming import StreamingDrafts
from specengine.heads.head import Head, Kind
from specengine.heads.layer_skip import exit_norm, exit_output
from specengine.models.architecture import Architecture
from specengine.models.excerpts import first_layers
from specengine.models.load import TensorReader
from specengine.models.target import Rows, Tap
from specengine.train.beginnings import begin, frozen_of, taps_of
from specengine.train.heads_self import LastLayers, exit_logits, pass_streams
from specengine.train.objectives import outcome
from specengine.train.streams import Shard
from tests.specengine.heads.tiny_self import DEPTH, tiny_exit, tiny_streams
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_tensors

NUM_TOKENS, NUM_ROWS = 40, 3
FAMILIES = [
    tiny_architecture(family=family, num_layers=3) for family in ("llama", "qwen2", "qwen3")
]
TINY = FAMILIES[0]
WEIGHTS = tiny_tensors(TINY)
IDS = torch.arange(5, 200)
ANCHORS = torch.tensor([0, 3, 17, NUM_TOKENS - 1 - DEPTH])
TEXTS = torch.randint(5, 280, (NUM_ROWS, NUM_TOKENS), generator=torch.Generator().manual_seed(6))


def look(sizes: Architecture) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """Return the target's streams behind each layer, [B, T, hidden], and its logits [B, T, V]."""
    decoder = tiny_decoder(architecture=sizes)
    taps: list[torch.Tensor] = []
    scores: list[torch.Tensor] = []
    for text in TEXTS:
        tap = Tap(tuple(range(sizes.num_layers + 1)))
        rows = Rows(text.tolist(), KVCache(decoder.kv_shape, 64), NUM_TOKENS, tap=tap)
        scores += decoder.forward_batch([rows])
        taps.append(tap.streams)
    streams = torch.stack(taps, 1)
    return dict(enumerate(streams)), torch.stack(scores)


def shard_of(streams: dict[int, torch.Tensor], logits: torch.Tensor) -> Shard:
    likely = logits.softmax(-1).topk(16)
    mask = torch.ones(logits.shape[:2], dtype=torch.bool)
    return Shard(TEXTS, likely.indices, likely.values, mask, streams)


def begin_with(kind: Kind, shard: Shard) -> Head:
    """Return a head that knows what the target chooses, which random texts do not share."""
    ids = shard.choices.unique()
    return begin(kind, DEPTH, TINY, WEIGHTS, ids)


@pytest.mark.parametrize("sizes", FAMILIES)
def test_an_exit_in_training_says_what_the_drafter_reads(sizes: Architecture) -> None:
    decoder, head = tiny_decoder(architecture=sizes), tiny_exit(sizes, 2)
    streams, _ = look(sizes)
    exit_ = first_layers(decoder, 2, exit_norm(head), exit_output(head))
    for text, stream in zip(TEXTS, streams[2], strict=True):
        cache = KVCache(decoder.kv_shape, 64).layers(0, 2)
        drafting = exit_.forward(text.tolist(), cache, num_logits=NUM_TOKENS)
        torch.testing.assert_close(exit_logits(head, stream), drafting, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("sizes", FAMILIES)
def test_streams_in_training_say_what_the_drafter_reads(
    sizes: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def noting(probabilities: torch.Tensor, *others: object) -> Draft:
        seen.append(probabilities)
        return NOTHING

    monkeypatch.setattr(streaming, "from_positions", noting)
    decoder, head = tiny_decoder(architecture=sizes), tiny_streams(sizes)
    weights = tiny_tensors(sizes)
    source = StreamingDrafts(head, decoder, TensorReader(weights, torch.float32))
    streams, _ = look(sizes)
    target = LastLayers.of(sizes, weights, head.layers)
    rows, score = pass_streams(head, target, streams, ANCHORS)
    training = score(rows).softmax(-1)
    for row, text in enumerate(TEXTS):
        token_ids = text.tolist()
        for at, anchor in enumerate(ANCHORS.tolist()):
            drafter, cache = source.start(token_ids), KVCache(decoder.kv_shape, 64)
            decoder.forward(token_ids[: anchor + 1], cache, num_logits=0)
            drafter.share(cache)
            drafter.observe({1: streams[1][row, : anchor + 1]}, 0)
            drafter.propose(token_ids[: anchor + 2], 7)
            torch.testing.assert_close(seen.pop(), training[row, at], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("kind", "num_steps"), [("layer_skip", 30), ("streaming", 40)])
def test_heads_learn(kind: Kind, num_steps: int) -> None:
    shard = shard_of(*look(TINY))
    head = begin_with(kind, shard)
    frozen = frozen_of(TINY, WEIGHTS, head.layers if kind == "streaming" else ())
    tensors = {name: each.clone().requires_grad_() for name, each in head.tensors.items()}
    optimizer = torch.optim.Adam(tensors.values(), lr=1e-2)
    losses: list[float] = []
    hits: list[list[float]] = []
    for _ in range(num_steps + 1):
        optimizer.zero_grad()
        made = outcome(replace(head, tensors=tensors), frozen, shard)
        made.loss.backward()
        optimizer.step()
        losses.append(float(made.loss.detach()))
        hits.append(made.hits)
    assert losses[-1] < 0.75 * losses[0]
    assert all(late > early + 0.2 for early, late in zip(hits[0], hits[-1], strict=True))


def test_nothing_of_the_target_learns() -> None:
    streams, _ = look(TINY)
    head = tiny_streams(TINY)
    weights = {name: each.clone().requires_grad_() for name, each in WEIGHTS.items()}
    tensors = {name: each.clone().requires_grad_() for name, each in head.tensors.items()}
    target = LastLayers.of(TINY, weights, head.layers)
    rows, score = pass_streams(replace(head, tensors=tensors), target, streams, ANCHORS)
    score(rows).pow(2).mean().backward()
    assert all(each.grad is None for each in weights.values())
    assert all(each.grad is not None and each.grad.any() for each in tensors.values())


def test_heads_begin_as_the_target_s_own_last_words() -> None:
    """An exit behind all layers, with what training begins with, says what the target says."""
    streams, logits = look(TINY)
    head = replace(begin("layer_skip", DEPTH, TINY, WEIGHTS, IDS), layers=(3,))
    torch.testing.assert_close(
        exit_logits(head, streams[3]), logits[..., IDS], atol=1e-3, rtol=1e-3
    )


def test_kinds_read_what_they_run_on() -> None:
    assert taps_of("layer_skip", 30) == (6,)
    assert taps_of("layer_skip", 2) == (1,)
    assert taps_of("streaming", 30) == (26, 27, 28, 29)
