"""The report as one page that asks nobody for anything: figures, histograms, any request's phases.

Figures and histograms are plain HTML; a script, part of the page, draws the request that is chosen.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Final

from specengine.errors import ConfigError
from specengine.trace.reading import PHASES, Request, Trace
from specengine.trace.summary import PERCENTS, Percentiles, Summary, summarise
from specengine.trace.table import day, drift_text, figure

MAX_LISTED: Final = 2000
"""So many requests, the latest ones, can be chosen."""

BINS_PER_TENFOLD: Final = 6
LEAST_MS: Final = 0.1
"""Times below it share a bar."""

_BAR, _HEIGHT = 26, 90
_FIELDS: Final = ("language", "trigger", "scope", "outcome", "exit", "model", "drafter")


def render(trace: Trace) -> str:
    """Return the text of the page."""
    page = files("specengine.trace").joinpath("page.html").read_text(encoding="utf-8")
    summary = summarise(trace)
    # In this order: what the requests hold cannot be taken for the other mark.
    page = page.replace("/* requests */ []", _as_json(trace.requests[-MAX_LISTED:]))
    return page.replace("<!-- report -->", _report(summary, trace))


def write_page(trace: Trace, file: Path) -> None:
    """Write the page to a file.

    Raises:  ConfigError when that cannot be done.
    """
    try:
        file.write_text(render(trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.") from error


def _report(summary: Summary, trace: Trace) -> str:
    if not summary.num_requests:
        return "<p>The trace holds no requests yet.</p>"
    with_text = [request for request in trace.requests if request.has_text]
    asked = [request for request in with_text if request.steps]
    parts = [
        f"<p>{summary.num_requests} requests in {summary.num_sessions} sessions, "
        f"{day(summary.first_s)} to {day(summary.last_s)}.</p>",
        _table("Outcomes", ("outcome", "requests"), summary.outcomes),
        _percentile_table("Until text, ms", summary.totals),
        _percentile_table("Engine asked, ms by phase", summary.phases),
        _table(
            "Acceptance",
            ("language", "drafter", "shown", "accepted", "partly", "rate", "kept"),
            [
                (
                    one.language or "-",
                    one.drafter or "-",
                    one.shown,
                    one.accepted,
                    one.partly,
                    f"{one.rate:.0%}",
                    "-" if one.kept_share is None else f"{one.kept_share:.0%}",
                )
                for one in summary.acceptance
            ],
        ),
        _table(
            "Drift",
            ("figure", "week before", "last week", "change"),
            [
                (d.name, figure(d.before, d.unit), figure(d.now, d.unit), drift_text(d))
                for d in summary.drift
            ],
        ),
        '<section class="wide"><h2>Times</h2><div class="charts">',
        histogram("until text", [request.total_ms for request in with_text]),
        *(histogram(name, [r.ms.get(name, 0.0) for r in asked]) for name in PHASES),
        "</div></section>",
    ]
    return "\n".join(parts)


def histogram(name: str, values: Sequence[float]) -> str:
    """Return a picture of how many times fall into each step of a logarithmic scale."""
    values = [value for value in values if value > 0]
    if not values:
        return ""
    bins = [_bin(value) for value in values]
    first, last = min(bins), max(bins)
    counts = [bins.count(number) for number in range(first, last + 1)]
    width, most = _BAR * len(counts), max(counts)
    bars: list[str] = []
    for place, count in enumerate(counts):
        low, high = _edge(first + place), _edge(first + place + 1)
        height = _HEIGHT * count / most
        title = f"{_ms(low)} to {_ms(high)} ms: {count}"
        bars.append(
            f'<rect x="{place * _BAR + 1}" y="{_HEIGHT - height:.1f}" width="{_BAR - 2}" '
            f'height="{height:.1f}"><title>{title}</title></rect>'
        )
        if place % 3 == 0:
            bars.append(f'<text x="{place * _BAR}" y="{_HEIGHT + 14}">{_ms(low)}</text>')
    label = f"{escape(name)}: {len(values)} requests"
    return (
        f'<figure><figcaption>{label}</figcaption><svg viewBox="0 0 {width} {_HEIGHT + 18}" '
        f'width="{width}" height="{_HEIGHT + 18}" role="img" aria-label="{label}">'
        + "".join(bars)
        + "</svg></figure>"
    )


def _bin(value: float) -> int:
    return math.floor(math.log10(max(value, LEAST_MS)) * BINS_PER_TENFOLD)


def _edge(number: int) -> float:
    return 10 ** (number / BINS_PER_TENFOLD)


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _percentile_table(title: str, rows: Iterable[Percentiles]) -> str:
    head = ("", "number", *(f"p{percent}" for percent in PERCENTS))
    return _table(title, head, [(r.name, r.num, *(f"{v:.1f}" for v in r.values)) for r in rows])


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    if not rows:
        return ""
    columns = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return (
        f"<section><h2>{escape(title)}</h2><table><thead><tr>{columns}</tr></thead>"
        f"<tbody>{body}</tbody></table></section>"
    )


def _as_json(requests: Iterable[Request]) -> str:
    """Return what the script draws; no text in it can end the script."""
    listed = [
        {
            "id": request.request,
            "when": day(request.time),
            "version": request.document_version,
            "facts": {name: getattr(request, name) for name in _FIELDS},
            "ms": {name: request.ms.get(name, 0.0) for name in (*PHASES, "total")},
            "tokens": request.tokens,
            "steps": request.steps,
        }
        for request in requests
    ]
    return json.dumps(listed, allow_nan=False).replace("<", "\\u003c")
