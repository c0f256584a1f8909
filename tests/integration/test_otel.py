"""Spans of two processes that make one trace: a producer in a span of its own, and a worker that exports."""

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.spans import sent, span_of, spans_in

PATIENCE = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a worker that writes its spans into its log."""
    environment = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with LocalStack(CALLS_BUNDLE, environment=environment) as running:
        yield running


def hex_id(number: int, digits: int) -> str:
    return f"0x{number:0{digits}x}"


@pytest.fixture
def client(stack: LocalStack) -> Client:
    return stack.client


@pytest.mark.parametrize("tool", ["echo__args", "wait__seconds"])
def test_workers_span_stands_below_producers(
    stack: LocalStack, client: Client, producer_spans: InMemorySpanExporter, tool: str
) -> None:
    producer_spans.clear()
    with trace.get_tracer("brain").start_as_current_span("think") as brain:
        pending = client.submit("smith", tool, {"seconds": 0.1})
    result = pending.result(PATIENCE)

    span, above = span_of(stack, pending.id), sent(producer_spans)

    ids, above_ids = brain.get_span_context(), above.get_span_context()
    assert above.parent is not None
    assert above_ids is not None
    assert (above.name, above.parent.span_id) == ("send agent.smith", ids.span_id)
    assert span["name"] == f"execute_tool {tool}"
    assert span["kind"] == "SpanKind.CONSUMER"
    assert span["context"]["trace_id"] == hex_id(ids.trace_id, 32)
    assert span["parent_id"] == hex_id(above_ids.span_id, 16)
    assert span["context"]["span_id"] == f"0x{result.meta.span_id}"
    assert result.meta.trace_id == f"{ids.trace_id:032x}"
    assert span["resource"]["attributes"]["service.name"] == "goondan-worker"


def test_calls_of_one_producers_span_are_one_trace(
    client: Client, producer_spans: InMemorySpanExporter
) -> None:
    producer_spans.clear()
    call = {"agentName": "smith", "toolName": "echo__args"}
    with trace.get_tracer("brain").start_as_current_span("think") as brain:
        pending = client.submit_many([call, {**call, "traceId": "a1" * 16}, call])
    for one in pending:
        one.result(PATIENCE)

    nodes = client.trace(f"{brain.get_span_context().trace_id:032x}").nodes

    assert sorted(node.id for node in nodes) == sorted([pending[0].id, pending[2].id])
    assert (sent(producer_spans).attributes or {})["messaging.batch.message_count"] == 3
    assert client.record(pending[1].id).call.parent_span_id is None


def test_call_without_producers_span_has_one_at_top(stack: LocalStack, client: Client) -> None:
    result = client.call("smith", "no__such", timeout=PATIENCE)

    span = span_of(stack, result.meta.id)

    assert span["parent_id"] is None
    assert span["context"]["trace_id"] == f"0x{result.meta.trace_id}"
    assert span["status"]["status_code"] == "ERROR"
    assert span["attributes"]["error.type"] == "E_TOOL_NOT_IN_CATALOG"


def test_spans_that_wait_are_sent_when_worker_stops() -> None:
    environment = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "60000"}
    with LocalStack(CALLS_BUNDLE, environment=environment) as running:
        result = running.client.call("smith", "echo__args", timeout=PATIENCE)
        [worker] = running.workers
        running.stop_worker(worker)

        [span] = spans_in(running.log(worker))

    assert span["attributes"]["goondan.call_id"] == result.meta.id
