from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specengine.cache.kv_cache import TILE, KVCache, KVShape

SHAPE = KVShape(2, 3, 4, torch.float32, torch.device("cpu"))
CAPACITY = 2 * TILE + 50


def write(cache: KVCache, numbers: list[float]) -> None:
    """Store rows that tell their number, layer, head and side."""
    heads = torch.arange(SHAPE.num_kv_heads) * 0.25
    rows = (torch.tensor(numbers)[:, None] + heads)[..., None].expand(-1, -1, SHAPE.head_dim)
    for layer in range(SHAPE.num_layers):
        keys = rows + layer * 0.125
        cache.write(layer, keys, -keys)


def numbers_in(cache: KVCache) -> list[float]:
    """Return the numbers of the stored rows; every layer, head and side must agree on them."""
    sides: list[torch.Tensor] = []
    for layer in range(SHAPE.num_layers):
        keys, values = cache.rows(layer)
        heads = torch.arange(SHAPE.num_kv_heads)[:, None] * 0.25
        sides += [keys - heads - layer * 0.125, -values - heads - layer * 0.125]
    numbers = sides[0][:, 0, 0]
    assert all(torch.equal(side, numbers[:, None, None].expand_as(side)) for side in sides)
    return numbers.tolist()


class TwoCachesAreTwoLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.caches = [KVCache(SHAPE, CAPACITY) for _ in range(2)]
        self.lists: list[list[float]] = [[], []]
        self.numbers = count(1)

    def new_numbers(self, at: int, num_rows: int) -> list[float]:
        room = self.caches[at].capacity - len(self.lists[at])
        return [float(next(self.numbers)) for _ in range(min(num_rows, room))]

    @rule(at=st.integers(0, 1), num_rows=st.sampled_from([1, 2, 8, 40, TILE, 300]))
    def append(self, at: int, num_rows: int) -> None:
        numbers = self.new_numbers(at, num_rows)
        write(self.caches[at], numbers)
        self.caches[at].advance(len(numbers))
        self.lists[at] += numbers

    @rule(at=st.integers(0, 1), num_rows=st.sampled_from([1, 8, TILE]))
    def write_without_advancing(self, at: int, num_rows: int) -> None:
        write(self.caches[at], self.new_numbers(at, num_rows))

    @precondition(lambda self: any(self.lists))
    @rule(at=st.integers(0, 1), share=st.floats(0, 1))
    def truncate(self, at: int, share: float) -> None:
        length = round(share * len(self.lists[at]))
        self.caches[at].truncate(length)
        del self.lists[at][length:]

    @rule(at=st.integers(0, 1), share=st.floats(0, 1))
    def copy_prefix_of_the_other(self, at: int, share: float) -> None:
        length = round(share * len(self.lists[1 - at]))
        self.caches[at].copy_prefix(self.caches[1 - at], length)
        self.lists[at] = self.lists[1 - at][:length]

    @invariant()
    def caches_hold_the_lists(self) -> None:
        for cache, numbers in zip(self.caches, self.lists, strict=True):
            assert cache.length == len(numbers)
            assert numbers_in(cache) == numbers


TestTwoCachesAreTwoLists = TwoCachesAreTwoLists.TestCase
TestTwoCachesAreTwoLists.settings = settings(max_examples=15, stateful_step_count=15)


def test_capacity_is_whole_tiles() -> None:
    cache = KVCache(SHAPE, TILE + 1)
    assert cache.capacity == 2 * TILE
    assert cache.num_bytes == SHAPE.num_bytes(TILE + 1)
    assert cache.num_bytes == 2 * 2 * 3 * 4 * 2 * TILE * 4


def test_tiles_are_views_in_order() -> None:
    cache = KVCache(SHAPE, CAPACITY)
    keys, values = cache.tiles(1, 2)
    write(cache, [float(at) for at in range(TILE + 2)])
    assert keys.shape == values.shape == (2, SHAPE.num_kv_heads, TILE, SHAPE.head_dim)
    assert keys[1, 0, 1, 0] == TILE + 1 + 0.125
    assert values[1, 2, 0, 3] == -(TILE + 0.5 + 0.125)


def test_rows_never_written_are_finite() -> None:
    """A masked position is multiplied by zero, and zero times NaN is NaN."""
    keys, values = KVCache(SHAPE, TILE).tiles(0, 1)
    assert not keys.any()
    assert not values.any()


def test_rows_are_stored_in_the_cache_precision() -> None:
    cache = KVCache(KVShape(1, 1, 2, torch.bfloat16, torch.device("cpu")), TILE)
    cache.write(0, torch.full((1, 1, 2), 1.001), torch.full((1, 1, 2), 2.001))
    cache.advance(1)
    keys, values = cache.rows(0)
    assert torch.equal(keys, torch.ones(1, 1, 2, dtype=torch.bfloat16))
    assert torch.equal(values, torch.full((1, 1, 2), 2, dtype=torch.bfloat16))


@pytest.mark.parametrize("keys_by_dim", [False, True])
def test_wiped_rows_behind_the_length_are_zero_and_no_others(keys_by_dim: bool) -> None:
    cache = KVCache(replace(SHAPE, keys_by_dim=keys_by_dim), CAPACITY)
    for side in cache.tiles(1, 2):
        side.fill_(float("nan"))
    cache.advance(TILE - 2)
    cache.wipe(3)
    cache.advance(4)
    for side in cache.rows(1):
        assert side[: TILE - 2].isnan().all()
        assert not side[TILE - 2 : TILE + 1].any()
        assert side[TILE + 1].isnan().all()


def test_wiping_more_than_there_is_room_for_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="257 positions in a cache of 256"):
        full_cache().wipe(1)


def test_copy_lives_on_its_own() -> None:
    source, copy = KVCache(SHAPE, TILE), KVCache(SHAPE, TILE)
    write(source, [1, 2, 3])
    source.advance(3)
    copy.copy_prefix(source, 2)
    source.truncate(0)
    write(source, [7, 8, 9])
    assert numbers_in(copy) == [1, 2]


def full_cache() -> KVCache:
    cache = KVCache(SHAPE, TILE)
    cache.advance(cache.capacity)
    return cache


def test_more_rows_than_fit_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="257 positions in a cache of 256"):
        write(full_cache(), [1])
    with pytest.raises(AssertionError):
        full_cache().advance(1)


@pytest.mark.parametrize("length", [-1, TILE + 1])
def test_truncating_to_a_length_that_was_never_there_is_a_bug(length: int) -> None:
    with pytest.raises(AssertionError, match="truncate 256 rows"):
        full_cache().truncate(length)


def test_copying_more_than_there_is_or_fits_is_a_bug() -> None:
    longer = KVCache(SHAPE, 2 * TILE)
    with pytest.raises(AssertionError):
        longer.copy_prefix(full_cache(), TILE + 1)
    longer.advance(TILE + 1)
    with pytest.raises(AssertionError):
        full_cache().copy_prefix(longer, TILE + 1)


def test_a_view_of_layers_has_their_rows_and_a_length_of_its_own() -> None:
    cache = KVCache(SHAPE, TILE)
    write(cache, [1, 2, 3])
    cache.advance(3)
    view = cache.layers(1, 2)
    assert view.length == 3
    assert all(torch.equal(*sides) for sides in zip(view.rows(0), cache.rows(1), strict=True))
    rows = torch.full((2, SHAPE.num_kv_heads, SHAPE.head_dim), 7.0)
    view.write(0, rows, rows)
    view.advance(2)
    assert (view.length, cache.length) == (5, 3)
    assert numbers_in(cache) == [1, 2, 3]


@pytest.mark.parametrize("keys_by_dim", [False, True])
def test_a_view_of_layers_lies_where_they_lie(keys_by_dim: bool) -> None:
    shape = replace(SHAPE, num_layers=3, keys_by_dim=keys_by_dim)
    cache = KVCache(shape, CAPACITY)
    view = cache.layers(1, 3)
    for own, all_layers in zip(view.pointers, cache.pointers, strict=True):
        assert own - all_layers == cache.num_bytes // 2 // 3
    assert view.num_bytes == cache.num_bytes * 2 // 3
    assert view.capacity == cache.capacity


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (1, 1), (1, 3)])
def test_a_view_of_layers_that_are_not_there_is_a_bug(first: int, last: int) -> None:
    with pytest.raises(AssertionError, match="layers"):
        KVCache(SHAPE, TILE).layers(first, last)
