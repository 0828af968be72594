"""Requests as OpenTelemetry's spans."""

from __future__ import annotations

import builtins
import logging
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from specengine import spans
from specengine.protocol import PhaseTimes, TokenCounts
from specengine.record import Record


def record() -> Record:
    ms = PhaseTimes(queue=1.0, prefill=20.0, draft=0.0, verify=200.0, total=230.0)
    tokens = TokenCounts(prompt=10, reused=7, prefilled=3, drafted=12, accepted=6, emitted=9)
    return Record(100.0, 1, "length", "suffix", ms, tokens, 5, {}, "def secret", "text")


def test_a_request_is_a_span_with_a_part_for_each_phase_that_took_time() -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    spans.exporter(provider, "tiny")(record())
    *parts, whole = memory.get_finished_spans()
    assert [part.name for part in parts] == ["queue", "prefill", "verify"]
    assert all(part.parent == whole.context for part in parts)
    assert whole.end_time == 100 * 10**9
    assert whole.start_time == 100 * 10**9 - 230 * 10**6
    assert parts[0].start_time == whole.start_time
    assert parts[1].end_time == parts[2].start_time
    assert whole.attributes is not None
    assert whole.attributes["gen_ai.usage.output_tokens"] == 9
    assert "secret" not in whole.to_json()


def test_without_a_collector_there_are_no_spans() -> None:
    assert spans.provider({}) is None


def test_without_the_extra_the_log_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with caplog.at_level(logging.WARNING):
        assert spans.provider({spans.ENDPOINT: "http://127.0.0.1:4318"}) is None
    assert "specengine[otel]" in caplog.text


def test_with_a_collector_there_is_a_provider() -> None:
    provider = spans.provider({spans.ENDPOINT: "http://127.0.0.1:4318"})
    assert provider is not None
    provider.shutdown()
