"""The events that tell an agent what has become of its change (``emitRevisionChangedEvent``)."""

import uuid

from goondan_tasks.agents.events import AgentEvent
from goondan_tasks.agents.handling import SYSTEM, system_event
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.revisions.active import CHANGED, FAILED, RevisionChange, RevisionFailure


def revision_event(change: RevisionChange) -> ToolCall | None:
    """Return the event for the instance that committed the change; ``None`` if no agent did.

    It is the same whoever makes it: sent by every worker that changes its revision, it is one.
    """
    return _event(CHANGED, change, change.to_wire(), change.timestamp)


def failure_event(failure: RevisionFailure) -> ToolCall | None:
    """Return the event that tells the instance why its change is not active; ``None`` if no agent made it."""
    if failure.change is None:
        return None
    return _event(FAILED, failure.change, failure.to_wire(), failure.timestamp)


def _event(kind: str, change: RevisionChange, told: JsonObject, timestamp: str) -> ToolCall | None:
    if change.agent_name is None or change.instance_key is None:
        return None
    parts = (change.previous_ref, change.new_ref, change.timestamp, change.agent_name, change.instance_key)
    trace_id = uuid.uuid5(uuid.NAMESPACE_URL, f"goondan:{kind} {parts!r}").hex
    event = AgentEvent(
        id=f"revision-{trace_id}",
        type=kind,
        created_at=timestamp,
        trace_id=trace_id,
        input=told,
        instance_key=change.instance_key,
        source=SYSTEM,
    )
    return system_event(event, change.agent_name, correlation_id=trace_id)
