"""``tool.called`` and ``tool.completed``, for those who listen."""

from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from workers.extensions.events import TOOL_CALLED, TOOL_COMPLETED, Events


def tell_called(events: Events, call: ToolCall) -> None:
    """Say that a call is about to pass the middlewares."""
    if events.has(call.agent_name, TOOL_CALLED):
        events.emit(call.agent_name, TOOL_CALLED, _about(call))


def tell_completed(events: Events, call: ToolCall, result: ToolCallResult) -> None:
    """Say what came of a call."""
    if not events.has(call.agent_name, TOOL_COMPLETED):
        return
    code = None if result.error is None else result.error.code
    ended = {"status": result.status, "code": code, "durationMs": result.meta.duration_ms}
    events.emit(call.agent_name, TOOL_COMPLETED, {**_about(call), **ended})


def _about(call: ToolCall) -> JsonObject:
    return {
        "agentName": call.agent_name,
        "instanceKey": call.instance_key,
        "turnId": call.turn_id,
        "stepId": call.step_id,
        "traceId": call.trace_id,
        "toolCallId": call.shown_id,
        "toolName": call.tool_name,
    }
