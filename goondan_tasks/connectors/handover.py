"""Hands the events of a Connection to agents."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.authoring.connector_api import Accepted, ConnectorEvent
from goondan_tasks.authoring.handoff import random_id
from goondan_tasks.bundle.connection_spec import IngressRule
from goondan_tasks.client import Client
from goondan_tasks.connectors.routing import Destination, route
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    ConnectorError,
    PayloadTooLargeError,
    ToolCallConflictError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import AgentEvent, EventSource, JsonObject, iso_time, wall_clock


@dataclass(frozen=True, slots=True)
class Emitted:
    """An event, and what only events of older versions say."""

    event: ConnectorEvent
    #: where it goes; ``None``: as the rules say
    destination: Destination | None = None
    #: what the agent reads instead of the message's text
    content: Any = None
    origin: JsonObject = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


def emitted_today(value: Any) -> Emitted:
    """Read what a connector of the current version has emitted.

    Raises:
        pydantic.ValidationError: it is not an event.
    """
    return Emitted(ConnectorEvent.from_wire(value))


def unwrapped(value: Any) -> tuple[Any, Any, str | None]:
    """Return an event of an older version, what its trigger has received, and the id of the event's call.

    Programs that call entries wrap it as ``{event, payload, id}``; people write the event alone.
    """
    if isinstance(value, Mapping) and "event" in value:
        return value["event"], value.get("payload"), value.get("id")
    return value, None, None


@dataclass(frozen=True, slots=True)
class Source:
    """A Connection: whence its events come, and where they may go."""

    connection: str
    connector: str
    rules: tuple[IngressRule, ...]
    entry_agent: str
    #: no event is handed over while so many wait for its agent
    max_waiting: int = 1_000
    #: makes an event of what the connector emits
    read: Callable[[Any], Emitted] = emitted_today

    def destination(self, emitted: Emitted) -> Destination:
        """Return where an event goes.

        Raises:
            ConnectorError: no rule leads anywhere.
        """
        return emitted.destination or route(self.rules, emitted.event, self.entry_agent)


def hand_over(
    client: Client, source: Source, emitted: Emitted, require_room: Callable[[Destination], object]
) -> Accepted:
    """Send an event to its agent. It is stored when this returns, and begins a Turn of its own.

    An event with an id that is handed over again begins no second Turn, as long as its first call is kept
    (``GOONDAN_RESULT_TTL_SECONDS``), even if its content has changed since. ``require_room`` waits until the
    destination has room for an event, or raises.

    Raises:
        ConnectorError: no rule leads anywhere, or the agent does not take the event.
    """
    destination, event = source.destination(emitted), emitted.event
    require_room(destination)
    agent_event = agent_event_of(source, emitted)
    try:
        sent = client.send(
            destination.agent,
            agent_event,
            instance_key=destination.instance_key,
            auth=event.auth,
            origin=origin_of(source, emitted),
        )
    except ToolCallConflictError as error:
        return Accepted(
            agent=destination.agent, instance_key=destination.instance_key, call_id=error.calls[0].id
        )
    except (AgentNotFoundError, PayloadTooLargeError, ToolInputValidationError) as error:
        raise ConnectorError(error.message, suggestion=error.suggestion) from error
    return Accepted(agent=sent.target, instance_key=destination.instance_key, call_id=sent.id)


def agent_event_of(source: Source, emitted: Emitted) -> AgentEvent:
    """Return what the agent gets."""
    event = emitted.event
    return AgentEvent(
        id=_id(source, event),
        type=event.name,
        created_at=iso_time(wall_clock()),
        input=event.message.as_text() if emitted.content is None else emitted.content,
        source=EventSource(kind="connector", name=source.connection),
        metadata={
            **emitted.metadata,
            "connection_name": source.connection,
            "connector_name": source.connector,
            "properties": event.properties,
        },
    )


def origin_of(source: Source, emitted: Emitted) -> JsonObject:
    """Return ``turn.origin``: the Connection's name, and the event's properties (002 §4.4)."""
    return {**emitted.event.properties, **emitted.origin, "connector": source.connection}


def _id(source: Source, event: ConnectorEvent) -> str:
    """Return the id of the agent's event: two Connections may have events with one id."""
    if event.id is None:
        return random_id(None)
    digest = hashlib.sha256(f"{source.connection}\0{event.id}".encode("utf-8", "surrogatepass"))
    return f"{source.connection[:60]}-{digest.hexdigest()[:40]}"
