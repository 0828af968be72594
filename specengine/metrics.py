"""Counters and histograms in Prometheus' text format, under vLLM's names where it has them.

A fold over records: each request adds to them once, when it has ended. What is a state (how many
requests run, what is off) is read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from specengine.engine import Status
from specengine.journal import MAX_PLACES, PHASES
from specengine.protocol import EngineState
from specengine.record import Record
from specengine.watch import Watch

BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Seconds: dense where a person notices the difference."""

OTHER: Final = "other"
"""Label of drafters beyond the first ones: no request may fill the memory with names."""

MAX_DRAFTERS: Final = 16


class Metrics:
    """What one engine counts."""

    def __init__(self, status: Callable[[], Status], watch: Watch) -> None:
        """``status`` and ``watch`` tell what is read at the moment of asking."""
        # They would double the number of lines, to tell when each counter was made.
        disable_created_metrics()
        self._registry = registry = CollectorRegistry()
        self._names: set[str] = set()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"specengine:{name}", text, labels, registry=registry)

        self._drafts = counter("spec_decode_num_drafts", "Drafts verified.", "drafter")
        self._drafted = counter(
            "spec_decode_num_draft_tokens", "Tokens in these drafts.", "drafter"
        )
        self._accepted = counter(
            "spec_decode_num_accepted_tokens", "Drafted tokens accepted.", "drafter"
        )
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Drafted tokens accepted, by place in the draft.",
            *("drafter", "position"),
        )
        self._requests = counter("requests", "Requests that have ended, by how.", "result")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens, by origin.", "source")
        self._written = counter(
            "generation_tokens", "Tokens written, those that step back before a cursor too."
        )
        self._passes = counter("steps", "Forward passes after reading prompts.")
        self._seconds = Histogram(
            "specengine:phase_seconds",
            "Time by phase of requests that wrote something.",
            ["phase"],
            buckets=BUCKETS,
            registry=registry,
        )
        registry.register(_States(status, watch))
        ProcessCollector(registry=registry)

    def add(self, record: Record) -> None:
        """Count a request that has ended."""
        self._requests.labels(record.result).inc()
        self._prompt_tokens.labels("reused").inc(record.tokens.reused)
        self._prompt_tokens.labels("prefilled").inc(record.tokens.prefilled)
        self._written.inc(record.tokens.emitted)
        self._passes.inc(record.steps)
        for phase in PHASES if record.steps else ():
            self._seconds.labels(phase).observe(getattr(record.ms, phase) / 1000)
        for name, told in record.by_drafter.items():
            if not name:
                continue
            label = self._label(name)
            self._drafts.labels(label).inc(told.drafts)
            self._drafted.labels(label).inc(told.drafted)
            self._accepted.labels(label).inc(told.accepted)
            for at, number in enumerate(told.accepted_at[:MAX_PLACES]):
                self._accepted_at.labels(label, str(at)).inc(number)

    def render(self) -> tuple[bytes, str]:
        """Return all of it and its content type.

        Every scraper reads this format; in others the library may write underscores for colons.
        """
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def _label(self, name: str) -> str:
        if name in self._names or len(self._names) < MAX_DRAFTERS:
            self._names.add(name)
            return name
        return OTHER


class _States(Collector):
    """What is the case at the moment."""

    def __init__(self, status: Callable[[], Status], watch: Watch) -> None:
        self._status = status
        self._watch = watch

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield each state as a gauge."""
        status = self._status()
        yield _gauge("num_requests_running", "Requests that run.", status.active)
        yield _gauge("num_requests_waiting", "Requests that wait.", status.waiting)
        is_ready = status.state is EngineState.READY
        ready = _labelled("ready", "Whether the model answers.", "model", "drafter")
        ready.add_metric([status.model, status.drafter], float(is_ready))
        yield ready
        off = _labelled("switched_off", "What is off, and why.", "kind", "name", "reason")
        for each in self._watch.switched_off:
            off.add_metric([each.kind, each.name, each.reason], 1.0)
        yield off
        recent = _labelled("spec_decode_acceptance_recent", "Share accepted of late.", "drafter")
        long_run = _labelled("spec_decode_acceptance_long_run", "And in the long run.", "drafter")
        drift = _labelled("spec_decode_acceptance_drift", "1 if it has dropped.", "drafter")
        alarms = self._watch.alarms
        for name, (rate_recent, rate_long) in self._watch.acceptance.items():
            recent.add_metric([name], rate_recent)
            long_run.add_metric([name], rate_long)
            drift.add_metric([name], float(name in alarms))
        yield from (recent, long_run, drift)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"specengine:{name}", text, value)


def _labelled(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"specengine:{name}", text, labels=labels)
