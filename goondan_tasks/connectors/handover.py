"""Hands the events of a Connection to agents."""

import hashlib
from dataclasses import dataclass

from goondan_tasks.authoring.connector_api import Accepted, ConnectorEvent
from goondan_tasks.authoring.handoff import random_id
from goondan_tasks.bundle.resources import IngressRule
from goondan_tasks.client import Client
from goondan_tasks.connectors.routing import route
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    ConnectorError,
    PayloadTooLargeError,
    ToolCallConflictError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import AgentEvent, EventSource, JsonObject, iso_time, wall_clock


@dataclass(frozen=True, slots=True)
class Source:
    """A Connection: whence its events come, and where they may go."""

    connection: str
    connector: str
    rules: tuple[IngressRule, ...]
    entry_agent: str


def hand_over(client: Client, source: Source, event: ConnectorEvent) -> Accepted:
    """Send an event to its agent. It is stored when this returns, and begins a Turn of its own.

    An event with an id that is handed over again begins no second Turn, as long as its first call is kept
    (``GOONDAN_RESULT_TTL_SECONDS``), even if its content has changed since.

    Raises:
        ConnectorError: no rule leads anywhere, or the agent does not take the event.
    """
    destination = route(source.rules, event, source.entry_agent)
    agent_event = agent_event_of(source, event)
    try:
        sent = client.send(
            destination.agent,
            agent_event,
            instance_key=destination.instance_key,
            auth=event.auth,
            origin=origin_of(source, event),
        )
    except ToolCallConflictError as error:
        return Accepted(
            agent=destination.agent, instance_key=destination.instance_key, call_id=error.calls[0].id
        )
    except (AgentNotFoundError, PayloadTooLargeError, ToolInputValidationError) as error:
        raise ConnectorError(error.message, suggestion=error.suggestion) from error
    return Accepted(agent=sent.target, instance_key=destination.instance_key, call_id=sent.id)


def agent_event_of(source: Source, event: ConnectorEvent) -> AgentEvent:
    """Return what the agent gets."""
    return AgentEvent(
        id=_id(source, event),
        type=event.name,
        created_at=iso_time(wall_clock()),
        input=event.message.as_text(),
        source=EventSource(kind="connector", name=source.connection),
        metadata={
            "connection_name": source.connection,
            "connector_name": source.connector,
            "properties": event.properties,
        },
    )


def origin_of(source: Source, event: ConnectorEvent) -> JsonObject:
    """Return ``turn.origin``: the Connection's name, and the event's properties (002 §4.4)."""
    return {**event.properties, "connector": source.connection}


def _id(source: Source, event: ConnectorEvent) -> str:
    """Return the id of the agent's event: two Connections may have events with one id."""
    if event.id is None:
        return random_id(None)
    digest = hashlib.sha256(f"{source.connection}\0{event.id}".encode("utf-8", "surrogatepass"))
    return f"{source.connection[:60]}-{digest.hexdigest()[:40]}"
