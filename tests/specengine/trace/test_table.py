"""Facts about the report in a terminal."""

from __future__ import annotations

from specengine.trace.reading import Event, Request
from specengine.trace.summary import WEEK_S, summarise
from specengine.trace.table import as_lines, figure
from tests.specengine.trace.traces import event, request, trace


def report(*lines: Request | Event) -> str:
    return "\n".join(as_lines(summarise(trace(*lines))))


def test_report_has_phases_acceptance_and_drift():
    now = 10 * WEEK_S
    text = report(
        request(1, now - WEEK_S - 5, total=10.0),
        request(2, now, total=20.0),
        event(2, "shown", time=now),
        event(2, "accepted", 10, time=now),
    )
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "prefill 2 5.0 10.0 10.0 10.0" in rows
    assert "python suffix 1 1 0 100% -" in rows
    assert "median until text 10 ms 20 ms +100%" in rows


def test_first_week_says_that_there_is_nothing_to_compare_with():
    assert "no requests of the week before" in report(request(1))


def test_empty_trace_says_so():
    assert report() == "The trace holds no requests yet."


def test_unreadable_lines_are_told():
    found = trace(request(1))
    found.num_unreadable = 3
    assert "3 lines could not be read" in "\n".join(as_lines(summarise(found)))


def test_figures_are_short():
    assert [figure(None, "ms"), figure(12.4, "ms"), figure(3.0, ""), figure(2.345, "")] == [
        "-", "12 ms", "3", "2.35",
    ]  # fmt: skip
