"""Sums a trace up: percentiles by phase, acceptance, and the drift against the week before.

All figures are folds over the lines of the trace; nothing is estimated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from specengine.trace.reading import PHASES, Event, Request, Trace

WEEK_S: Final = 7 * 24 * 3600.0
PERCENTS: Final = (50, 90, 95, 99)


@dataclass(frozen=True)
class Percentiles:
    """Of some times, in milliseconds; one for each of ``PERCENTS``."""

    name: str
    num: int
    values: tuple[float, ...]


@dataclass(frozen=True)
class Acceptance:
    """What became of the suggestions of one language and drafter."""

    language: str
    drafter: str
    shown: int
    accepted: int
    """Wholly."""
    partly: int
    """Only in part."""
    accepted_chars: int
    kept_share: float | None
    """Of the characters that were accepted, those that were there some time later."""

    @property
    def rate(self) -> float:
        """The share of suggestions of which anything was accepted."""
        return (self.accepted + self.partly) / self.shown if self.shown else 0.0


@dataclass(frozen=True)
class Drift:
    """A figure of the last week, and of the week before; None where there is nothing to count."""

    name: str
    unit: str
    before: float | None
    now: float | None

    @property
    def change(self) -> float | None:
        """As a part of the figure before."""
        if self.before is None or self.now is None or self.before == 0:
            return None
        return (self.now - self.before) / self.before


@dataclass(frozen=True)
class Summary:
    """All that a report shows, but for single requests."""

    num_requests: int
    num_sessions: int
    first_s: float
    last_s: float
    outcomes: list[tuple[str, int]]
    totals: list[Percentiles]
    """Key to text as the server sees it, by outcome."""
    phases: list[Percentiles]
    """Of the requests that the engine answered with text."""
    acceptance: list[Acceptance]
    drift: list[Drift]
    num_unreadable: int


def summarise(trace: Trace) -> Summary:
    """Return the figures of a trace."""
    requests = trace.requests
    with_text = [request for request in requests if request.has_text]
    asked = [request for request in with_text if request.steps]
    times = [request.time for request in requests]
    outcomes = Counter(
        f"{r.outcome} ({r.trigger})" if not r.has_text else r.outcome for r in requests
    )
    totals = [
        percentiles(outcome, [r.total_ms for r in with_text if r.outcome == outcome])
        for outcome in sorted({request.outcome for request in with_text}, reverse=True)
    ]
    phases = [percentiles(name, [r.ms.get(name, 0.0) for r in asked]) for name in PHASES]
    phases.append(percentiles("total", [request.total_ms for request in asked]))
    return Summary(
        len(requests),
        len({request.session for request in requests}),
        min(times, default=0.0),
        max(times, default=0.0),
        outcomes.most_common(),
        totals,
        phases if asked else [],
        acceptance_of(trace.events, requests),
        drift_of(trace),
        trace.num_unreadable,
    )


def percentiles(name: str, values: Iterable[float]) -> Percentiles:
    """Return the percentiles of times: the least one that so many percent do not exceed."""
    ordered = sorted(values)
    picked = tuple(
        ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else 0.0
        for percent in PERCENTS
    )
    return Percentiles(name, len(ordered), picked)


def acceptance_of(events: Sequence[Event], requests: Iterable[Request]) -> list[Acceptance]:
    """Return what became of suggestions, by language and drafter, the most shown first."""
    drafters = {(r.session, r.request): r.drafter for r in requests if r.drafter}
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        drafter = drafters.get((event.session, event.request), event.drafter)
        groups.setdefault((event.language, drafter), []).append(event)
    found = [_acceptance(*key, group) for key, group in groups.items()]
    return sorted(found, key=lambda one: (-one.shown, one.language, one.drafter))


def _acceptance(language: str, drafter: str, events: Iterable[Event]) -> Acceptance:
    shown: set[tuple[str, int]] = set()
    whole: set[tuple[str, int]] = set()
    partly: set[tuple[str, int]] = set()
    num_accepted = num_compared = num_kept = 0
    for event in events:
        key = (event.session, event.request)
        match event.event:
            case "shown":
                shown.add(key)
            case "accepted" | "partly_accepted":
                (whole if event.event == "accepted" else partly).add(key)
                num_accepted += event.num
            case "kept":
                num_compared += event.chars
                num_kept += event.num
            case _:
                pass
    return Acceptance(
        language,
        drafter,
        len(shown | whole | partly),
        len(whole),
        len(partly - whole),
        num_accepted,
        num_kept / num_compared if num_compared else None,
    )


def drift_of(trace: Trace) -> list[Drift]:
    """Return the figures of the week that ends with the trace, beside those of the week before."""
    last_s = max((request.time for request in trace.requests), default=0.0)
    figures = [
        _figures(trace, last_s - (2 - n) * WEEK_S, last_s - (1 - n) * WEEK_S) for n in (0, 1)
    ]
    return [
        Drift(name, unit, before, now)
        for (name, unit, before), (_, _, now) in zip(*figures, strict=True)
    ]


def _figures(trace: Trace, after_s: float, until_s: float) -> list[tuple[str, str, float | None]]:
    requests = [r for r in trace.requests if after_s < r.time <= until_s]
    events = [event for event in trace.events if after_s < event.time <= until_s]
    with_text = [request.total_ms for request in requests if request.has_text]
    median, *_, high = percentiles("", with_text).values[:3]
    groups = acceptance_of(events, requests)
    num_shown = sum(group.shown for group in groups)
    num_taken = sum(group.accepted + group.partly for group in groups)
    steps = sum(request.steps for request in requests)
    emitted = sum(request.tokens.get("emitted", 0) for request in requests)
    return [
        ("requests with text", "", float(len(with_text))),
        ("median until text", "ms", median if with_text else None),
        ("95 % until text", "ms", high if with_text else None),
        ("acceptance", "%", 100 * num_taken / num_shown if num_shown else None),
        ("tokens a pass", "", emitted / steps if steps else None),
    ]
