"""Events from outside: ``connectors run``, ``connectors list`` and ``connectors test``."""

from typing import Annotated

from pydantic import ValidationError
from redis import Redis

from broker_config.connections import connect
from broker_config.hard_end import END_SECONDS
from broker_config.settings import hidden_password
from goondan_tasks.bundle import Bundle
from goondan_tasks.cli.doors import connections_served
from goondan_tasks.cli.options import Address, Port, argument, option, parse_object
from goondan_tasks.cli.output import Columns, listing
from goondan_tasks.cli.session import (
    Interruption,
    Session,
    require_broker,
    takes_session,
)
from goondan_tasks.client import Client
from goondan_tasks.connectors.connections import reads_lines, runnable, source_of
from goondan_tasks.connectors.handover import agent_event_of, origin_of
from goondan_tasks.connectors.runner import STOP_SECONDS
from goondan_tasks.connectors.running import owner, running
from goondan_tasks.connectors.store import ConnectionStore
from goondan_tasks.connectors.terminal import TerminalLines
from goondan_tasks.contract.errors import ConfigError, ConnectorError
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.contract.messages import JsonObject, epoch_milliseconds, faults_of
from goondan_tasks.fleet.connections import ConnectionStatus

Names = Annotated[list[str] | None, argument("[NAME]...", "The Connections; default: all of the bundle.")]

#: how often a stopping program looks whether its connectors have ended
_LOOK_SECONDS = 0.2


@takes_session
def run(session: Session, names: Names = None, port: Port = None, address: Address = None) -> None:
    """Run the Connections of the bundle until SIGTERM or Ctrl-C: events from outside go to their agents.

    Each runs in a process of its own, with its secrets and without this environment's. Several programs may
    run the same Connections: one process of them all receives the events, another takes over when it is gone.
    Connections that answer HTTP requests are served by each program, at --address and --port.
    """
    settings, output = session.settings, session.output
    bundle = session.bundle()
    connections = runnable(bundle, names or ())
    if not connections:
        raise ConfigError(
            "The bundle has no Connections.",
            suggestion="Declare a Connection; `goondan connectors show` lists the built-in Connectors.",
        )
    readers = [one.name for one in connections if reads_lines(bundle, one)]
    if len(readers) > 1:
        raise ConfigError(
            f"The Connections {' and '.join(readers)} all read the standard input, which only one can.",
            suggestion=f"Run one of them: goondan connectors run {readers[0]}",
        )
    require_broker(settings)
    configure_logging(settings)
    interruption = Interruption(STOP_SECONDS + END_SECONDS)
    with (
        interruption.listening(),
        Client(settings, bundle, warn=output.note) as client,  # it may be that of this directory
        running(bundle, connections, settings, client, TerminalLines(0) if readers else None) as connected,
        connections_served(session, client, connected, port, address) as url,
    ):
        names = [runner.program.connection for runner in connected.runners]
        if output.as_json:
            served = {} if url is None else {"url": url}
            output.document({"connectors": owner(), "connections": names, **served})
        output.note(f"Running {', '.join(names) or 'none'} on {hidden_password(settings.redis_url)}")
        if url is not None:
            output.note(f"Listening: {url}")
        while not interruption.asked.wait(_LOOK_SECONDS) and not connected.have_ended():
            pass


@takes_session
def list_connections(session: Session) -> None:
    """List the Connections of the bundle: which run, where, since when, their last event and last error."""
    bundle, settings = session.bundle(), session.settings
    names = {one.name: one.spec.connector_ref.name for one in runnable(bundle)}
    require_broker(settings)
    with connect(settings.redis_url) as redis:
        store = _store(session, bundle, redis)
        statuses = store.statuses(names)
    output = session.output

    def time(text: str | None) -> str | None:
        return None if text is None else output.time(epoch_milliseconds(text))

    columns: Columns[ConnectionStatus] = {
        "connection": lambda one: one.name,
        "connector": lambda one: one.connector,
        "state": lambda one: one.state,
        "process": lambda one: one.process,
        "since": lambda one: time(one.since),
        "events": lambda one: one.events,
        "refused": lambda one: one.refused or None,
        "last event": lambda one: time(one.last_event_at),
        "last error": lambda one: (one.last_error or "").rpartition("\n")[2] or None,
    }
    none = "The bundle has no Connections."
    output.write(listing(statuses, columns, wire=ConnectionStatus.to_wire, none=none))


@takes_session
def test(
    session: Session,
    name: Annotated[str, argument("NAME", "The Connection.")],
    event: Annotated[
        JsonObject,
        option("JSON", "The event: {name, message, properties, instanceKey}.", parser=parse_object),
    ],
) -> None:
    """Show which agent and instance an event would go to, and by which rule; nothing is sent."""
    bundle = session.bundle()
    [connection] = runnable(bundle, [name])
    source = source_of(bundle, connection)
    try:
        read = source.read(event)
    except ValidationError as error:
        raise ConnectorError(f"The event is not valid: {faults_of(error)}.") from error
    found = source.destination(read)
    rules = "ingress.rules" if read.destination is None else "rule"
    otherwise = "no rule: the entry agent" if read.destination is None else "the event itself"
    rule = otherwise if found.rule is None else f"{rules}[{found.rule}]"
    document: JsonObject = {
        "agent": found.agent,
        "instanceKey": found.instance_key,
        "rule": found.rule,
        "input": agent_event_of(source, read).input,
        "origin": origin_of(source, read),
    }
    session.output.give(document, f"{found.agent}@{found.instance_key} by {rule}")


def _store(session: Session, bundle: Bundle, redis: Redis) -> ConnectionStore:
    settings = session.settings
    return ConnectionStore.of(redis, settings, bundle.workspace_name(settings.workspace, settings.swarm))
