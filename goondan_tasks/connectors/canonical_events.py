"""Events of canonical Connectors (upstream's v0.8), as those of today.

Such an event says itself which Swarm, agent and instance it is for. What it leaves out is taken from the
first rule whose ``match`` is in what was received: its paths lead into the payload of the trigger, and into
its ``body`` if it was a request.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from broker_config import serializer
from goondan_tasks.authoring.connector_api import LONGEST_NAME, ConnectorEvent, TextMessage
from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.v1_connectors import PathRule
from goondan_tasks.connectors.handover import Emitted, unwrapped
from goondan_tasks.connectors.routing import Destination
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import JsonObject, WireModel
from goondan_tasks.contract.wording import hint, member


class CanonicalEvent(WireModel):
    """``{type, swarmRef, instanceKey, input, agentName?, origin?, auth?, metadata?}``; ``id`` is ours."""

    type: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)] = "message"
    swarm_ref: Any = None
    instance_key: str | None = None
    input: str | None = None
    agent_name: str | None = None
    origin: JsonObject = Field(default_factory=dict)
    auth: JsonObject | None = None
    metadata: JsonObject = Field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Members:
    """The agents of a Swarm."""

    entry_agent: str
    agents: frozenset[str]


@dataclass(frozen=True, slots=True)
class CanonicalEvents:
    """Reads the events of one Connection."""

    connection: str
    rules: Sequence[PathRule]
    #: by name
    swarms: Mapping[str, Members]

    def __call__(self, value: Any) -> Emitted:
        """Read what a connector has emitted.

        Raises:
            pydantic.ValidationError: it is not an event.
            ConnectorError: it leads to no agent.
        """
        emitted, payload, call_id = unwrapped(value)
        event = CanonicalEvent.from_wire(emitted)
        is_whole = None not in (event.swarm_ref, event.instance_key, event.input)
        number, rule = (None, None) if is_whole else self._rule(event, payload)
        key = event.instance_key or (rule and _text(payload, rule.route.instance_key_from))
        text = event.input if event.input is not None else rule and _text(payload, rule.route.input_from)
        destination = Destination(self._agent(event, rule), key or self.connection, number)
        return Emitted(
            ConnectorEvent(
                name=event.type,
                message=TextMessage(text=serializer.encode(payload).decode() if text is None else text),
                instance_key=destination.instance_key,
                id=event.id or call_id,
                auth=event.auth,
            ),
            destination=destination,
            origin=event.origin,
            metadata=event.metadata,
        )

    def _rule(self, event: CanonicalEvent, payload: Any) -> tuple[int | None, PathRule | None]:
        for number, rule in enumerate(self.rules):
            if all(_is_in(payload, event.type, name, wanted) for name, wanted in rule.match.items()):
                return number, rule
        if event.swarm_ref is not None:
            return None, None
        raise ConnectorError(
            "No rule of the Connector matches the event, and it names no Swarm.",
            suggestion="Emit it with swarmRef, instanceKey and input, or add a rule without 'match'.",
        )

    def _agent(self, event: CanonicalEvent, rule: PathRule | None) -> str:
        try:
            ref = parse_ref(event.swarm_ref) if event.swarm_ref is not None else None
        except FieldError as error:
            raise ConnectorError(f"swarmRef: {error.message}.", suggestion=error.suggestion) from error
        name = ref.name if ref is not None else rule.route.swarm_ref.name if rule is not None else ""
        swarm = self.swarms.get(name)
        if swarm is None:
            suggestion = hint(name, self.swarms, "Declare the Swarm.")
            raise ConnectorError(f"The bundle has no Swarm {name[:80]!r}.", suggestion=suggestion)
        of_rule = rule.route.agent_name if rule is not None and ref is None else None
        agent = event.agent_name or of_rule or swarm.entry_agent
        if agent not in swarm.agents:
            suggestion = hint(agent, sorted(swarm.agents), "Name one of its agents.")
            raise ConnectorError(
                f"{agent[:80]!r} is not an agent of the Swarm {name!r}.", suggestion=suggestion
            )
        return agent


def at_path(payload: Any, path: str) -> Any:
    """Return what a path such as ``$.event.ts`` leads to, or ``None``."""
    found = payload
    for step in path.split(".")[1:]:
        found = member(found, step)
    return found


def _roots(payload: Any) -> Iterator[Any]:
    """Yield where a path may begin: what was received, and its body."""
    yield payload
    yield member(payload, "body")


def _text(payload: Any, path: str | None) -> str | None:
    """Return what a path leads to as text."""
    found = next((one for root in _roots(payload) if path and (one := at_path(root, path)) is not None), None)
    return found if found is None or isinstance(found, str) else serializer.encode(found).decode()


def _is_in(payload: Any, event_type: str, name: str, wanted: Any) -> bool:
    """Return whether what was received has a value of a rule's ``match``: there, or in its ``event``."""
    field = "type" if name == "eventType" else name
    places = [place for root in _roots(payload) for place in (root, member(root, "event"))]
    values = [member(place, field) for place in places]
    return wanted in values or (name == "eventType" and wanted == event_type)
