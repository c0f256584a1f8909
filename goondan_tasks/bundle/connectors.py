"""The rules for Connectors and Connections beyond the types of their fields."""

from collections.abc import Iterator, Mapping
from typing import Any

from goondan_tasks.authoring.connector_api import property_text
from goondan_tasks.bundle.binding import Scope, bind_connector, find_connector
from goondan_tasks.bundle.connection_spec import ConnectionResource, ConnectorResource
from goondan_tasks.bundle.entries import entry_path_findings
from goondan_tasks.bundle.findings import OLDER_FIELDS, ConfigCode, Finding, unknown_field
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.references import member_findings, members, ref_findings, ref_name
from goondan_tasks.bundle.replies import reply_findings
from goondan_tasks.bundle.resources import DEFAULT_SWARM
from goondan_tasks.bundle.v1_connectors import http_of, is_canonical
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import FieldPath, hint, member

#: the prefix of the paths of all Connections
ROOT = "/connections"

_EVENTS: FieldPath = ("spec", "events")
_TRIGGERS: FieldPath = ("spec", "triggers")
_RULES: FieldPath = ("spec", "ingress", "rules")
_CONNECTOR: FieldPath = ("spec", "connectorRef")


def connector_findings(connector: Declaration, scope: Scope) -> Iterator[Finding]:
    """Yield what is wrong with a Connector."""
    yield from entry_path_findings(connector, scope.own.root)
    names: set[str] = set()
    for path, name in connector.item_names(_EVENTS):
        if name in names:
            yield connector.error(path, f"duplicate event '{name[:80]}'", "Remove one of the two.")
        names.add(name)
    spec = connector.value(("spec",))
    if not connector.is_v1:
        for name in OLDER_FIELDS.keys() & spec.keys() if isinstance(spec, dict) else ():
            yield connector.finding(("spec", name), unknown_field(name, []), "warning")
    elif is_canonical(spec):
        yield from _canonical_findings(connector, scope)
    else:
        yield from _required(connector, "runtime", "entry")
        if not connector.value(_TRIGGERS):
            message = "without 'triggers' the entry is run as one of goondan.ai/v1"
            yield connector.warning(("spec",), message, "Add 'triggers', or migrate it: goondan migrate.")
        for path, trigger in connector.items(_TRIGGERS):
            if isinstance(trigger, dict) and trigger.get("type") is None:
                yield connector.error(path, "'type' is required", "Write http, cron, cli or custom.")
    if connector.is_v1:
        yield from _cli_findings(connector)
        yield from _request_findings(connector)


def _request_findings(connector: Declaration) -> Iterator[Finding]:
    """Warn of what no request calls, and of what happens in every process that answers requests."""
    triggers = [(path, one) for path, one in connector.items(_TRIGGERS) if isinstance(one, dict)]
    asked = [(path, _request_path(one)) for path, one in triggers if one.get("type") in ("http", None)]
    for path, own in asked[1:]:
        if own != asked[0][1]:
            message = f"no request calls it: the Connector answers those to {asked[0][1]} only"
            yield connector.warning(path, message, "Add another 'type', or declare a second Connector.")
    for path, one in triggers if asked else ():
        if one.get("type") == "custom":
            message = "this runs in every process that answers the requests"
            yield connector.warning(path, message, "Declare a second Connector for it.")


def _request_path(trigger: JsonObject) -> str:
    return str(member(trigger.get("endpoint"), "path") or f"/{trigger.get('handler')}")


def _cli_findings(connector: Declaration) -> Iterator[Finding]:
    several = [path for path, one in connector.items(_TRIGGERS) if member(one, "type") == "cli"][1:]
    for path in several:
        message = "a line calls only one of the triggers of this type"
        yield connector.warning(path, message, "Keep one trigger of 'type: cli'.")


def _required(declaration: Declaration, *names: str) -> Iterator[Finding]:
    for name in names:
        if not declaration.value(("spec", name)):
            yield declaration.error(("spec",), f"'{name}' is required", f"Add '{name}'.")


def _canonical_findings(connector: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from _required(connector, "type")
    yield from ref_findings(connector, ("spec", "auth", "oauthAppRef"), "OAuthApp", scope)
    yield from _path_rule_findings(connector, ("spec", "ingress"), scope)
    triggers = list(connector.items(_TRIGGERS))
    if triggers:
        yield from _required(connector, "runtime", "entry")
    elif connector.value(("spec", "type")) != "cli":
        message = "nothing calls it: it has no triggers, and only the type 'cli' needs none"
        yield connector.warning(("spec",), message, "Add runtime, entry and triggers.")
    for path, trigger in triggers:
        if isinstance(trigger, dict) and trigger.get("handler") is None:
            yield connector.error(path, "'handler' is required", "Name a function that the entry exports.")
    users = (ref_name(one, _CONNECTOR) for one in scope.own.of_kind("Connection"))
    if not connector.value(("spec", "ingress")) and connector.name not in users:
        message = "nothing runs it: it has no 'ingress', and no Connection uses it"
        yield connector.warning(("spec",), message, "Add rules, or a Connection.")


def connection_findings(connection: Declaration, scope: Scope) -> Iterator[Finding]:
    """Yield what is wrong with a Connection."""
    yield from ref_findings(connection, _CONNECTOR, "Connector", scope)
    yield from ref_findings(connection, ("spec", "swarmRef"), "Swarm", scope)
    yield from ref_findings(connection, ("spec", "auth", "oauthAppRef"), "OAuthApp", scope)
    connector = find_connector(connection, scope)
    is_by_path = connector is not None and connector.is_v1 and is_canonical(connector.value(("spec",)))
    if connector is not None:
        yield from _misplaced_rules(connection, connector, is_by_path=is_by_path)
    yield from _path_rule_findings(connection, ("spec", "rules"), scope)
    swarm = _swarm(ref_name(connection, ("spec", "swarmRef")), scope)
    declared = dict(_declared_events(connector)) if connector else {}
    rules = list(connection.items(_RULES))
    for path, _ in rules:
        yield from member_findings(connection, (*path, "route", "agentRef"), swarm, scope)
        yield from _event_findings(connection, path, declared)
    yield from _unreached(connection, _RULES)
    yield from _path_findings(connection, scope)
    if is_by_path:
        return  # its events say which agents they are for
    entry = None if swarm is None else _entry_agent(swarm)
    takes_all = any(not _conditions(member(rule, "match")) for _, rule in rules)
    routed = [ref_name(connection, (*path, "route", "agentRef")) or entry for path, _ in rules]
    reached = [*routed, *([] if takes_all else [entry])]
    yield from reply_findings(connection, filter(None, reached), scope)


def _misplaced_rules(
    connection: Declaration, connector: Declaration, *, is_by_path: bool
) -> Iterator[Finding]:
    path: FieldPath = _RULES if is_by_path else ("spec", "rules")
    if connection.is_v1 and connection.value(path):
        other = "spec.rules" if is_by_path else "spec.ingress.rules"
        message = f"these rules have no effect on events of {connector.label}"
        yield connection.warning(path, message, f"Write them as {other}.")


def _swarm(name: str | None, scope: Scope) -> Declaration | None:
    """Return the Swarm of that name; without a name, the only one counts."""
    swarms = scope.own.of_kind("Swarm")
    is_only = name is None and len(swarms) == 1
    return swarms[0] if is_only else scope.own.find("Swarm", DEFAULT_SWARM if name is None else name)


def _entry_agent(swarm: Declaration) -> str | None:
    return ref_name(swarm, ("spec", "entrypoint" if swarm.is_v1 else "entryAgent"))


def _declared_events(connector: Declaration) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the events that a Connector declares, each with its properties."""
    for path, name in connector.item_names(_EVENTS):
        properties = connector.value((*path[:-1], "properties"))
        yield name, frozenset(properties) if isinstance(properties, dict) else frozenset()


def _event_findings(
    connection: Declaration, rule: FieldPath, declared: Mapping[str, frozenset[str]]
) -> Iterator[Finding]:
    """Check that the Connector emits the event that a rule matches, with the properties that it names."""
    event = connection.value((*rule, "match", "event"))
    if isinstance(event, str) and declared and event not in declared:
        suggestion = hint(event, sorted(declared), "Add it to the Connector's spec.events.")
        message = f"the Connector declares no event '{event[:80]}'"
        yield connection.warning((*rule, "match", "event"), message, suggestion)
        return
    own = declared.get(event) if isinstance(event, str) else None
    known = frozenset().union(*declared.values()) if own is None else own
    if not known:  # the Connector does not say which properties there are
        return
    where = connection.value((*rule, "match", "properties"))
    named = (
        [((*rule, "match", "properties", name), name) for name in where if isinstance(where, dict)]
        if where
        else []
    )
    key = (*rule, "route", "instanceKeyProperty")
    for path, name in [*named, (key, connection.value(key))]:
        if isinstance(name, str) and name not in known:
            whose = f"the event '{event[:80]}'" if own is not None else "an event of the Connector"
            suggestion = hint(name, sorted(known), "Add it to the event's properties.")
            yield connection.warning(path, f"'{name[:80]}' is no property of {whose}", suggestion)


def _path_rule_findings(declaration: Declaration, rules: FieldPath, scope: Scope) -> Iterator[Finding]:
    """Check the Swarm and the agent of each rule with paths."""
    for path, _ in declaration.items(rules):
        ref: FieldPath = (*path, "route", "swarmRef")
        yield from ref_findings(declaration, ref, "Swarm", scope)
        swarm = scope.own.find("Swarm", ref_name(declaration, ref) or "")
        agent = declaration.value((*path, "route", "agentName"))
        if isinstance(agent, str) and swarm is not None and agent not in members(swarm):
            message = f"the agentName '{agent[:80]}' is not among the agents of {swarm.label}"
            suggestion = hint(agent, sorted(members(swarm)), "Name one of its agents.")
            place = (*path, "route", "agentName")
            yield declaration.error(place, message, suggestion, ConfigCode.REF_NOT_FOUND)
    yield from _unreached(declaration, rules)


def _unreached(declaration: Declaration, rules: FieldPath) -> Iterator[Finding]:
    """Yield the rules to which no event comes: an earlier one matches whatever they match."""
    earlier: list[tuple[FieldPath, frozenset[tuple[str, str]]]] = []
    for path, rule in declaration.items(rules):
        wanted = _conditions(member(rule, "match"))
        taker = next((where for where, conditions in earlier if conditions <= wanted), None)
        if taker is not None:
            line = declaration.document.line_of(taker)
            message = f"no event reaches this rule: the one in line {line} takes all that it matches"
            yield declaration.warning(path, message, "Move it up, or remove it.")
        earlier.append((path, wanted))


def _conditions(match: Any, prefix: str = "") -> frozenset[tuple[str, str]]:
    """Return all parts of a ``match``, with values as they are compared."""
    found: set[tuple[str, str]] = set()
    for name, value in match.items() if isinstance(match, dict) else ():
        if isinstance(value, dict):
            found |= _conditions(value, f"{prefix}{name}.")
        else:
            found.add((f"{prefix}{name}", str(property_text(value))))
    return frozenset(found)


def path_of(connection: ConnectionResource, connector: ConnectorResource) -> str | None:
    """Return the path of a Connection, ``None`` if its Connector does not answer requests."""
    declared = http_of(connector.spec)
    if declared is None:
        return None
    own = connection.spec.http
    path = declared.path if own is None else own.path
    return f"{ROOT}/{connection.name}" if path is None else f"{ROOT}{path}"


def _path_findings(connection: Declaration, scope: Scope) -> Iterator[Finding]:
    """Yield what is wrong with a Connection's path: it has no use, or an earlier Connection has the same."""
    pair = _resources(connection, scope)
    if pair is None:
        return
    path = path_of(*pair)
    if path is None and pair[0].spec.http is not None:
        message = f"{pair[1].kind}/{pair[1].name} answers no requests: it has no 'http'"
        suggestion = "Add 'http: {}' to the spec of the Connector, or remove this."
        yield connection.error(("spec", "http"), message, suggestion)
    for other in scope.own.of_kind("Connection"):
        if path is None or other is connection:
            return
        found = _resources(other, scope)
        if found is not None and path_of(*found) == path:
            message = f"{other.label} has the path {path} as well"
            suggestion = "Give one of the two a path of its own: spec.http.path."
            yield connection.error(("spec", "http"), message, suggestion)
            return


def _resources(connection: Declaration, scope: Scope) -> tuple[ConnectionResource, ConnectorResource] | None:
    """Return a Connection and its Connector; ``None`` if one has faults, which have findings of their own."""
    resource = connection.resource
    if not isinstance(resource, ConnectionResource):
        return None
    bound = bind_connector(connection, scope)
    return None if bound is None else (resource, bound.resource)
