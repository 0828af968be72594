"""Stored sequences: a new request takes over the KV of the longest prefix that one of them shares.

A fixed number of slots, each a ``KVCache`` and the tokens whose rows it holds. A slot is leased to
one request and released with what the request left behind; memory is allocated when first needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from specengine.cache.kv_cache import KVCache

MIN_SHARED: Final = 0.5
"""A slot is taken over in place if the prefix is at least this share of it; else it is copied."""


class Slot:
    """A place for one sequence."""

    def __init__(self, cache: KVCache) -> None:
        self.cache: Final = cache
        self.token_ids: list[int] = []
        """Tokens of the stored rows; while leased, of those that were there at the lease."""
        self.is_leased = False
        self.last_used = 0


class PrefixCache:
    """Slots, and who has them. Not thread-safe: one scheduler owns it."""

    def __init__(self, new_cache: Callable[[], KVCache], num_slots: int) -> None:
        self._new_cache = new_cache
        self._num_slots = num_slots
        self._slots: list[Slot] = []
        self._clock = itertools.count(1)

    @property
    def num_leased(self) -> int:
        """Return how many slots requests hold now."""
        return sum(slot.is_leased for slot in self._slots)

    @property
    def has_free_slot(self) -> bool:
        """Whether ``lease`` can be called."""
        return self.num_leased < self._num_slots

    @property
    def slots(self) -> list[tuple[int, bool]]:
        """Return for each slot how many rows it holds, and whether a request has it."""
        return [(slot.cache.length, slot.is_leased) for slot in list(self._slots)]

    @property
    def num_bytes(self) -> int:
        """Return the memory that all slots take."""
        return sum(slot.cache.num_bytes for slot in self._slots)

    def lease(self, token_ids: Sequence[int]) -> Slot:
        """Return a slot whose cache holds the longest known prefix of ``token_ids``.

        At least one token is left to compute, as only a forward pass gives logits.
        """
        assert self.has_free_slot, "no free slot"
        free = [slot for slot in self._slots if not slot.is_leased]
        best = max(free, key=lambda slot: _shared(slot, token_ids), default=None)
        length = 0 if best is None else _shared(best, token_ids)
        slot = self._place_for(best, length, free)
        if best is not None and slot is not best and length > 0:
            slot.cache.copy_prefix(best.cache, length)
        else:
            slot.cache.truncate(length)
        slot.token_ids = list(token_ids[:length])
        slot.is_leased = True
        return slot

    def release(self, slot: Slot, token_ids: Sequence[int]) -> None:
        """Take a slot back; ``token_ids`` are those of the rows that its cache holds."""
        assert slot.is_leased, "released twice"
        assert len(token_ids) == slot.cache.length, (len(token_ids), slot.cache.length)
        slot.token_ids = list(token_ids)
        slot.is_leased = False
        slot.last_used = next(self._clock)

    def check_integrity(self) -> None:
        """Assert what always holds; called by tests after every operation."""
        assert len(self._slots) <= self._num_slots
        for slot in self._slots:
            if not slot.is_leased:
                assert len(slot.token_ids) == slot.cache.length

    def _place_for(self, best: Slot | None, length: int, free: list[Slot]) -> Slot:
        """Return the slot to use: the best match, an empty one, or the one unused for longest."""
        if best is not None and 0 < best.cache.length * MIN_SHARED <= length:
            return best
        if len(self._slots) < self._num_slots:
            self._slots.append(Slot(self._new_cache()))
            return self._slots[-1]
        return min(free, key=lambda slot: slot.last_used)


def _shared(slot: Slot, token_ids: Sequence[int]) -> int:
    limit = min(len(slot.token_ids), len(token_ids) - 1)
    length = 0
    while length < limit and slot.token_ids[length] == token_ids[length]:
        length += 1
    return length
