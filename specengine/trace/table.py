"""The summary of a trace as lines for a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from specengine.trace.summary import PERCENTS, Acceptance, Drift, Percentiles, Summary


def as_lines(summary: Summary) -> list[str]:
    """Return the report."""
    if not summary.num_requests:
        return ["The trace holds no requests yet.", *_unreadable(summary)]
    lines = [
        f"{summary.num_requests} requests in {summary.num_sessions} sessions, "
        f"{day(summary.first_s)} to {day(summary.last_s)}",
        ", ".join(f"{outcome} {num}" for outcome, num in summary.outcomes),
        *_unreadable(summary),
        "",
    ]
    lines += _percentile_rows("until text, ms", summary.totals)
    if summary.phases:
        lines += ["", *_percentile_rows("engine asked, ms by phase", summary.phases)]
    if summary.acceptance:
        lines += ["", *_acceptance_rows(summary.acceptance)]
    return [*lines, "", *_drift_rows(summary.drift)]


def day(seconds: float) -> str:
    """Return a date and time of this place."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def drift_text(drift: Drift) -> str:
    """Return how a figure has changed."""
    if drift.change is None:
        return "-"
    return f"{drift.change:+.0%}"


def figure(value: float | None, unit: str) -> str:
    """Return a figure with its unit; a dash where there is none."""
    if value is None:
        return "-"
    number = f"{value:.0f}" if unit or value == int(value) else f"{value:.2f}"
    return f"{number} {unit}".rstrip()


def _unreadable(summary: Summary) -> list[str]:
    num = summary.num_unreadable
    return [f"{num} lines could not be read and are left out"] if num else []


def _percentile_rows(title: str, rows: Sequence[Percentiles]) -> Iterator[str]:
    yield f"{title:28}{'number':>8}" + "".join(f"{f'p{percent}':>9}" for percent in PERCENTS)
    for row in rows:
        yield f"{row.name:28}{row.num:8}" + "".join(f"{value:9.1f}" for value in row.values)


def _acceptance_rows(rows: Sequence[Acceptance]) -> Iterator[str]:
    form = "{:16}{:24}{:>8}{:>10}{:>8}{:>7}{:>7}"
    yield form.format("language", "drafter", "shown", "accepted", "partly", "rate", "kept")
    for row in rows:
        kept = "-" if row.kept_share is None else f"{row.kept_share:.0%}"
        yield form.format(
            row.language or "-",
            row.drafter or "-",
            row.shown,
            row.accepted,
            row.partly,
            f"{row.rate:.0%}",
            kept,
        )


def _drift_rows(rows: Sequence[Drift]) -> Iterator[str]:
    if all(row.before in (None, 0) for row in rows):
        yield "drift: there are no requests of the week before to compare with"
        return
    yield f"{'drift':28}{'week before':>14}{'last week':>14}{'change':>9}"
    for row in rows:
        before, now = figure(row.before, row.unit), figure(row.now, row.unit)
        yield f"{row.name:28}{before:>14}{now:>14}{drift_text(row):>9}"
