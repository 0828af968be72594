"""Training of heads over the target's own layers, against what their drafters compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from specengine.cache.kv_cache import KVCache
from specengine.draft import NOTHING, Draft
from specengine.drafters import streaming
from specengine.drafters.streaming import StreamingDrafts
from specengine.heads.head import Head
from specengine.heads.layer_skip import exit_norm, exit_output
from specengine.models.architecture import Architecture
from specengine.models.excerpts import first_layers
from specengine.models.load import TensorReader
from specengine.models.target import Rows, Tap
from specengine.train.heads_self import (
    Labels,
    LastLayers,
    Outcome,
    exit_logits,
    layer_skip_loss,
    stream_logits,
    streaming_loss,
)
from tests.specengine.heads.tiny_self import DEPTH, tiny_exit, tiny_streams
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_tensors

NUM_TOKENS, NUM_ROWS = 40, 3
FAMILIES = [
    tiny_architecture(family=family, num_layers=3) for family in ("llama", "qwen2", "qwen3")
]
TINY = FAMILIES[0]
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


def labels_of(head: Head, logits: torch.Tensor) -> Labels:
    laws = logits.softmax(-1)[..., head.draft_ids]
    return Labels(laws, logits.argmax(-1), torch.ones(logits.shape[:2], dtype=torch.bool))


def reduced(logits: torch.Tensor, head: Head) -> Head:
    """Return the head with the tokens that the target chooses, which random texts do not share."""
    ids = logits.argmax(-1).unique()
    weights = tiny_tensors(TINY)
    tensors = {**head.tensors, "lm_head.weight": weights["lm_head.weight"][ids].clone()}
    return replace(head, tensors=tensors, draft_ids=ids)


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
    anchors = torch.tensor([0, 3, 17, NUM_TOKENS - 1 - DEPTH])
    training = stream_logits(head, LastLayers.of(sizes, weights, 1), streams, anchors).softmax(-1)
    for row, text in enumerate(TEXTS):
        token_ids = text.tolist()
        for at, anchor in enumerate(anchors.tolist()):
            drafter, cache = source.start(token_ids), KVCache(decoder.kv_shape, 64)
            decoder.forward(token_ids[: anchor + 1], cache, num_logits=0)
            drafter.share(cache)
            drafter.observe({1: streams[1][row, : anchor + 1]}, 0)
            drafter.propose(token_ids[: anchor + 2], 7)
            torch.testing.assert_close(seen.pop(), training[row, at], atol=1e-4, rtol=1e-3)


def fit(head: Head, loss_of: Callable[[Head], Outcome], num_steps: int) -> tuple[Outcome, Outcome]:
    """Train all tensors of a head for some steps; return how it did before and behind them."""
    tensors = {name: each.clone().requires_grad_() for name, each in head.tensors.items()}
    learning = replace(head, tensors=tensors)
    optimizer = torch.optim.Adam(tensors.values(), lr=1e-2)
    outcomes: list[Outcome] = []
    for _ in range(num_steps + 1):
        optimizer.zero_grad()
        made = loss_of(learning)
        made.loss.backward()
        optimizer.step()
        outcomes.append(replace(made, loss=made.loss.detach()))
    return outcomes[0], outcomes[-1]


def test_an_exit_learns() -> None:
    streams, logits = look(TINY)
    head = reduced(logits, tiny_exit(TINY))
    labels = labels_of(head, logits)
    first, last = fit(head, lambda each: layer_skip_loss(each, streams[1], labels), 30)
    assert float(last.loss) < 0.6 * float(first.loss)
    assert last.hits[0] > first.hits[0] + 0.3


def test_streams_learn() -> None:
    streams, logits = look(TINY)
    head = reduced(logits, tiny_streams(TINY))
    labels, target = labels_of(head, logits), LastLayers.of(TINY, tiny_tensors(TINY), 1)
    anchors = torch.arange(0, NUM_TOKENS - 1 - DEPTH, 3)
    first, last = fit(head, lambda each: streaming_loss(each, target, streams, labels, anchors), 40)
    assert float(last.loss) < 0.7 * float(first.loss)
    assert all(late > early + 0.2 for late, early in zip(last.hits, first.hits, strict=True))


def test_only_positions_with_tokens_count() -> None:
    streams, logits = look(TINY)
    head = tiny_exit(TINY)
    labels = labels_of(head, logits)
    mask = labels.mask.clone()
    mask[1:] = False
    alone = layer_skip_loss(head, streams[1][:1], labels_of(head, logits[:1]))
    masked = layer_skip_loss(head, streams[1], replace(labels, mask=mask))
    torch.testing.assert_close(masked.loss, alone.loss)
    assert masked.hits == pytest.approx(alone.hits)


def test_a_loss_is_the_cross_entropy_with_the_target_s_distribution() -> None:
    streams, logits = look(TINY)
    head = tiny_exit(TINY)
    labels = labels_of(head, logits)
    expected = F.cross_entropy(
        exit_logits(head, streams[1]).flatten(0, 1), labels.laws.flatten(0, 1)
    )
    torch.testing.assert_close(layer_skip_loss(head, streams[1], labels).loss, expected)


def test_nothing_of_the_target_learns() -> None:
    streams, logits = look(TINY)
    head = tiny_streams(TINY)
    weights = {name: each.requires_grad_() for name, each in tiny_tensors(TINY).items()}
    tensors = {name: each.clone().requires_grad_() for name, each in head.tensors.items()}
    target = LastLayers.of(TINY, weights, 1)
    anchors = torch.tensor([4, 9])
    labels = labels_of(head, logits)
    made = streaming_loss(replace(head, tensors=tensors), target, streams, labels, anchors)
    made.loss.backward()
    assert all(each.grad is None for each in weights.values())
    assert all(each.grad is not None and each.grad.any() for each in tensors.values())
