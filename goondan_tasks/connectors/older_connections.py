"""Connections of ``agents.example.io/v1alpha1``: what their connectors are called for, and with."""

from collections.abc import Callable
from typing import Any

from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.binding import BoundConnector
from goondan_tasks.bundle.connection_spec import ConnectionResource
from goondan_tasks.bundle.entries import entry_path
from goondan_tasks.bundle.fields import resolve_text
from goondan_tasks.bundle.resource import Resource
from goondan_tasks.bundle.v1_connectors import (
    ConnectorAuth,
    Trigger,
    V1ConnectionResource,
    V1ConnectionSpec,
    V1ConnectorResource,
    V1ConnectorSpec,
)
from goondan_tasks.connectors.canonical_events import CanonicalEvents, Members
from goondan_tasks.connectors.declared_events import DeclaredEvents
from goondan_tasks.connectors.handover import Emitted
from goondan_tasks.connectors.tokens import ConnectionTokens
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.oauth.manager import OAuthManager

#: in place of an entry: reads lines, and leaves all else to the Connector's rules
LINES_ENTRY = "lines_entry.py"
_SECRET_FIELDS = {"auth", "config", "secrets", "verify"}
_LINES_TRIGGER = {"type": "cli", "handler": "on_line"}


def bound_connector(bundle: Bundle, connection: ConnectionResource) -> BoundConnector:
    """Return the Connector of a Connection, also of one of :func:`own_connections`."""
    if connection.name in bundle.connections:
        return bundle.bound_connector(connection.name)
    resource = bundle.connectors[connection.spec.connector_ref.name]
    return BoundConnector(resource, entry_path(resource.spec.entry, bundle.root))


def older_spec(bundle: Bundle, connection: ConnectionResource) -> V1ConnectorSpec | None:
    """Return the spec of a Connection's Connector, ``None`` if its entry is run as today."""
    connector = bound_connector(bundle, connection).resource
    if not isinstance(connector, V1ConnectorResource):
        return None
    return connector.spec if connector.spec.triggers or connector.spec.is_canonical else None


def own_connections(bundle: Bundle) -> list[ConnectionResource]:
    """Return a Connection for each canonical Connector that has rules itself and that no Connection uses."""
    used = {one.spec.connector_ref.name for one in bundle.connections.values()}
    made: list[ConnectionResource] = []
    for connector in bundle.connectors.values():
        if not isinstance(connector, V1ConnectorResource) or connector.name in used:
            continue
        if connector.spec.is_canonical and connector.spec.ingress:
            document = {
                "apiVersion": connector.api_version,
                "kind": "Connection",
                "metadata": {"name": connector.name},
                "spec": {"connectorRef": f"Connector/{connector.name}"},
            }
            made.append(V1ConnectionResource.model_validate(document))
    return made


def is_called(spec: V1ConnectorSpec) -> bool:
    """Return whether anything calls a Connector: its triggers, or lines if its type is ``cli``."""
    return bool(spec.triggers) or (spec.type == "cli" and not spec.entry)


def has_lines(spec: V1ConnectorSpec) -> bool:
    """Return whether lines call a Connector."""
    return any(one.type == "cli" for one in spec.triggers) or not spec.triggers


def reader_of(
    bundle: Bundle, connection: ConnectionResource, spec: V1ConnectorSpec
) -> Callable[[Any], Emitted]:
    """Return what makes events of what an older connector emits."""
    if spec.is_canonical:
        own = connection.spec.rules if isinstance(connection.spec, V1ConnectionSpec) else ()
        members = {
            swarm.name: Members(swarm.spec.entry_agent.name, frozenset(ref.name for ref in swarm.spec.agents))
            for swarm in bundle.swarms.values()
        }
        return CanonicalEvents(connection.name, own or spec.ingress, members)
    auth = auth_of(connection, spec)
    app = bundle.oauth_apps[auth.oauth_app_ref.name] if auth and auth.oauth_app_ref else None
    return DeclaredEvents(connection.name, None if app is None else app.spec.subject_mode)


def auth_of(connection: ConnectionResource, spec: V1ConnectorSpec | None) -> ConnectorAuth | None:
    """Return whose tokens a Connection's connector gets."""
    own = connection.spec.auth if isinstance(connection.spec, V1ConnectionSpec) else None
    return own or (spec.auth if spec is not None else None)


def called_with(bundle: Bundle, connection: ConnectionResource, spec: V1ConnectorSpec) -> JsonObject:
    """Return what the start message says of an older Connector (:mod:`.triggers`).

    Tokens and secrets stand in place of their sources, and are masked in logs from now on.

    Raises:
        ConfigError: an environment variable that it needs has no value.
    """
    auth, webhook = auth_of(connection, spec), connection.spec.verify.webhook
    secret = None if webhook is None else _secret(webhook.signing_secret, "signingSecret")
    token = None if auth is None or auth.static_token is None else _secret(auth.static_token, "staticToken")
    connector = bound_connector(bundle, connection).resource
    verify = None if secret is None else {"webhook": {"signingSecret": secret}}
    document = _document(connection)
    if token is not None:
        document["spec"]["auth"] = {"staticToken": token}
    elif auth is not None and auth.oauth_app_ref is not None:
        document["spec"]["auth"] = {"oauthAppRef": auth.oauth_app_ref.to_wire()}
    if verify is not None:
        document["spec"]["verify"] = verify
    return {
        "canonical": spec.is_canonical,
        "triggers": [_declared(one) for one in spec.triggers] or [_LINES_TRIGGER],
        "connection": document,
        "connector": _document(connector),
        "oauth": auth is not None and auth.oauth_app_ref is not None,
        "verify": verify,
    }


def tokens_of(
    bundle: Bundle, connection: ConnectionResource, open_manager: Callable[[], OAuthManager]
) -> ConnectionTokens | None:
    """Return what answers a connector's requests for tokens; ``None`` if its Connection has no OAuthApp."""
    spec = older_spec(bundle, connection)
    auth = None if spec is None else auth_of(connection, spec)
    if auth is None or auth.oauth_app_ref is None:
        return None
    ref = connection.spec.swarm_ref
    swarm = bundle.swarm(None if ref is None else ref.name)
    names = (auth.oauth_app_ref.name, connection.name, swarm.name, swarm.spec.entry_agent.name)
    return ConnectionTokens(open_manager(), *names)


def _declared(trigger: Trigger) -> JsonObject:
    """Return a trigger; one that names only its function is called for requests to a path of that name."""
    declared = trigger.model_dump(by_alias=True, exclude_none=True)
    if trigger.requests is not None:
        declared |= {"type": "http", "endpoint": trigger.requests.model_dump()}
    return {"handler": None, **declared}


def _document(resource: Resource) -> JsonObject:
    """Return a resource without the fields that may hold secrets, or their sources."""
    document: JsonObject = resource.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude={"spec": _SECRET_FIELDS}
    )
    return document


def _secret(source: Any, name: str) -> str:
    text = resolve_text(source, name)
    KNOWN_SECRETS.add(text)
    return text
