from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch

from specengine.cache.kv_cache import KVCache, KVShape
from specengine.draft import NOTHING, Draft
from specengine.drafters.base import Observer
from specengine.drafters.composite import CompositeDrafts
from specengine.sampling import GREEDY, Sampling
from tests.specengine.tiny import ScriptedDrafter, ScriptedDrafts


def test_name_joins_the_names() -> None:
    assert CompositeDrafts([ScriptedDrafts([], "one"), ScriptedDrafts([], "two")]).name == "one+two"


def test_first_that_has_an_idea_proposes() -> None:
    first = ScriptedDrafts([[1], [], []], "first")
    second = ScriptedDrafts([[2, 3], []], "second")
    drafter = CompositeDrafts([first, second]).start([9])
    assert drafter.propose([9], 4) == Draft.chain([1], "first")
    assert drafter.propose([9, 1], 3) == Draft.chain([2, 3], "second")
    assert drafter.propose([9, 1, 2], 2) == NOTHING
    assert first.started[0].calls == [((9,), 4), ((9, 1), 3), ((9, 1, 2), 2)]
    assert second.started[0].calls == [((9, 1), 3), ((9, 1, 2), 2)]


def test_every_drafter_is_closed_once() -> None:
    sources = [ScriptedDrafts([]), ScriptedDrafts([])]
    CompositeDrafts(sources).start([9]).close()
    assert [source.started[0].num_closed for source in sources] == [1, 1]


class StubbornDrafter(ScriptedDrafter):
    def close(self) -> None:
        raise RuntimeError("cannot close")


class BadDrafts:
    """A source that cannot start, or whose drafters cannot close."""

    name = "bad"

    def __init__(self, *, can_start: bool) -> None:
        self._can_start = can_start

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> StubbornDrafter:
        if not self._can_start:
            raise RuntimeError("cannot start")
        return StubbornDrafter([])


def test_a_source_that_cannot_start_leaves_no_other_open() -> None:
    good = ScriptedDrafts([])
    with pytest.raises(RuntimeError, match="cannot start"):
        CompositeDrafts([good, BadDrafts(can_start=False)]).start([1])
    assert good.started[0].num_closed == 1


def test_all_are_closed_when_one_cannot_be() -> None:
    good = ScriptedDrafts([])
    drafter = CompositeDrafts([good, BadDrafts(can_start=True)]).start([1])
    with pytest.raises(RuntimeError, match="cannot close"):
        drafter.close()
    assert good.started[0].num_closed == 1


class ThinkingDrafter:
    def propose(self, token_ids: Sequence[int], max_tokens: int) -> Draft | None:
        return None

    def close(self) -> None:
        pass


class ThinkingDrafts:
    name = "thinking"

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> ThinkingDrafter:
        return ThinkingDrafter()


def test_a_preferred_drafter_that_is_not_ready_is_waited_for() -> None:
    drafter = CompositeDrafts([ThinkingDrafts(), ScriptedDrafts([[1]])]).start([9])
    assert drafter.propose([9], 4) is None


class SharingDrafts(ScriptedDrafts):
    """A source of drafters that run on the request's cache."""

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> SharingDrafter:
        return SharingDrafter(self)


class SharingDrafter(ScriptedDrafter):
    def __init__(self, source: SharingDrafts) -> None:
        super().__init__([])
        source.started.append(self)
        self.caches: list[KVCache] = []

    def share(self, cache: KVCache) -> None:
        self.caches.append(cache)


def test_the_cache_goes_to_those_that_run_on_it() -> None:
    first, second = ScriptedDrafts([]), SharingDrafts([])
    drafter = CompositeDrafts([first, second]).start([9])
    cache = KVCache(KVShape(1, 1, 2, torch.float32, torch.device("cpu")), 8)
    drafter.share(cache)
    (sharing,) = second.started
    assert isinstance(sharing, SharingDrafter)
    assert sharing.caches == [cache]


class Watching(ThinkingDrafter):
    """Sees streams of some layers; source and drafter in one."""

    name = "watching"

    def __init__(self, *layers: int) -> None:
        self.layers = layers
        self.seen: list[tuple[set[int], int]] = []

    def start(self, prompt_ids: Sequence[int], sampling: Sampling = GREEDY) -> Watching:
        return self

    def observe(self, streams: Mapping[int, torch.Tensor], start: int) -> None:
        self.seen.append((set(streams), start))


def test_drafters_that_look_at_the_target_see_their_layers() -> None:
    low, high = Watching(1, 2), Watching(2, 5)
    drafter = CompositeDrafts([low, ScriptedDrafts([]), high]).start([9])
    assert isinstance(drafter, Observer)
    assert drafter.layers == (1, 2, 5)
    drafter.observe({layer: torch.zeros(1, 4) for layer in drafter.layers}, 3)
    assert (low.seen, high.seen) == ([({1, 2}, 3)], [({2, 5}, 3)])


def test_without_such_drafters_streams_are_not_asked_for() -> None:
    assert not isinstance(CompositeDrafts([ScriptedDrafts([])]).start([9]), Observer)
