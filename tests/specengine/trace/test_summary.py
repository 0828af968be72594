"""Facts about the figures of a trace."""

from __future__ import annotations

import pytest

from specengine.trace.summary import WEEK_S, Drift, acceptance_of, drift_of, percentiles, summarise
from tests.specengine.trace.traces import event, request, trace


def test_percentile_is_the_least_time_that_so_many_do_not_exceed():
    found = percentiles("x", [float(number) for number in range(100, 0, -1)])
    assert (found.num, found.values) == (100, (50.0, 90.0, 95.0, 99.0))
    assert percentiles("x", [7.0]).values == (7.0,) * 4
    assert percentiles("x", []).values == (0.0,) * 4


def test_phases_are_those_of_requests_that_the_engine_answered():
    cached = request(2, total=1.0, outcome="cached", steps=0)
    empty = request(3, total=900.0, outcome="empty")
    summary = summarise(trace(request(1, total=20.0), cached, empty))
    by_name = {row.name: row for row in summary.phases}
    assert (by_name["prefill"].num, by_name["prefill"].values[0]) == (1, 10.0)
    assert [(row.name, row.num) for row in summary.totals] == [("shown", 1), ("cached", 1)]
    assert summary.num_requests == 3


def test_work_that_nobody_waited_for_is_no_answer():
    ahead = request(2, trigger="ahead", outcome="cached")
    summary = summarise(trace(request(1), ahead))
    assert [(row.name, row.num) for row in summary.totals] == [("shown", 1)]
    assert ("cached (ahead)", 1) in summary.outcomes


def test_acceptance_is_told_by_language_and_drafter():
    events = [
        event(1, "shown"),
        event(1, "accepted", 10),
        event(1, "kept", 5, 10),
        event(2, "shown"),
        event(2, "partly_accepted", 3),
        event(2, "partly_accepted", 2),
        event(2, "kept", 5, 5),
        event(3, "shown"),
        event(4, "shown"),
    ]
    (found,) = acceptance_of(events, [request(number) for number in (1, 2, 3, 4)])
    assert (found.language, found.drafter) == ("python", "suffix")
    assert (found.shown, found.accepted, found.partly) == (4, 1, 1)
    assert (found.rate, found.accepted_chars) == (0.5, 15)
    assert found.kept_share == pytest.approx(10 / 15)


def test_suggestion_accepted_in_pieces_to_its_end_is_accepted_once():
    events = [event(1, "shown"), event(1, "partly_accepted", 3), event(1, "accepted", 7)]
    (found,) = acceptance_of(events, [])
    assert (found.accepted, found.partly, found.rate) == (1, 0, 1.0)
    assert found.kept_share is None


def test_request_without_a_drafter_has_that_of_the_event():
    (found,) = acceptance_of([event(1, "shown")], [request(1, drafter="")])
    assert found.drafter == "auto"


def test_drift_sets_the_last_week_beside_the_one_before():
    now = 10 * WEEK_S
    before = [request(1, now - WEEK_S - 5, total=10.0), event(1, "shown", time=now - WEEK_S - 5)]
    after = [
        request(2, now, total=15.0),
        event(2, "shown", time=now),
        event(2, "accepted", 10, time=now),
    ]
    older = request(3, now - 2 * WEEK_S - 1, total=500.0)
    drift = {row.name: row for row in drift_of(trace(*before, *after, older))}
    assert drift["median until text"] == Drift("median until text", "ms", 10.0, 15.0)
    assert drift["median until text"].change == 0.5
    assert (drift["acceptance"].before, drift["acceptance"].now) == (0.0, 100.0)
    assert drift["acceptance"].change is None
    assert drift["tokens a pass"].now == 3.0


def test_empty_trace_has_no_figures():
    summary = summarise(trace())
    assert (summary.num_requests, summary.phases, summary.acceptance) == (0, [], [])
    assert all(row.change is None for row in summary.drift)
