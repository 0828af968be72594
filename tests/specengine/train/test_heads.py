"""Heads learn what their target would say, and their training sees what the engine will do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specengine.cache.kv_cache import KVCache
from specengine.errors import LoadError
from specengine.heads.features import FeatureNetwork
from specengine.heads.head import Head, Kind
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.heads.pruned import PrunedNetwork
from specengine.heads.reader import Reader
from specengine.train import objectives
from specengine.train.beginnings import begin, draft_vocabulary, frozen_of, taps_of
from specengine.train.heads_loop import (
    HeadMeasurement,
    HeadPlan,
    HeadRun,
    HeadStep,
    read_head_history,
)
from specengine.train.objectives import Guesses, Labels, outcome, plain_product
from specengine.train.streams import LENGTH, ROWS, Opening, Shard, StreamStore
from tests.specengine.tiny import tiny_architecture, tiny_decoder, tiny_tensors

SIZES = tiny_architecture(num_layers=4)
TENSORS = tiny_tensors(SIZES)
DECODER = tiny_decoder(architecture=SIZES)
LAYERS = (1, 2, 4)
KINDS: tuple[Kind, ...] = ("medusa", "eagle", "mtp", "parallel", "draft_model")
DEPTH = 3


def openings(seed: int = 0, num_written: int = 0) -> Iterator[Opening]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        num = int(torch.randint(20, 60, (1,), generator=generator))
        token_ids = torch.randint(5, 90, (num,), generator=generator).tolist()
        yield Opening(tuple(token_ids), num_written)


def store_in(folder: Path, num_shards: int = 2, seed: int = 0) -> StreamStore:
    store = StreamStore(folder, "tiny", LAYERS)
    store.collect(DECODER, openings(seed), (), num_shards, lambda _: None)
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StreamStore:
    return store_in(tmp_path_factory.mktemp("streams"))


def head_of(kind: Kind) -> Head:
    return begin(kind, DEPTH, SIZES, TENSORS, torch.arange(5, 90))


FROZEN = frozen_of(SIZES, TENSORS)


def test_streams_and_choices_are_those_of_the_target(store: StreamStore) -> None:
    shard = store.read(0)
    first = next(openings())
    num = len(first.token_ids)
    assert shard.mask[0].tolist() == [True] * num + [False] * (LENGTH - num)
    assert shard.token_ids[0, :num].tolist() == list(first.token_ids)
    cache = KVCache(DECODER.kv_shape, 64)
    logits = DECODER.forward(list(first.token_ids), cache, num_logits=num)
    assert torch.equal(shard.choices[0, :num], logits.argmax(-1))
    expected = logits.softmax(-1).gather(-1, shard.likely_ids[0, :num])
    torch.testing.assert_close(shard.probabilities[0, :num], expected, atol=1e-3, rtol=1e-2)


def greedy_ids(token_ids: tuple[int, ...], num: int) -> list[int]:
    cache, text = KVCache(DECODER.kv_shape, LENGTH), list(token_ids)
    pending = text
    for _ in range(num):
        logits = DECODER.forward(pending, cache, num_logits=1)
        pending = [int(logits.argmax())]
        text = text + pending
    return text


def test_a_text_goes_on_as_the_target_would(tmp_path: Path) -> None:
    store = StreamStore(tmp_path, "tiny", LAYERS)
    store.collect(DECODER, openings(num_written=7), (), 1, lambda _: None)
    shard, prompts = store.read(0), openings()
    for row in range(ROWS):
        expected = greedy_ids(next(prompts).token_ids, 7)
        assert shard.token_ids[row][shard.mask[row]].tolist() == expected
        written = shard.choices[row][shard.mask[row]]
        assert written[-8:-1].tolist() == expected[-7:]
    for stream in shard.streams.values():
        assert stream[shard.mask].abs().sum(-1).min() > 0, "each token has its stream"
        assert not stream[~shard.mask].any()


def test_a_text_ends_before_an_end_that_the_target_chooses(tmp_path: Path) -> None:
    first = next(openings())
    num = len(first.token_ids)
    whole = greedy_ids(first.token_ids, 6)
    store = StreamStore(tmp_path, "tiny", LAYERS)
    store.collect(DECODER, openings(num_written=6), {whole[num + 3]}, 1, lambda _: None)
    text = store.read(0).token_ids[0][store.read(0).mask[0]].tolist()
    end = whole[num:].index(whole[num + 3])
    assert text == whole[: num + end]


def test_texts_are_the_same_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = StreamStore(tmp_path / "together", "tiny", LAYERS)
    together.collect(DECODER, openings(num_written=5), (), 1, lambda _: None)
    monkeypatch.setattr(type(DECODER), "batch_rows", 0)
    alone = StreamStore(tmp_path / "alone", "tiny", LAYERS)
    alone.collect(DECODER, openings(num_written=5), (), 1, lambda _: None)
    assert alone.read(0).token_ids.equal(together.read(0).token_ids)
    torch.testing.assert_close(alone.read(0).streams, together.read(0).streams)


def scores(guesses: Guesses) -> torch.Tensor:
    return guesses.score(guesses.rows)


def test_labels_are_shares_of_what_the_head_can_say(store: StreamStore) -> None:
    shard = store.read(0)
    likely = shard.likely_ids[0, 3].tolist()
    labels = Labels.of(shard, torch.tensor(sorted(likely[1:3])))
    kept = {
        sorted(likely[1:3])[int(at)]: float(share)
        for at, share in zip(labels.places[0, 3], labels.shares[0, 3], strict=True)
        if share > 0
    }
    ratio = float(shard.probabilities[0, 3, 1] / shard.probabilities[0, 3, 1:3].sum())
    assert kept == pytest.approx({likely[1]: ratio, likely[2]: 1 - ratio}, abs=1e-4)


def test_the_loss_is_the_cross_entropy_with_the_labels(store: StreamStore) -> None:
    shard = store.read(0)
    labels = Labels.of(shard, torch.arange(SIZES.vocab_size))
    at = torch.tensor([2, 5, shard.mask.shape[1] + 3])
    logits = torch.randn(3, SIZES.vocab_size)
    full = torch.zeros(3, SIZES.vocab_size)
    full.scatter_(-1, labels.places.flatten(0, 1)[at], labels.shares.flatten(0, 1)[at])
    expected = -(full * logits.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(labels.losses(logits, at), expected)


def test_collecting_goes_on_where_it_was_interrupted(tmp_path: Path, store: StreamStore) -> None:
    part = StreamStore(tmp_path, "tiny", LAYERS)
    part.collect(DECODER, openings(), (), 1, lambda _: None)
    part.collect(DECODER, openings(), (), 2, lambda _: None)
    assert len(part) == 2
    assert torch.equal(part.read(1).token_ids, store.read(1).token_ids)


def test_streams_of_another_target_are_not_used(tmp_path: Path) -> None:
    assert len(store_in(tmp_path, 1)) == 1
    assert len(StreamStore(tmp_path, "tiny", LAYERS)) == 1
    assert len(StreamStore(tmp_path, "another", LAYERS)) == 0


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    store = store_in(tmp_path, 1)
    (file,) = tmp_path.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(LoadError, match=file.name):
        store.read(0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_learns(tmp_path: Path, store: StreamStore, kind: Kind) -> None:
    run = HeadRun(head_of(kind), FROZEN, tmp_path, HeadPlan(40 * 300, learning_rate=5e-3))
    run.train(store, store, lambda _: None)
    lines = read_head_history(tmp_path)
    first, last = (
        [line for line in lines if isinstance(line, HeadMeasurement)][at] for at in (0, -1)
    )
    losses = [line.loss for line in lines if isinstance(line, HeadStep)]
    assert sum(losses[-5:]) < sum(losses[:5])
    assert last.hits[0] > first.hits[0]
    assert last.tokens_per_pass > first.tokens_per_pass


def test_training_goes_on_from_what_was_saved(tmp_path: Path, store: StreamStore) -> None:
    plan = HeadPlan(12 * 300, seed=3)
    whole = HeadRun(head_of("eagle"), FROZEN, tmp_path / "whole", plan)
    whole.train(store, store, lambda _: None)
    steps = iter([False] * 4 + [True])
    HeadRun(head_of("eagle"), FROZEN, tmp_path / "cut", plan).train(
        store, store, lambda _: None, lambda: next(steps)
    )
    rest = HeadRun(head_of("eagle"), FROZEN, tmp_path / "cut", plan)
    assert rest.step == 4
    rest.train(store, store, lambda _: None)
    assert rest.step == whole.step
    for name, tensor in whole.head.tensors.items():
        assert torch.equal(tensor, rest.head.tensors[name]), name


def test_a_state_of_another_kind_is_refused(tmp_path: Path) -> None:
    HeadRun(head_of("eagle"), FROZEN, tmp_path, HeadPlan(1)).save()
    with pytest.raises(LoadError, match="another kind"):
        HeadRun(head_of("medusa"), FROZEN, tmp_path, HeadPlan(1))


def one_row(shard: Shard, length: int) -> Shard:
    streams = {layer: each[:1, :length].float() for layer, each in shard.streams.items()}
    return Shard(
        shard.token_ids[:1, :length],
        shard.likely_ids[:1, :length],
        shard.probabilities[:1, :length],
        shard.mask[:1, :length],
        streams,
    )


def reader_of(network: FeatureNetwork) -> Reader:
    def new_caches() -> list[HeadCache]:
        device = torch.device("cpu")
        return [HeadCache(network.head.sizes, 64, device) for _ in range(network.num_modules)]

    return Reader(network, HeadStore(new_caches, 1), [])


@torch.no_grad()
def test_unrolled_training_computes_what_the_engine_drafts(store: StreamStore) -> None:
    """At depth d of row i the engine has seen the text to i - d, and drafted what follows it."""
    shard, head = one_row(store.read(0), 16), head_of("eagle")
    network = FeatureNetwork(head, FROZEN.embedding, plain_product)
    token_ids = shard.token_ids[0].tolist()
    guesses = list(objectives._eagle(head, FROZEN, shard))  # pyright: ignore[reportPrivateUsage]
    committed = 9  # tokens; the last of them is not computed yet
    reader = reader_of(network)
    reader.observe({layer: shard.streams[layer][0, : committed - 1] for layer in LAYERS}, 0)
    row = reader.read(token_ids[:committed])
    assert row is not None
    for depth in range(DEPTH):
        position = committed - 2 + depth  # of the row that guesses
        at = int((guesses[depth].places == position + 1).nonzero())
        torch.testing.assert_close(
            network.logits(row[None])[0], scores(guesses[depth])[0, at], atol=1e-4, rtol=1e-4
        )
        following = position + 1
        attend = reader.caches[0].appending([following])
        made = network.run(
            torch.tensor([token_ids[following + 1]]),
            row[None],
            torch.tensor([following]),
            attend,
        )
        row = made[0]


@torch.no_grad()
def test_a_pruned_model_is_trained_as_it_drafts(store: StreamStore) -> None:
    shard, head = one_row(store.read(0), 16), head_of("draft_model")
    (guesses,) = objectives._draft_model(head, FROZEN, shard)  # pyright: ignore[reportPrivateUsage]
    network = PrunedNetwork(head, FROZEN.embedding, plain_product)
    token_ids = shard.token_ids[0]
    caches = [HeadCache(head.sizes, 64, torch.device("cpu"), 0) for _ in range(2)]
    for start, end in ((0, 7), (7, 8), (8, 16)):
        positions = list(range(start, end))
        attends = [cache.appending(positions) for cache in caches]
        rows = network.run(token_ids[start:end], torch.tensor(positions), attends)
        logits = network.logits(rows)
        torch.testing.assert_close(logits, scores(guesses)[0, start:end], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_masks_compute_what_the_engine_drafts_in_one_pass(store: StreamStore) -> None:
    shard, head = one_row(store.read(0), 16), head_of("parallel")
    network = FeatureNetwork(head, FROZEN.embedding, plain_product)
    torch.manual_seed(0)
    guesses = list(objectives._parallel(head, FROZEN, shard))  # pyright: ignore[reportPrivateUsage]
    anchor = int(guesses[1].places[4]) - 2
    reader = reader_of(network)
    reader.observe({layer: shard.streams[layer][0, : anchor + 1] for layer in LAYERS}, 0)
    assert reader.read(shard.token_ids[0, : anchor + 2].tolist()) is not None
    embedding, features = network.masks()
    positions = list(range(anchor + 1, anchor + DEPTH))
    rows = network.run_embedded(
        embedding.expand(DEPTH - 1, -1),
        features,
        torch.tensor(positions),
        reader.caches[0].appending(positions),
    )
    for depth in range(1, DEPTH):
        expected = scores(guesses[depth])[0, 4]
        logits = network.logits(rows[depth - 1])
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_a_guess_is_scored_at_the_position_that_it_is_for(store: StreamStore, kind: Kind) -> None:
    """A label from elsewhere would make the loss another one."""
    shard = store.read(0)
    head = head_of(kind)
    torch.manual_seed(1)
    before = outcome(head, FROZEN, shard)
    likely_ids = shard.likely_ids.clone()
    likely_ids[:, 0] = 0  # no head guesses what follows the first token
    torch.manual_seed(1)
    after = outcome(head, FROZEN, replace(shard, likely_ids=likely_ids))
    assert after.hits == before.hits
    assert torch.equal(after.loss, before.loss)


def test_the_vocabulary_has_the_most_frequent_tokens() -> None:
    texts = [[7] * 5, [3] * 4, [9, 500]]
    assert draft_vocabulary(texts, 100).tolist() == [3, 7, 9]


@pytest.mark.parametrize("num_layers", [1, 2, 4, 30])
def test_streams_are_read_early_in_the_middle_and_late(num_layers: int) -> None:
    taps = taps_of("eagle", num_layers)
    assert list(taps) == sorted(set(taps))
    assert all(0 <= layer <= num_layers for layer in taps)
    assert taps_of("medusa", num_layers) == (num_layers,)


def test_shards_have_so_many_rows(store: StreamStore) -> None:
    assert store.read(0).token_ids.shape == (ROWS, LENGTH)
