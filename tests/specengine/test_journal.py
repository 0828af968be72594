"""The last requests and what they say together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specengine.decoding.session import Drafting
from specengine.journal import MAX_REQUESTS, MAX_TEXT_CHARS, Journal, percentile
from specengine.protocol import PhaseTimes, TokenCounts
from specengine.record import Record


def record(total_ms: float = 5.0, result: str = "length", prefix: str = "secret") -> Record:
    ms = PhaseTimes(queue=1.0, prefill=1.0, draft=0.5, verify=2.0, total=total_ms)
    drafting = {"suffix": Drafting(drafts=4, drafted=12, accepted=6, accepted_at=[3, 2, 1])}
    return Record(
        100.0, 1, result, "suffix", ms, TokenCounts(emitted=3), 2, drafting, prefix, "text"
    )


def state(journal: Journal) -> Any:
    return journal.state()


def test_texts_are_not_kept_unless_that_is_wanted() -> None:
    journal = Journal()
    journal.add(record())
    assert "secret" not in json.dumps(journal.state())
    journal.keep_texts()
    journal.add(record(prefix="x" * 10_000 + "end"))
    (shown, before) = state(journal)["requests"]
    assert shown["prefix"].endswith("xend")
    assert len(shown["prefix"]) == MAX_TEXT_CHARS
    assert before["prefix"] == ""


def test_texts_are_forgotten_when_they_are_no_longer_wanted() -> None:
    journal = Journal()
    journal.keep_texts()
    journal.add(record())
    journal.forget_texts()
    assert not journal.keeps_texts
    assert "secret" not in json.dumps(journal.state())
    assert "secret" not in repr(vars(journal))


def test_the_newest_come_first_and_old_ones_go() -> None:
    journal = Journal()
    for _ in range(MAX_REQUESTS + 5):
        journal.add(record())
    numbers = [each["number"] for each in state(journal)["requests"]]
    assert numbers[0] == MAX_REQUESTS + 5
    assert len(numbers) == MAX_REQUESTS
    assert state(journal)["results"] == {"length": MAX_REQUESTS + 5}


def test_acceptance_by_place_is_a_share_of_drafts() -> None:
    journal = Journal()
    journal.add(record())
    journal.add(record())
    drafter = state(journal)["drafters"]["suffix"]
    assert drafter["by_place"] == [0.75, 0.5, 0.25]
    assert (drafter["drafts"], drafter["drafted"], drafter["accepted"]) == (8, 24, 12)


def test_percentiles_are_of_requests_that_wrote_something() -> None:
    journal = Journal()
    for number in range(1, 101):
        journal.add(record(total_ms=float(number)))
    journal.add(Record(1.0, 1, "engine_busy", "", PhaseTimes(total=9e9), TokenCounts()))
    total = state(journal)["percentiles"]["total"]
    assert total == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 50, 0.0), ([3.0], 99, 3.0), ([1.0, 2.0], 50, 1.0), ([1.0, 2.0, 3.0], 95, 3.0)],
)
def test_a_percentile_is_one_of_the_values(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == expected
