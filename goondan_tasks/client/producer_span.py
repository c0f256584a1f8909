"""A span around the submission of calls, for producers that are in an OpenTelemetry span themselves."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from goondan_tasks.agents.handling import queue_of
from goondan_tasks.current_span import current_span, open_telemetry, span_ids
from goondan_tasks.new_call import Draft


def producer_span(drafts: Sequence[Draft]) -> AbstractContextManager[Sequence[Draft]]:
    """Open a span of kind PRODUCER and give back the calls as asked for by it.

    Calls of another trace stay as they are. Without a current span, or without a call of its trace, nothing
    happens.
    """
    here = current_span()
    if here is None or all(draft.call.trace_id != here.trace_id for draft in drafts):
        return nullcontext(drafts)
    return _open_span(drafts)


@contextmanager
def _open_span(drafts: Sequence[Draft]) -> Iterator[Sequence[Draft]]:
    api = open_telemetry()
    queues = sorted({queue_of(draft.call) for draft in drafts})
    with api.get_tracer("goondan").start_as_current_span(
        f"send {', '.join(queues)}", kind=api.SpanKind.PRODUCER, attributes=_attributes(drafts, queues)
    ) as span:
        yield [_asked_by(span, draft) for draft in drafts]


def _asked_by(span: Any, draft: Draft) -> Draft:
    ids = span_ids(span)
    if ids is None or draft.call.trace_id != ids.trace_id or draft.call.parent_span_id is not None:
        return draft
    return replace(draft, call=draft.call.model_copy(update={"parent_span_id": ids.span_id}))


def _attributes(drafts: Sequence[Draft], queues: Sequence[str]) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "celery",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.batch.message_count": len(drafts),
    }
    if len(queues) == 1:
        attributes["messaging.destination.name"] = queues[0]
    if len(drafts) == 1:
        attributes["messaging.message.id"] = attributes["goondan.call_id"] = drafts[0].id
        attributes["goondan.tool"] = drafts[0].call.tool_name
    return attributes
