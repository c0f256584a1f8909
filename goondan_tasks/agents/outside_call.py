"""What somebody outside hands to an agent: a request, or an event that nobody answers."""

from typing import Any, TypedDict

from broker_config.settings import Settings
from goondan_tasks.agents.events import AgentEvent
from goondan_tasks.agents.handling import DEFAULT_INSTANCE
from goondan_tasks.agents.handoff import Asker, Handoff, handoff_call, random_id, require_timeout
from goondan_tasks.clocks import wall_clock
from goondan_tasks.current_span import current_span
from goondan_tasks.keywords import require_keywords
from goondan_tasks.messages import LONGEST_RUN_SECONDS, JsonObject, ToolCall
from goondan_tasks.names import OUTSIDE


class EventFields(TypedDict, total=False):
    """What a request or an event from outside may say beyond agent and input."""

    instance_key: str | None
    event_type: str | None
    event_id: str | None
    metadata: JsonObject | None
    auth: JsonObject | None
    origin: JsonObject | None
    correlation_id: str | None


def outside_call(
    settings: Settings,
    agent: str,
    input: Any,
    fields: EventFields,
    *,
    is_request: bool,
    timeout: float | None = None,
) -> ToolCall:
    """Return the call that asks an agent, or tells it something, from outside.

    Raises:
        ToolInputValidationError: a field is wrong.
        TypeError: a field that events do not have.
    """
    require_keywords("request()" if is_request else "send()", fields, EventFields.__annotations__)
    event = input.to_wire() if isinstance(input, AgentEvent) else {"input": input}
    here = None if event.get("traceId") else current_span()
    asker = Asker(
        name=OUTSIDE,
        instance_key=fields.get("instance_key") or DEFAULT_INSTANCE,
        new_id=random_id,
        auth=fields.get("auth"),
        origin=fields.get("origin"),
        trace_id=None if here is None else here.trace_id,
    )
    correlation_id = fields.get("correlation_id")
    given = {
        "id": fields.get("event_id"),
        "type": fields.get("event_type"),
        "metadata": fields.get("metadata"),
        "instanceKey": fields.get("instance_key"),
        "replyTo": {"target": OUTSIDE, "correlationId": correlation_id} if correlation_id else None,
    }
    event |= {name: value for name, value in given.items() if value is not None}
    handoff = Handoff(
        agent,
        event,
        is_request=is_request,
        is_awaited=is_request,
        timeout_ms=None
        if timeout is None
        else require_timeout("timeout", timeout, LONGEST_RUN_SECONDS) * 1000,
    )
    return handoff_call(asker, handoff, most_hops=settings.max_handoff_depth, now_ms=wall_clock())
