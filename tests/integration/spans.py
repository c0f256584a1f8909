"""OpenTelemetry's spans: those of a worker that writes them into its log, and those of this process."""

import json
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

PATIENCE = 60


def span_of(stack: LocalStack, call_id: str) -> dict[str, Any]:
    """Wait for the span of a call in the log of the worker."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        spans = spans_in(stack.log(stack.workers[0]))
        found[:] = [span for span in spans if span["attributes"].get("goondan.call_id") == call_id]
        return bool(found)

    wait_until(is_there, PATIENCE)
    [span] = found
    return span


def spans_in(log: str) -> list[dict[str, Any]]:
    spans, decoder = [], json.JSONDecoder()
    start = log.find('{\n    "name"')
    while start >= 0:
        try:
            span, end = decoder.raw_decode(log, start)
        except ValueError:  # the rest of it is still to be written
            break
        spans.append(span)
        start = log.find('{\n    "name"', end)
    return spans


def sent(exporter: InMemorySpanExporter) -> ReadableSpan:
    [span] = [span for span in exporter.get_finished_spans() if span.kind is trace.SpanKind.PRODUCER]
    return span
