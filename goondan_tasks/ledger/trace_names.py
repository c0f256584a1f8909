"""Under which names a call is to be found, beside its own: those of the traces that it belongs into."""

from goondan_tasks.events import is_event
from goondan_tasks.messages import ToolCall


def trace_names(call_id: str, call: ToolCall) -> list[str]:
    """Return the traceId and the correlationId of a call, each if it joins the call with others.

    What a run asks for is found by its traceId. A correlationId that is no traceId, and no call's id, is
    one that somebody has chosen. A tool call that stands alone has neither.
    """
    is_asked_for = call.parent_id is not None
    names = []
    if is_asked_for or is_event(call) or call.parent_span_id is not None or call.replay_of is not None:
        names.append(call.trace_id)
    if call.correlation_id not in {call.trace_id, call_id} and (not is_asked_for or is_event(call)):
        names.append(call.correlation_id)
    return names
