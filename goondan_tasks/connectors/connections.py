"""The Connections of a bundle, ready to run."""

from collections.abc import Sequence

from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.entries import entry_path
from goondan_tasks.bundle.fields import resolve_text
from goondan_tasks.bundle.resources import ConnectionResource
from goondan_tasks.connectors.handover import Source
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.wording import closest

#: under which name ``verify.webhook.signingSecret`` is among a connector's secrets
SIGNING_SECRET = "SIGNING_SECRET"  # noqa: S105 - a name


def runnable(bundle: Bundle, names: Sequence[str] = ()) -> list[ConnectionResource]:
    """Return a bundle's Connections that can run, those that are named or all.

    Raises:
        ConfigError: there is no such Connection, or it is of the older version.
    """
    of_today = {name: one for name, one in bundle.connections.items() if not one.is_v1}
    for name in names:
        if name in of_today:
            continue
        if name in bundle.connections:
            raise ConfigError(
                f"The Connection {name!r} is of agents.example.io/v1alpha1, which does not run here.",
                suggestion="Write it for goondan.ai/v1; `goondan migrate` shows the differences.",
            )
        meant = closest(name, of_today)
        hint = f"Did you mean {meant!r}? " if meant else ""
        raise ConfigError(
            f"The bundle has no Connection {name!r}.",
            suggestion=f"{hint}Its Connections are: {', '.join(of_today) or 'none'}.",
        )
    return [of_today[name] for name in names] or list(of_today.values())


def source_of(bundle: Bundle, connection: ConnectionResource) -> Source:
    """Return where the events of a Connection may go.

    Raises:
        ConfigError: there is no such Swarm.
    """
    spec = connection.spec
    swarm = bundle.swarm(None if spec.swarm_ref is None else spec.swarm_ref.name)
    return Source(
        connection.name, spec.connector_ref.name, tuple(spec.ingress.rules), swarm.spec.entry_agent.name
    )


def program_of(bundle: Bundle, connection: ConnectionResource, javascript: str | None) -> ConnectorProgram:
    """Return what runs a Connection; its secrets are masked in logs from now on.

    Raises:
        ConfigError: an environment variable that it needs has no value.
    """
    connector = bundle.connectors[connection.spec.connector_ref.name]
    config = {name: resolve_text(text, name) for name, text in connection.spec.config.items()}
    secrets = {name: resolve_text(text, name) for name, text in connection.spec.secrets.items()}
    webhook = connection.spec.verify.webhook
    if webhook is not None:
        secrets.setdefault(SIGNING_SECRET, resolve_text(webhook.signing_secret, "signingSecret"))
    for secret in secrets.values():
        KNOWN_SECRETS.add(secret)
    return ConnectorProgram(
        entry=entry_path(connector.spec.entry, bundle.root).resolve(),
        connection=connection.name,
        connector=connector.name,
        config=config,
        secrets=secrets,
        javascript=javascript,
    )
