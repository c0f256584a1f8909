"""Where an event goes: the rules of a Connection, in one pure function.

The rules are tried in order, and the first that matches counts; all parts of ``match`` must match. An event
that no rule matches goes to the Swarm's entry agent. The instance is the rule's ``instanceKey``, or its
``instanceKeyPrefix`` and the property that ``instanceKeyProperty`` names, or the event's own key. Source:
upstream's Connection of v0.0.3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from goondan_tasks.authoring.connector_api import ConnectorEvent, property_text
from goondan_tasks.bundle.connection_spec import IngressMatch, IngressRoute, IngressRule
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY


@dataclass(frozen=True, slots=True)
class Destination:
    """The agent and the instance that an event goes to."""

    agent: str
    instance_key: str
    #: the place of the rule among the Connection's, from 0; ``None`` if none has matched
    rule: int | None


def route(rules: Sequence[IngressRule], event: ConnectorEvent, entry_agent: str) -> Destination:
    """Return where an event goes.

    Raises:
        ConnectorError: the rule takes the key from a property that the event does not have, or the key is
            too long.
    """
    for number, rule in enumerate(rules):
        if matches(rule.match, event):
            agent = entry_agent if rule.route.agent_ref is None else rule.route.agent_ref.name
            return Destination(agent, _instance_key(rule.route, event, number), number)
    return Destination(entry_agent, event.instance_key, None)


def matches(match: IngressMatch, event: ConnectorEvent) -> bool:
    """Return whether a rule is for an event. ``true`` and ``"true"`` in YAML are the same property."""
    if match.event is not None and match.event != event.name:
        return False
    return all(
        event.properties.get(name) == property_text(wanted) for name, wanted in match.properties.items()
    )


def _instance_key(route: IngressRoute, event: ConnectorEvent, number: int) -> str:
    if route.instance_key is not None:
        return route.instance_key
    if route.instance_key_property is None:
        return event.instance_key
    value = event.properties.get(route.instance_key_property, "")
    if not value:
        raise ConnectorError(
            f"ingress.rules[{number}] takes the instance from the property {route.instance_key_property!r}, "
            f"which the event {event.name!r} does not have.",
            suggestion="Emit the property, or match only events that have it.",
        )
    key = f"{route.instance_key_prefix or ''}{value}"
    if len(key) > LONGEST_INSTANCE_KEY:
        raise ConnectorError(
            f"The instance key of ingress.rules[{number}] has {len(key)} characters, "
            f"more than {LONGEST_INSTANCE_KEY}.",
            suggestion="Take it from a shorter property.",
        )
    return key
