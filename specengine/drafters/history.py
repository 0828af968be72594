"""What the engine has seen, to be drafted from again: prompts, completions, other files.

Texts lie in *segments* of one array in the order in which they came. All segments but the newest
are sorted by the last three tokens before each place, so that a search takes microseconds; the
newest is searched from end to end. When there is no room the oldest segment goes. Nothing of it is
ever written or logged.

Source: the idea is Oliaro et al. 2024, arXiv 2411.04975; sorted segments take the place of a tree,
whose nodes would need ten times the memory here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from specengine.drafters.texts import GAP, MAX_MATCH, MAX_PLACES, Ids, Places, narrowed

KEY_LEN: Final = 3
"""Tokens of a sort key."""

LEAST_LEN: Final = 2
"""Shorter matches in other texts say too little."""

TOKEN_BITS: Final = 21
"""Three of them fit a key of 63 bits; no vocabulary has two million tokens."""

SEGMENT_TOKENS: Final = 65_536

BYTES_PER_TOKEN: Final = 4 + 8 + 4
"""The token, its key, its place."""

MAX_BYTES: Final = 16 * 2**20
"""A million tokens."""

NUM_RECENT: Final = 8
"""Texts that a new one is compared with, as most requests repeat the one before."""

NOWHERE: Final[Places] = np.empty(0, np.intp)


class History:
    """Texts of all requests, bounded in bytes; less than two segments are not worth a search."""

    def __init__(self, max_bytes: int = MAX_BYTES, segment_tokens: int = SEGMENT_TOKENS) -> None:
        self.max_bytes: Final = max_bytes
        self._segment_tokens = segment_tokens
        self._max_segments = max_bytes // (segment_tokens * BYTES_PER_TOKEN)
        self._recent: deque[Ids] = deque(maxlen=NUM_RECENT)
        self._ids: Ids = np.full(0, GAP, np.int32)
        """Segment after segment, each with ``MAX_MATCH`` gaps in front; grows to its limit."""
        self._sorted: deque[_Segment] = deque()
        """Oldest first."""
        self._start = self._end = 0
        """Of the newest segment, which is not sorted yet."""
        if self.is_on:
            self._open(0)

    @property
    def is_on(self) -> bool:
        """Whether it has room for anything."""
        return self._max_segments >= 2

    @property
    def ids(self) -> Ids:
        """Return the array that places of ``find`` lie in."""
        return self._ids

    @property
    def num_bytes(self) -> int:
        """Return what it takes, apart from the few texts that are compared."""
        return self._ids.nbytes + sum(segment.num_bytes for segment in self._sorted)

    @property
    def num_tokens(self) -> int:
        """Return how many tokens lie in it."""
        num_sorted = sum(segment.end - segment.start for segment in self._sorted)
        return num_sorted + self._end - self._start

    def learn(self, token_ids: Sequence[int] | Ids) -> None:
        """Remember a text: what of it no recent one begins with.

        Of a text that is longer than half a segment the end.
        """
        if not self.is_on:
            return
        text = np.array(token_ids, np.int32)[-(self._segment_tokens // 2 - MAX_MATCH) :]
        num_known = max((_common_len(text, recent) for recent in self._recent), default=0)
        if num_known < len(text):
            self._recent.append(text)
            self._add(text[max(0, num_known - MAX_MATCH) :])

    def find(self, tail: Ids) -> Places:
        """Return the most recent places behind the longest ends of ``tail`` that are there.

        A longer match is preferred where there are more than ``MAX_PLACES`` of them.
        """
        if not self.is_on or tail[-LEAST_LEN] == GAP:
            return NOWHERE
        newest = self._in_newest(tail)
        for known_len in range(KEY_LEN, LEAST_LEN - 1, -1):
            if tail[-known_len] == GAP:
                continue
            bounds = _key_bounds(tail, known_len)
            found = [each for one in self._sorted if len(each := one.places(bounds))]
            if found or len(newest):
                places = np.concatenate([*found, newest])
                return narrowed(self._ids, places, tail, LEAST_LEN)
        return NOWHERE

    def _in_newest(self, tail: Ids) -> Places:
        ids = self._ids[self._start + MAX_MATCH : self._end]
        if not len(ids):
            return NOWHERE
        places = np.flatnonzero(ids[:-1] == tail[-1]) + (self._start + MAX_MATCH + 1)
        is_match = self._ids[places - LEAST_LEN] == tail[-LEAST_LEN]
        return places[is_match & (self._ids[places] != GAP)]

    def _add(self, text: Ids) -> None:
        end = self._end + len(text) + 1
        if end - self._start > self._segment_tokens:
            self._seal()
            end = self._end + len(text) + 1
        self._ids[self._end : end - 1] = text
        self._end = end  # behind the text stays a gap

    def _seal(self) -> None:
        """Sort the newest segment and open another one, in place of the oldest if need be."""
        self._sorted.append(_Segment(self._ids, self._start, self._end))
        if len(self._sorted) < self._max_segments:
            self._open(len(self._sorted) * self._segment_tokens)
        else:
            self._open(self._sorted.popleft().start)

    def _open(self, start: int) -> None:
        end = start + self._segment_tokens
        if end > len(self._ids):
            grown = np.full(end, GAP, np.int32)
            grown[: len(self._ids)] = self._ids
            self._ids = grown
        self._ids[start:end] = GAP
        self._start, self._end = start, start + MAX_MATCH


class _Segment:
    """The places of a part of the array, sorted by the tokens before each."""

    def __init__(self, ids: Ids, start: int, end: int) -> None:
        self.start, self.end = start, end
        places = np.arange(start + MAX_MATCH + LEAST_LEN, end)
        places = places[(ids[places - LEAST_LEN] != GAP) & (ids[places - 1] != GAP)]
        places = places[ids[places] != GAP]
        keys = np.zeros(len(places), np.int64)
        for depth in range(1, KEY_LEN + 1):
            # In front of a text stands a gap; whoever compares finds out that it is no match.
            keys = (keys << TOKEN_BITS) | np.maximum(ids[places - depth], 0)
        order = np.argsort(keys, kind="stable")
        self._keys: npt.NDArray[np.int64] = keys[order]
        self._places = places[order].astype(np.int32)

    @property
    def num_bytes(self) -> int:
        return self._keys.nbytes + self._places.nbytes

    def places(self, bounds: npt.NDArray[np.int64]) -> Places:
        """Return the places whose keys lie in a range; the most recent ones, if there are many."""
        low, high = self._keys.searchsorted(bounds)
        found = self._places[low:high]
        return np.sort(found)[-4 * MAX_PLACES :] if len(found) > MAX_PLACES else found


def _key_bounds(tail: Ids, known_len: int) -> npt.NDArray[np.int64]:
    key = 0
    for depth in range(1, known_len + 1):
        key = (key << TOKEN_BITS) | int(tail[-depth])
    free_bits = TOKEN_BITS * (KEY_LEN - known_len)
    return np.array([key << free_bits, (key + 1) << free_bits])


def _common_len(left: Ids, right: Ids) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
