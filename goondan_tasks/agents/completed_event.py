"""The event that tells an agent how a call of its has ended that was pending (002 §6.3, 003 §8.2)."""

from goondan_tasks.agents.events import AgentEvent
from goondan_tasks.agents.handling import SYSTEM, system_event
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult

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
        source=SYSTEM,
        auth=call.auth,
    )
    return system_event(
        event,
        call.agent_name,
        correlation_id=call.correlation_id,
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
