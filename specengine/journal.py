"""The last requests, and what they say together: percentiles by phase, acceptance by place.

It keeps no source text unless its owner asks for it, and forgets it when they no longer do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from specengine.decoding.session import Drafting
from specengine.protocol import PhaseTimes
from specengine.record import Record

MAX_REQUESTS: Final = 40
"""Requests that are shown."""

MAX_MEASURED: Final = 1000
"""Requests that percentiles are taken of."""

MAX_TEXT_CHARS: Final = 400
"""Of the text before the cursor, and of the completion, where texts are kept."""

PHASES: Final = PhaseTimes.__struct_fields__

MAX_PLACES: Final = 32


class Journal:
    """What has happened lately. One thread owns it."""

    def __init__(self) -> None:
        self._records: deque[tuple[int, Record]] = deque(maxlen=MAX_REQUESTS)
        self._times: deque[PhaseTimes] = deque(maxlen=MAX_MEASURED)
        self._drafters: dict[str, Drafting] = {}
        self._results: dict[str, int] = {}
        self._num_records = 0
        self._keeps_texts = False

    @property
    def keeps_texts(self) -> bool:
        """Whether texts of new requests are kept."""
        return self._keeps_texts

    def keep_texts(self) -> None:
        """Keep some text of each request from now on."""
        self._keeps_texts = True

    def forget_texts(self) -> None:
        """Keep no text any more, and forget what was kept."""
        self._keeps_texts = False
        bare = [(number, _without_texts(record)) for number, record in self._records]
        self._records = deque(bare, maxlen=MAX_REQUESTS)

    def add(self, record: Record) -> None:
        """Take in a request that has ended."""
        self._num_records += 1
        kept = _shortened(record) if self._keeps_texts else _without_texts(record)
        self._records.appendleft((self._num_records, kept))
        self._results[record.result] = self._results.get(record.result, 0) + 1
        if record.steps:
            self._times.append(record.ms)
        for name, told in record.by_drafter.items():
            if name:
                self._drafters.setdefault(name, Drafting()).add(told)

    def state(self) -> Mapping[str, object]:
        """Return everything as plain values."""
        return {
            "keeps_texts": self._keeps_texts,
            "results": dict(self._results),
            "requests": [_shown(number, record) for number, record in self._records],
            "percentiles": {phase: self._percentiles(phase) for phase in PHASES},
            "drafters": {name: _acceptance(told) for name, told in self._drafters.items()},
        }

    def _percentiles(self, phase: str) -> Mapping[str, float]:
        times = sorted(getattr(each, phase) for each in self._times)
        return {f"p{share}": percentile(times, share) for share in (50, 95, 99)}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed; 0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-len(ordered) * int(share) // 100) - 1)]


def _shown(number: int, record: Record) -> Mapping[str, object]:
    return {
        "number": number,
        "ended_at": record.ended_at,
        "client": record.client,
        "result": record.result,
        "drafter": record.drafter,
        "steps": record.steps,
        "ms": msgspec.structs.asdict(record.ms),
        "tokens": msgspec.structs.asdict(record.tokens),
        "prefix": record.prefix,
        "text": record.text,
    }


def _acceptance(told: Drafting) -> Mapping[str, object]:
    drafts = max(told.drafts, 1)
    return {
        "drafts": told.drafts,
        "drafted": told.drafted,
        "accepted": told.accepted,
        "by_place": [number / drafts for number in told.accepted_at[:MAX_PLACES]],
    }


def _without_texts(record: Record) -> Record:
    return replace(record, prefix="", text="")


def _shortened(record: Record) -> Record:
    return replace(
        record, prefix=record.prefix[-MAX_TEXT_CHARS:], text=record.text[:MAX_TEXT_CHARS]
    )
