"""The Connections of a bundle, ready to run."""

from collections.abc import Sequence
from pathlib import Path

from goondan_tasks.authoring.webhooks import SIGNING_SECRET
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.bundle.binding import base_package_root
from goondan_tasks.bundle.connection_spec import ConnectionResource
from goondan_tasks.bundle.fields import resolve_text
from goondan_tasks.bundle.v1_connectors import http_of
from goondan_tasks.connectors.handover import Source, emitted_today
from goondan_tasks.connectors.older_connections import (
    LINES_ENTRY,
    bound_connector,
    called_with,
    has_lines,
    is_called,
    older_spec,
    own_connections,
    reader_of,
)
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.wording import closest


def runnable(bundle: Bundle, names: Sequence[str] = ()) -> list[ConnectionResource]:
    """Return a bundle's Connections that can run, those that are named or all.

    Raises:
        ConfigError: there is no such Connection, or nothing calls its Connector.
    """
    known = {one.name: one for one in (*own_connections(bundle), *bundle.connections.values())}
    specs = {name: older_spec(bundle, one) for name, one in known.items()}
    called = {name: one for name, one in known.items() if (spec := specs[name]) is None or is_called(spec)}
    for name in names:
        if name in called:
            continue
        if name in known:
            raise ConfigError(
                f"Nothing calls the Connector of the Connection {name!r}: it has no triggers.",
                suggestion="Add runtime, entry and triggers to the Connector.",
            )
        meant = closest(name, called)
        hint = f"Did you mean {meant!r}? " if meant else ""
        raise ConfigError(
            f"The bundle has no Connection {name!r}.",
            suggestion=f"{hint}Its Connections are: {', '.join(called) or 'none'}.",
        )
    return [called[name] for name in names] or list(called.values())


def built_in() -> dict[str, tuple[Path, Path]]:
    """Return the built-in connectors by name: its declaration, and its file beside it.

    Raises:
        ConfigError: workers are not installed.
    """
    root = base_package_root()
    if root is None:
        raise ConfigError(
            "The built-in package is not installed.", suggestion="Install goondan-workers[all]."
        )
    files = {name: root / one.spec.entry for name, one in load_bundle(root).connectors.items()}
    return {name: (file.with_suffix(".yaml").resolve(), file.resolve()) for name, file in files.items()}


def answering(bundle: Bundle) -> list[ConnectionResource]:
    """Return the Connections of a bundle that answer requests."""
    return [one for one in runnable(bundle) if http_of(bound_connector(bundle, one).resource.spec)]


def reads_lines(bundle: Bundle, connection: ConnectionResource) -> bool:
    """Return whether a Connection's connector gets the lines of the standard input."""
    older = older_spec(bundle, connection)
    return bound_connector(bundle, connection).resource.spec.stdin or (older is not None and has_lines(older))


def source_of(bundle: Bundle, connection: ConnectionResource) -> Source:
    """Return where the events of a Connection may go.

    Raises:
        ConfigError: there is no such Swarm.
    """
    spec = connection.spec
    swarm = bundle.swarm(None if spec.swarm_ref is None else spec.swarm_ref.name)
    older = older_spec(bundle, connection)
    return Source(
        connection.name,
        spec.connector_ref.name,
        tuple(spec.ingress.rules),
        swarm.spec.entry_agent.name,
        spec.max_waiting,
        emitted_today if older is None else reader_of(bundle, connection, older),
    )


def program_of(bundle: Bundle, connection: ConnectionResource, javascript: str | None) -> ConnectorProgram:
    """Return what runs a Connection; its secrets are masked in logs from now on.

    Raises:
        ConfigError: an environment variable that it needs has no value.
    """
    connector = bound_connector(bundle, connection)
    try:
        config, secrets = _variables_of(connection)
    except ConfigError as error:
        message = f"Connection '{connection.name}': {error.message}"
        raise ConfigError(message, code=error.code, suggestion=error.suggestion) from error
    for secret in secrets.values():
        KNOWN_SECRETS.add(secret)
    older, entry = older_spec(bundle, connection), connector.resource.spec.entry
    return ConnectorProgram(
        entry=connector.entry_path.resolve() if entry else Path(__file__).with_name(LINES_ENTRY),
        connection=connection.name,
        connector=connector.resource.name,
        config=config,
        secrets=secrets,
        javascript=javascript,
        reads_lines=reads_lines(bundle, connection),
        answers_http=http_of(connector.resource.spec) is not None,
        called=None if older is None else called_with(bundle, connection, older),
    )


def _variables_of(connection: ConnectionResource) -> tuple[dict[str, str], dict[str, str]]:
    """Return config and secrets."""
    config = {name: resolve_text(text, name) for name, text in connection.spec.config.items()}
    secrets = {name: resolve_text(text, name) for name, text in connection.spec.secrets.items()}
    webhook = connection.spec.verify.webhook
    if webhook is not None:
        secrets.setdefault(SIGNING_SECRET, resolve_text(webhook.signing_secret, "signingSecret"))
    return config, secrets
