from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specengine.cache.kv_cache import TILE, KVCache, KVShape
from specengine.cache.prefix_cache import PrefixCache, Slot

SHAPE = KVShape(1, 1, 1, torch.float32, torch.device("cpu"))
CAPACITY = 4 * TILE
NUM_SLOTS = 3

LONG = list(range(1, 356))


def new_cache() -> KVCache:
    return KVCache(SHAPE, CAPACITY)


def compute(slot: Slot, token_ids: list[int]) -> None:
    """Do as a request does: append the rows of the tokens that the cache lacks."""
    rows = torch.tensor(token_ids[slot.cache.length :], dtype=torch.float32)[:, None, None]
    slot.cache.write(0, rows, rows)
    slot.cache.advance(len(rows))


def stored_in(slot: Slot) -> list[int]:
    """Return the tokens whose rows a cache really holds."""
    return [int(number) for number in slot.cache.rows(0)[0].flatten()]


def store(prefixes: PrefixCache, token_ids: list[int]) -> Slot:
    slot = prefixes.lease(token_ids)
    compute(slot, token_ids)
    prefixes.release(slot, token_ids)
    return slot


def num_shared(first: list[int], second: list[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))


PROMPTS = st.tuples(
    st.lists(st.integers(1, 2), min_size=1, max_size=3), st.sampled_from([0, 1, 30, 200, 300, 700])
).map(lambda parts: [*parts[0], *range(10, 10 + parts[1]), *parts[0]])
"""Prompts with beginnings, middles and ends in common."""


class RequestsComeAndGo(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.prefixes = PrefixCache(new_cache, NUM_SLOTS)
        self.running: list[tuple[Slot, list[int]]] = []
        self.stored: dict[int, list[int]] = {}
        """What free slots hold, by the slot's identity."""

    @precondition(lambda self: len(self.running) < NUM_SLOTS)
    @rule(token_ids=PROMPTS)
    def start(self, token_ids: list[int]) -> None:
        assert self.prefixes.has_free_slot
        limit = len(token_ids) - 1
        longest = max((num_shared(ids, token_ids) for ids in self.stored.values()), default=0)
        slot = self.prefixes.lease(token_ids)
        assert slot not in [other for other, _ in self.running]
        assert slot.cache.length == min(longest, limit)
        assert slot.token_ids == token_ids[: slot.cache.length] == stored_in(slot)
        self.stored.pop(id(slot), None)
        self.running.append((slot, token_ids))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), share=st.floats(0, 1))
    def end(self, data: st.DataObject, share: float) -> None:
        """A cancelled request has computed a part of its tokens only."""
        slot, token_ids = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        compute(slot, token_ids)
        slot.cache.truncate(round(share * len(token_ids)))
        kept = token_ids[: slot.cache.length]
        self.prefixes.release(slot, kept)
        self.stored[id(slot)] = kept
        assert slot.token_ids == kept == stored_in(slot)

    @invariant()
    def books_are_in_order(self) -> None:
        self.prefixes.check_integrity()
        assert self.prefixes.num_leased == len(self.running)
        assert self.prefixes.has_free_slot == (len(self.running) < NUM_SLOTS)
        num_slots = len(self.running) + len(self.stored)
        assert self.prefixes.num_bytes == num_slots * SHAPE.num_bytes(CAPACITY)
        assert num_slots <= NUM_SLOTS

    @invariant()
    def running_requests_keep_their_rows(self) -> None:
        for slot, token_ids in self.running:
            assert stored_in(slot) == token_ids[: slot.cache.length]


TestRequestsComeAndGo = RequestsComeAndGo.TestCase
TestRequestsComeAndGo.settings = settings(max_examples=40, stateful_step_count=20)


def test_no_memory_is_taken_before_the_first_request() -> None:
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    assert prefixes.num_bytes == 0
    prefixes.lease([1])
    assert prefixes.num_bytes == SHAPE.num_bytes(CAPACITY)


def test_last_token_is_always_left_to_compute() -> None:
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    store(prefixes, [1, 2, 3])
    assert prefixes.lease([1, 2, 3]).cache.length == 2


def test_no_tokens_share_nothing() -> None:
    assert PrefixCache(new_cache, 1).lease([]).cache.length == 0


def test_next_keystroke_takes_the_slot_of_the_last_one() -> None:
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    slot = store(prefixes, LONG)
    assert prefixes.lease([*LONG[:-3], 5000, 5001]) is slot
    assert prefixes.num_bytes == SHAPE.num_bytes(CAPACITY)


def test_longest_shared_prefix_wins() -> None:
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    first, second = prefixes.lease([1, 2]), prefixes.lease([1, 2])
    for slot, token_ids in ((first, [1, 2, 3, 4]), (second, [1, 2, 3, 4, 5])):
        compute(slot, token_ids)
        prefixes.release(slot, token_ids)
    assert prefixes.lease([1, 2, 3, 4, 5, 6]) is second


@pytest.mark.parametrize("num_shared_tokens", [0, 1, 50])
def test_unrelated_request_leaves_a_long_sequence_while_there_are_unused_slots(
    num_shared_tokens: int,
) -> None:
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    slot = store(prefixes, LONG)
    other = [*LONG[:num_shared_tokens], 7000, 7001, 7002]
    newcomer = prefixes.lease(other)
    assert newcomer is not slot
    assert newcomer.cache.length == num_shared_tokens
    assert prefixes.lease([*LONG, 7003]).cache.length == len(LONG)


def test_unrelated_request_leaves_a_short_sequence_too() -> None:
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    store(prefixes, [1, 2, 3])
    store(prefixes, [7, 8, 9])
    assert prefixes.lease([1, 2, 3, 4]).cache.length == 3


def test_sequence_unused_for_longest_gives_way() -> None:
    prefixes = PrefixCache(new_cache, 2)
    store(prefixes, [1, 2, 3])
    store(prefixes, [4, 5, 6])
    store(prefixes, [1, 2, 3])
    store(prefixes, [7, 8, 9])
    assert prefixes.lease([1, 2, 3, 9]).cache.length == 3
    assert prefixes.lease([4, 5, 6, 9]).cache.length == 0


def test_releasing_twice_is_a_bug() -> None:
    prefixes = PrefixCache(new_cache, 1)
    slot = store(prefixes, [1, 2])
    with pytest.raises(AssertionError, match="released twice"):
        prefixes.release(slot, [1, 2])


def test_releasing_tokens_without_rows_is_a_bug() -> None:
    prefixes = PrefixCache(new_cache, 1)
    slot = prefixes.lease([1, 2])
    with pytest.raises(AssertionError):
        prefixes.release(slot, [1, 2])


def test_leasing_more_slots_than_there_are_is_a_bug() -> None:
    prefixes = PrefixCache(new_cache, 1)
    prefixes.lease([1])
    with pytest.raises(AssertionError, match="no free slot"):
        prefixes.lease([1])


@pytest.mark.parametrize(("num_common", "is_kept"), [(3, True), (40, True), (60, False)])
def test_a_sequence_is_taken_over_only_by_one_that_shares_half_of_it(
    num_common: int, is_kept: bool
) -> None:
    """What grows along takes over; what merely begins alike gets a copy."""
    prefixes = PrefixCache(new_cache, NUM_SLOTS)
    first = list(range(1, 101))
    store(prefixes, first)
    store(prefixes, [*first[:num_common], *range(500, 520)])
    again = prefixes.lease([*first, 999])
    assert again.cache.length == (100 if is_kept else num_common)
    assert stored_in(again) == first[: again.cache.length]
