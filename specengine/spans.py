"""Each request as a span with its phases, for whoever collects OpenTelemetry.

Only where ``OTEL_EXPORTER_OTLP_ENDPOINT`` is set; it needs the extra ``otel``. No span holds text.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from specengine.record import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"

PHASES: Final = ("queue", "prefill", "draft", "verify")
"""In the order in which they begin; drafting and verifying take turns, and are shown as sums."""

NS_PER_MS: Final = 1_000_000


def provider(environment: Mapping[str, str] | None = None) -> TracerProvider | None:
    """Return what sends spans to the collector that the environment names, or None."""
    environment = os.environ if environment is None else environment
    if not environment.get(ENDPOINT):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("%s is set, but spans need more: pip install 'specengine[otel]'", ENDPOINT)
        return None
    provider = TracerProvider(resource=Resource.create({"service.name": "specengine"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def exporter(provider: TracerProvider, model: str) -> Callable[[Record], None]:
    """Return what makes spans of a record."""
    tracer = provider.get_tracer("specengine")
    from opentelemetry.trace import set_span_in_context

    def export(record: Record) -> None:
        end_ns = int(record.ended_at * 1000 * NS_PER_MS)
        start_ns = end_ns - int(record.ms.total * NS_PER_MS)
        span = tracer.start_span(
            "completion", start_time=start_ns, attributes=_facts(record, model)
        )
        at_ns = start_ns
        for phase in PHASES:
            took_ns = int(getattr(record.ms, phase) * NS_PER_MS)
            if took_ns:
                part = tracer.start_span(phase, set_span_in_context(span), start_time=at_ns)
                at_ns += took_ns
                part.end(at_ns)
        span.end(end_ns)

    return export


def _facts(record: Record, model: str) -> dict[str, str | int]:
    tokens = record.tokens
    return {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.emitted,
        "specengine.result": record.result,
        "specengine.drafter": record.drafter,
        "specengine.steps": record.steps,
        "specengine.tokens.reused": tokens.reused,
        "specengine.tokens.drafted": tokens.drafted,
        "specengine.tokens.accepted": tokens.accepted,
    }
