"""What is recorded for the caches of a text, without a network."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch

from specengine.draft import ROOT
from specengine.heads.head_cache import HeadCache, HeadStore
from specengine.heads.recorded import Guess, Nodes, RecordedDraft, Start
from specengine.models.graphs import Recorder, Replay, run_again
from tests.specengine.heads.tiny_heads import sizes_of
from tests.specengine.tiny import tiny_architecture

SIZES = sizes_of(tiny_architecture())


def new_cache(num_rows: int = 0) -> HeadCache:
    cache = HeadCache(SIZES, 16, torch.device("cpu"))
    rows = torch.randn(num_rows, SIZES.num_kv_heads, SIZES.head_dim)
    cache.append(range(num_rows), rows, rows)
    return cache


def counting(caches: Sequence[HeadCache], start: Start) -> Nodes:
    """Guess the sum of the row, then the position, then the number of stored rows."""
    tokens = torch.stack((start.row.sum().long(), start.position[0], start.lengths[0]))
    return Nodes(tokens, torch.arange(ROOT, 2), torch.tensor([0.5, 0.5, 0.5]))


def recorded(num_texts: int = 1, recorder: Recorder = run_again) -> RecordedDraft:
    store = HeadStore(lambda: [new_cache()], num_texts)
    return RecordedDraft(Guess(counting, 2), store, torch.zeros(4), recorder)


def test_all_texts_that_are_kept_are_recorded_at_once() -> None:
    works: list[Replay] = []

    def recorder(work: Replay) -> Replay:
        works.append(work)
        return work

    recorded(3, recorder)
    assert len(works) == 3


def test_each_draft_has_the_values_of_its_own_start() -> None:
    draft, cache = recorded(), new_cache(3)
    first = draft.make(torch.ones(4), 7, [cache])
    assert first.token_ids == [4, 7, 3]
    cache.truncate(1)
    assert draft.make(torch.full((4,), 2.0), 9, [cache]).token_ids == [8, 9, 1]
    assert draft.make(torch.zeros(4), 0, [new_cache(2)]).token_ids == [0, 0, 2]


def test_old_rows_of_a_full_cache_make_room_for_the_draft() -> None:
    cache = new_cache(15)
    found = recorded().make(torch.zeros(4), 0, [cache])
    assert cache.length <= cache.capacity - 2
    assert found.token_ids[2] == cache.length


def test_behind_an_unlikely_node_nothing_is_kept() -> None:
    draft, cache = recorded(), new_cache()
    found = draft.make(torch.zeros(4), 0, [cache], go_on=0.3)
    assert found.parents == [ROOT, 0]
    assert found.confidences == [0.5, 0.25]


def test_caches_go_when_their_text_does() -> None:
    draft, cache = recorded(), new_cache()
    draft.make(torch.zeros(4), 0, [cache])
    gone = weakref.ref(cache)
    del cache
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("num_rows", [0, 5])
def test_drafted_rows_see_what_is_committed_and_their_own_path(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(2, SIZES.num_heads, SIZES.head_dim, generator=generator)
    keys, values = torch.randn(2, 2, SIZES.num_kv_heads, SIZES.head_dim, generator=generator)
    sees = torch.eye(2, dtype=torch.bool)
    cache = new_cache(num_rows)
    drafted = cache.drafting(torch.tensor([num_rows]), sees)(queries, keys, values)
    assert cache.length == num_rows
    stored = cache.appending([num_rows] * 2, sees)(queries, keys, values)
    torch.testing.assert_close(drafted, stored)
