"""What the engine has seen, to be drafted from again: prompts, completions, other files.

A ring of tokens. For each place in it, the places before it that came behind the same last tokens
form a chain, as in a compressor's window; a table has the newest of each. So a search takes
microseconds, whatever the size, and what is overwritten falls off the chains by itself. Nothing of
it is ever written or logged.

Source: the idea is Oliaro et al. 2024, arXiv 2411.04975; chains take the place of their tree, whose
nodes would need many times the memory here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specengine.drafters.texts import GAP, MAX_MATCH, MAX_PLACES, Ids, Places

RUN_LENS: Final = (4, 2)
"""Lengths of the runs that have chains; matches shorter than the last say too little."""

BYTES_PER_TOKEN: Final = 16
"""The token, a link of each chain, and its share of the tables."""

MAX_BYTES: Final = 16 * 2**20
"""A million tokens."""

LEAST_TOKENS: Final = 1024
"""A smaller ring is none."""

MAX_STEPS: Final = 64
"""Links of a chain that are followed."""

NUM_RECENT: Final = 8
"""Texts that a new one is compared with, as most requests repeat the one before."""

LAST_PLACE: Final = 2**31 - 1
"""Places are 32 bits; behind this one all is forgotten, which takes weeks of reading."""

MULTIPLIER: Final = 0x9E3779B97F4A7C15
SHIFT: Final = 29
MASK: Final = 2**64 - 1
"""Of the hash of a run."""

NOWHERE: Final[Places] = np.empty(0, np.intp)


class History:
    """Texts of all requests, bounded in bytes. Places count from its first token on."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes: Final = max_bytes
        self._capacity = max_bytes // BYTES_PER_TOKEN
        if self._capacity < LEAST_TOKENS:
            self._capacity = 0
        self.forget()

    def forget(self) -> None:
        """Forget all texts."""
        self._ids: Ids = np.zeros(self._capacity, np.int32)
        self._ids[:MAX_MATCH] = GAP
        self._chains = [_Chain(run_len, self._capacity) for run_len in RUN_LENS]
        self._recent: deque[Ids] = deque(maxlen=NUM_RECENT)
        self.end = MAX_MATCH
        """The place behind its newest token."""

    @property
    def ids(self) -> Ids:
        """Return the ring: the token of a place lies at the place modulo its length."""
        return self._ids

    @property
    def num_bytes(self) -> int:
        """Return what it takes, apart from the few texts that are compared."""
        return self._ids.nbytes + sum(chain.num_bytes for chain in self._chains)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens lie in it."""
        return min(self.end - MAX_MATCH, self._capacity)

    def learn(self, token_ids: Sequence[int] | Ids) -> None:
        """Remember a text: what of it no recent one begins with.

        Of a text that is longer than a quarter of the ring the end.
        """
        if not self._capacity:
            return
        text = np.array(token_ids, np.int32)[-(self._capacity // 4) :]
        num_known = max((_common_len(text, recent) for recent in self._recent), default=0)
        if num_known == len(text):
            return
        if self.end + len(text) >= LAST_PLACE:
            self.forget()
        self._recent.append(text)
        self._add(text[max(0, num_known - MAX_MATCH) :])

    def find(self, tail: Ids) -> Places:
        """Return the most recent places behind the longest run of ``tail`` that has any."""
        oldest = self.end - self._capacity + MAX_MATCH
        for chain in self._chains:
            if self._capacity and tail[-chain.run_len] != GAP:
                places = chain.places(self._ids, tail, max(oldest, 1))
                if len(places):
                    return places
        return NOWHERE

    def _add(self, text: Ids) -> None:
        places = np.arange(self.end, self.end + len(text))
        self._ids[places % self._capacity] = text
        self.end += len(text) + 1
        # A gap parts it from the next text, and from the oldest one that is left.
        self._ids[(self.end - 1) % self._capacity] = GAP
        for chain in self._chains:
            chain.add(text, places)


class _Chain:
    """For each place the one before it that came behind the same run of tokens."""

    def __init__(self, run_len: int, capacity: int) -> None:
        self.run_len = run_len
        # Place 0 is nowhere.
        self._earlier: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        table_len = 1 << max((capacity // 2).bit_length() - 1, 0) if capacity else 0
        self._newest: npt.NDArray[np.int32] = np.zeros(table_len, np.int32)

    @property
    def num_bytes(self) -> int:
        return self._earlier.nbytes + self._newest.nbytes

    def add(self, text: Ids, places: Places) -> None:
        """Link the places of a text, but those at its beginning that have no run before them."""
        number = len(text) - self.run_len
        if number <= 0:
            return
        keys = np.zeros(number, np.uint64)
        for at in range(self.run_len):
            keys = _mixed(keys, text[at : at + number].astype(np.uint64))
        slots = (keys % np.uint64(len(self._newest))).astype(np.intp)
        places = places[self.run_len :]
        order = np.argsort(slots, kind="stable")
        slots, places = slots[order], places[order]
        is_first = np.append(True, slots[1:] != slots[:-1])
        earlier = np.where(is_first, self._newest[slots], np.append(0, places[:-1]))
        self._earlier[places % len(self._earlier)] = earlier
        is_last = np.append(is_first[1:], True)
        self._newest[slots[is_last]] = places[is_last]

    def places(self, ids: Ids, tail: Ids, oldest: int) -> Places:
        """Return the newest places in the ring behind the last tokens of ``tail``, ascending."""
        key = 0
        for token_id in tail[-self.run_len :].tolist():
            key = (key ^ token_id) * MULTIPLIER & MASK
            key ^= key >> SHIFT
        linked: list[int] = []
        place, capacity = int(self._newest[key % len(self._newest)]), len(ids)
        while place >= oldest and len(linked) < MAX_STEPS:
            linked.append(place)
            place = int(self._earlier[place % capacity])
        found = np.array(linked[::-1], np.intp)
        # Other runs may share the chain.
        before = ids.take(found[:, None] - np.arange(self.run_len, 0, -1), mode="wrap")
        return found[(before == tail[-self.run_len :]).all(1)][-MAX_PLACES:]


def _mixed(keys: npt.NDArray[np.uint64], ids: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return hashes of runs that are longer by one token."""
    keys = (keys ^ ids) * np.uint64(MULTIPLIER)
    return keys ^ (keys >> np.uint64(SHIFT))


def _common_len(left: Ids, right: Ids) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
