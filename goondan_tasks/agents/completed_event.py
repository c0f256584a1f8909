"""The event that tells an agent how a call of its has ended that was pending (002 §6.3, 003 §8.2)."""

from goondan_tasks.agents.events import AgentEvent, EventSource
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.names import EVENT_TOOL, OUTSIDE, call_identity

EVENT_TYPE = "toolCall.completed"


def completed_event(call: ToolCall, result: ToolCallResult) -> ToolCall:
    """Return the event for the instance in which the call was made, under its correlationId and auth."""
    call_id = result.meta.id
    event = AgentEvent(
        id=f"completed-{call_id}",
        type=EVENT_TYPE,
        created_at=result.meta.finished_at or "",
        trace_id=call.trace_id,
        input=_content(result),
        instance_key=call.instance_key,
        source=EventSource(kind="connector", name="goondan"),
        auth=call.auth,
    )
    turn_id = f"turn-{event.id}"
    identity = call_identity(call.agent_name, call.instance_key, turn_id, event.id)
    return ToolCall(
        tool_call_id=event.id,
        tool_name=EVENT_TOOL,
        agent_name=call.agent_name,
        instance_key=call.instance_key,
        turn_id=turn_id,
        args={"from": OUTSIDE, "fromInstanceKey": None, "payload": event.to_wire(), "awaited": False},
        trace_id=call.trace_id,
        span_id=identity.replace("-", "")[16:],
        correlation_id=call.correlation_id,
        auth=call.auth,
        origin=call.origin,
        call_chain=call.call_chain,
        waiting=0,
        parent_id=call_id,
        root_id=call.root_id or call_id,
        parent_span_id=call.span_id,
    )


def _content(result: ToolCallResult) -> JsonObject:
    content: JsonObject = {
        "toolCallId": result.tool_call_id,
        "toolName": result.tool_name,
        "id": result.meta.id,
        # a call that was held for an approval was known by its id
        "handle": result.handle or result.meta.id,
        "status": result.status,
    }
    if result.error is not None:
        return {**content, "error": result.error.to_wire()}
    return {**content, "output": result.output}
