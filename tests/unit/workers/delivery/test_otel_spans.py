"""The spans of runs, taken where the SDK would send them."""

import asyncio
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.messages import ToolCallError
from goondan_tasks.contract.names import EVENT_TOOLS, MODEL_TOOLS, current_context
from goondan_tasks.ledger.record import Claim, Verdict
from workers.concurrency.event_loop import EventLoopThread
from workers.delivery.otel_spans import OtelSpans

TRACE, SPAN, PARENT = "a1" * 16, "b2" * 8, "c3" * 8


def a_claim(retries: int = 0, tool: str = "bash__exec", **fields: Any) -> Claim:
    call = new_call("coder", tool, {}, {"trace_id": TRACE, "span_id": SPAN, **fields})
    run = Run("call-1", call, "coder-7@host", 1 + retries, 1_000, lambda: 1_250.0, retries)
    return Claim(run, f"token-{retries}", Verdict.RUN)


class Spans:
    """Spans of one process, and what came of them."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = OtelSpans(self.provider)

    def carry_out(self, claim: Claim, error: ToolCallError | None = None) -> None:
        """Run a call that opens a span of its own on its way."""

        def run() -> None:
            with self.provider.get_tracer("tool").start_as_current_span("inside"):
                result = claim.run.ok(1, None) if error is None else claim.run.failed(error, None)
            self.spans.end(claim, result)

        self.spans.around(claim, run)

    def finished(self, kind: SpanKind = SpanKind.CONSUMER) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]


def ids(span: ReadableSpan) -> tuple[str, str, str | None]:
    """Return a span's trace, its own id and that of the span above it."""
    context, above = span.get_span_context(), span.parent
    assert context is not None
    return (
        f"{context.trace_id:032x}",
        f"{context.span_id:016x}",
        None if above is None else f"{above.span_id:016x}",
    )


def test_calls_own_run_span_says_what_ran() -> None:
    spans = Spans()

    spans.carry_out(a_claim(correlation_id="order-7", tool_call_id="toolu-1"))

    [span] = spans.finished()
    assert (span.name, ids(span)) == ("execute_tool bash__exec", (TRACE, SPAN, None))
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.agent.name": "coder",
        "gen_ai.conversation.id": "default",
        "gen_ai.tool.name": "bash__exec",
        "gen_ai.tool.call.id": "toolu-1",
        "gen_ai.tool.type": "function",
        "messaging.system": "celery",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "agent.coder",
        "messaging.message.id": "call-1",
        "messaging.message.conversation_id": "order-7",
        "goondan.agent": "coder",
        "goondan.instance": "default",
        "goondan.tool": "bash__exec",
        "goondan.call_id": "call-1",
        "goondan.attempt": 1,
        "goondan.worker": "coder-7@host",
        "goondan.waited_ms": 250,
        "goondan.status": "ok",
    }


@pytest.mark.parametrize("tool", sorted(EVENT_TOOLS))
def test_turn_invokes_its_agent(tool: str) -> None:
    spans = Spans()

    spans.carry_out(a_claim(tool=tool, instance_key="issue-42"))

    [span] = spans.finished()
    attributes = dict(span.attributes or {})
    assert span.name == "invoke_agent coder"
    assert {name: value for name, value in attributes.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "coder",
        "gen_ai.agent.id": "coder",
        "gen_ai.conversation.id": "issue-42",
    }


def test_request_to_model_is_chat() -> None:
    spans = Spans()

    spans.carry_out(a_claim(tool=f"{MODEL_TOOLS}large"))

    [span] = spans.finished()
    assert (span.name, (span.attributes or {})["gen_ai.operation.name"]) == ("chat large", "chat")
    assert "gen_ai.tool.name" not in (span.attributes or {})


def test_failed_run_is_error_with_its_code() -> None:
    spans = Spans()

    spans.carry_out(a_claim(), ToolCallError(code="E_ODD", name="Odd", message="odd"))

    [span] = spans.finished()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "E_ODD: odd")
    assert (span.attributes or {})["error.type"] == "E_ODD"


def test_run_span_lies_between_asker_and_handler() -> None:
    spans = Spans()

    spans.carry_out(a_claim(parent_span_id=PARENT))

    [run], [inside] = spans.finished(), spans.finished(SpanKind.INTERNAL)
    assert ids(run) == (TRACE, SPAN, PARENT)
    assert ids(inside)[::2] == (TRACE, SPAN)


def test_handler_context_has_senders_state_and_baggage() -> None:
    spans, seen = Spans(), list[Any]()
    sent = {"tracestate": "vendor=1", "baggage": "user=ann,plan=pro"}
    claim = a_claim(parent_span_id=PARENT, trace_context=sent)

    def run() -> None:
        seen.append(dict(baggage.get_all()))
        seen.append(current_context())

    spans.spans.around(claim, run)
    spans.spans.end(claim, claim.run.ok(1, None))

    [span] = spans.finished()
    context = span.get_span_context()
    assert context is not None
    assert context.trace_state.to_header() == "vendor=1"
    assert seen == [{"user": "ann", "plan": "pro"}, sent]
    assert dict(baggage.get_all()) == {}


def test_rerun_has_own_span_in_same_trace() -> None:
    spans = Spans()

    spans.carry_out(a_claim())
    spans.carry_out(a_claim(retries=1))

    first, second = (ids(span) for span in spans.finished())
    assert (first[0], first[2]) == (second[0], second[2]) == (TRACE, None)
    assert second[1] != first[1]


def test_ids_that_are_none_are_left_to_sdk() -> None:
    spans = Spans()

    spans.carry_out(a_claim(trace_id="my trace"))

    assert len(spans.finished()) == 1


@pytest.mark.parametrize("parent", [{}, {"parent_span_id": PARENT}], ids=len)
def test_trace_based_sampler_decides_for_whole_trace(parent: dict[str, Any]) -> None:
    spans = Spans(ParentBased(TraceIdRatioBased(0.5)))

    for trace_id in ("0" * 31 + "1", "f" * 32):
        spans.carry_out(a_claim(trace_id=trace_id, **parent))

    assert [ids(span)[0] for span in spans.finished()] == ["0" * 31 + "1"]


def test_only_handler_is_in_span_on_loop() -> None:
    spans, loop, claim = Spans(), EventLoopThread(), a_claim()
    loop.start()
    seen = []

    async def handle() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        seen.append(await asyncio.create_task(current()))
        ended.set_result(None)

    async def current() -> int:
        return trace.get_current_span().get_span_context().span_id

    def begin() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        loop.put_off(partial(loop.submit, handle()))

    ended: Future[None] = Future()
    spans.spans.around(claim, begin)
    loop.flush()
    ended.result(timeout=30)
    spans.spans.end(claim, claim.run.ok(1, None))
    elsewhere = loop.submit(current()).result(timeout=30)
    loop.stop()

    assert seen == [int(SPAN, 16)] * 3
    assert elsewhere == 0
