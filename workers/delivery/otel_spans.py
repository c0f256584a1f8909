"""The spans of runs, made with the OpenTelemetry SDK; imported only where they are wanted.

The span of a run has the ``spanId`` of the call and its ``parentSpanId`` as parent. So the spans of a chain
connect wherever its calls run, ``meta.spanId`` of a result leads to the span, and spans that the handler
opens are its children.
"""

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points

import structlog
from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
)

from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.events import queue_of
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.contract.names import EVENT_TOOLS, MODEL_TOOLS, SpanIds
from goondan_tasks.ledger.record import Claim

logger = structlog.get_logger(__name__)

DEFAULT_SERVICE_NAME = "goondan-worker"

_EXPORTERS = "opentelemetry_traces_exporter"
_METRIC_EXPORTERS = "opentelemetry_metrics_exporter"


class CallIds(IdGenerator):
    """Gives the span of a call the ids of the call, and other spans those of the previous generator."""

    def __init__(self, others: IdGenerator) -> None:
        self._others = others
        self._given = threading.local()

    @contextmanager
    def giving(self, trace_id: str, span_id: str | None) -> Iterator[None]:
        """Give these ids, in hex, to a span that this thread starts inside the block."""
        self._given.ids = int(trace_id, 16), span_id and int(span_id, 16)
        try:
            yield
        finally:
            del self._given.ids

    def generate_trace_id(self) -> int:
        """Return the call's traceId."""
        trace_id, _ = getattr(self._given, "ids", (None, None))
        return trace_id or self._others.generate_trace_id()

    def generate_span_id(self) -> int:
        """Return the call's spanId."""
        _, span_id = getattr(self._given, "ids", (None, None))
        return span_id or self._others.generate_span_id()


class OtelSpans:
    """Opens and ends the spans of runs with one tracer."""

    def __init__(self, provider: TracerProvider) -> None:
        tracer = provider.get_tracer("goondan")
        assert isinstance(tracer, Tracer)  # noqa: S101 - what the SDK's provider makes
        self._tracer = tracer
        self._ids = tracer.id_generator = CallIds(tracer.id_generator)
        self._open: dict[str, Span] = {}

    def around(self, claim: Claim, run: Callable[[], None]) -> None:
        """Open the span of a run that begins now, and call ``run`` inside of it.

        What ``run`` begins on other threads and on the event loop is inside, too, as it copies the context.
        """
        span = self._open[claim.token] = self._start(claim.run)
        context = contextvars.copy_context()
        around = _with_baggage(claim.run.call, otel_context.get_current())
        context.run(otel_context.attach, trace.set_span_in_context(span, around))
        context.run(run)

    def end(self, claim: Claim, result: ToolCallResult) -> None:
        """End the span of a run with its result."""
        span = self._open.pop(claim.token, None)
        if span is None:
            return
        span.set_attribute("goondan.status", result.status)
        if result.error is not None:
            span.set_attribute("error.type", result.error.code)
            span.set_status(StatusCode.ERROR, f"{result.error.code}: {result.error.message}")
        span.end()

    def _start(self, run: Run) -> Span:
        call, name = run.call, _name_of(run.call)
        # a retried call has used its id for the span of the first run
        own, parent = SpanIds(call.trace_id, call.span_id), SpanIds(call.trace_id, call.parent_span_id or "")
        if not own.are_valid:
            return self._tracer.start_span(name, otel_context.Context(), SpanKind.CONSUMER, _attributes(run))
        above = otel_context.Context()
        if parent.are_valid:
            above = self._context_of(parent, name, (call.trace_context or {}).get("tracestate", ""))
        with self._ids.giving(own.trace_id, None if run.retries else own.span_id):
            return self._tracer.start_span(name, above, SpanKind.CONSUMER, _attributes(run))

    def _context_of(self, parent: SpanIds, name: str, state: str) -> otel_context.Context:
        """Return the context below a span elsewhere, sampled if this process samples that trace."""
        trace_id = int(parent.trace_id, 16)
        decision = self._tracer.sampler.should_sample(None, trace_id, name).decision
        is_sampled = decision is Decision.RECORD_AND_SAMPLE
        flags = TraceFlags(TraceFlags.SAMPLED if is_sampled else TraceFlags.DEFAULT)
        trace_state = TraceState.from_header([state])
        remote = SpanContext(trace_id, int(parent.span_id, 16), True, flags, trace_state)
        return trace.set_span_in_context(NonRecordingSpan(remote), otel_context.Context())


def _with_baggage(call: ToolCall, context: otel_context.Context) -> otel_context.Context:
    if call.trace_context is None:
        return context
    return W3CBaggagePropagator().extract(call.trace_context, context)


def tracer_provider(exporters: Sequence[str]) -> TracerProvider | None:
    """Return the program's own provider, or one for ``exporters``, which are names of entry points.

    The SDK reads everything else, such as sampler and limits, from its own variables.
    """
    current = trace.get_tracer_provider()
    if isinstance(current, TracerProvider):
        return current
    found = _installed(exporters, _EXPORTERS, "spans.off")
    if not found:
        return None
    provider = TracerProvider(resource=_resource())
    for entry in found:
        provider.add_span_processor(BatchSpanProcessor(entry.load()()))
    trace.set_tracer_provider(provider)
    return provider


def set_up_metrics(exporters: Sequence[str]) -> None:
    """Export metrics with ``exporters``, names of entry points, unless the program exports its own.

    The SDK reads everything else, such as the interval, from its own variables.
    """
    if not exporters or isinstance(metrics.get_meter_provider(), MeterProvider):
        return
    found = _installed(exporters, _METRIC_EXPORTERS, "metrics.off")
    if found:
        readers = [PeriodicExportingMetricReader(entry.load()()) for entry in found]
        metrics.set_meter_provider(MeterProvider(readers, resource=_resource()))


def _installed(exporters: Sequence[str], group: str, event: str) -> list[EntryPoint]:
    found = [entry for name in exporters for entry in entry_points(group=group, name=name)]
    if len(found) < len(exporters):
        logger.warning(event, reason=f"no such exporter is installed: {', '.join(exporters)}")
    return found


def _resource() -> Resource:
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: DEFAULT_SERVICE_NAME}))
    return resource


def _name_of(call: ToolCall) -> str:
    """Return the name of a span as the conventions for generative AI have it."""
    if call.tool_name in EVENT_TOOLS:
        return f"invoke_agent {call.agent_name}"
    if call.tool_name.startswith(MODEL_TOOLS):
        return f"chat {call.tool_name.removeprefix(MODEL_TOOLS)}"
    return f"execute_tool {call.tool_name}"


def _gen_ai(call: ToolCall) -> dict[str, str | int]:
    """Return the attributes of the conventions for generative AI; a request to a model adds its own.

    Source: https://github.com/open-telemetry/semantic-conventions-genai, gen-ai-agent-spans.
    """
    operation = _name_of(call).partition(" ")[0]
    found: dict[str, str | int] = {
        "gen_ai.operation.name": operation,
        "gen_ai.agent.name": call.agent_name,
        "gen_ai.conversation.id": call.instance_key,
    }
    if operation == "invoke_agent":
        return {**found, "gen_ai.agent.id": call.agent_name}
    if operation == "execute_tool":
        names = {"gen_ai.tool.name": call.tool_name, "gen_ai.tool.call.id": call.tool_call_id}
        return {**found, **names, "gen_ai.tool.type": "function"}
    return found


def _attributes(run: Run) -> dict[str, str | int]:
    call = run.call
    return {
        **_gen_ai(call),
        "messaging.system": "celery",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": queue_of(call),
        "messaging.message.id": run.id,
        "messaging.message.conversation_id": call.correlation_id,
        "goondan.agent": call.agent_name,
        "goondan.instance": call.instance_key,
        "goondan.tool": call.tool_name,
        "goondan.call_id": run.id,
        "goondan.attempt": run.attempt,
        "goondan.worker": run.worker,
        "goondan.waited_ms": round(max(0.0, run.clock() - run.queued_at)),
    }
