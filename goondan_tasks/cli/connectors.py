"""Events from outside: ``connectors run``, ``connectors list`` and ``connectors test``."""

import os
import socket
from typing import Annotated

from pydantic import ValidationError
from redis import Redis

from broker_config.connections import connect
from broker_config.process_group import ProcessGroup
from broker_config.settings import hidden_password
from goondan_tasks.authoring.connector_api import ConnectorEvent
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.cli.options import argument, option, parse_object
from goondan_tasks.cli.output import Columns, listing
from goondan_tasks.cli.session import (
    END_SECONDS,
    Interruption,
    Session,
    chosen_bundle,
    require_broker,
    takes_session,
)
from goondan_tasks.connectors.connections import program_of, runnable, source_of
from goondan_tasks.connectors.handover import origin_of
from goondan_tasks.connectors.routing import route
from goondan_tasks.connectors.runner import STOP_SECONDS, ConnectionRunner
from goondan_tasks.connectors.store import ConnectionStatus, ConnectionStore
from goondan_tasks.contract.errors import ConfigError, ConnectorError
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.contract.messages import JsonObject, faults_of

Names = Annotated[list[str] | None, argument("[NAME]...", "The Connections; default: all of the bundle.")]

_COLUMNS: Columns[ConnectionStatus] = {
    "connection": lambda one: one.name,
    "connector": lambda one: one.connector,
    "state": lambda one: one.state,
    "process": lambda one: one.process,
    "since": lambda one: one.since,
    "events": lambda one: one.events,
    "refused": lambda one: one.refused or None,
    "last event": lambda one: one.last_event_at,
    "last error": lambda one: (one.last_error or "").rpartition("\n")[2] or None,
}
#: how often a stopping program looks whether its connectors have ended
_LOOK_SECONDS = 0.2


@takes_session
def run(session: Session, names: Names = None) -> None:
    """Run the Connections of the bundle until SIGTERM or Ctrl-C: events from outside go to their agents.

    Each runs in a process of its own, with its secrets and without this environment's. Several programs may
    run the same Connections: one process of them all receives the events, another takes over when it is gone.
    """
    settings, output = session.settings, session.output
    bundle = load_bundle(chosen_bundle(settings))
    connections = runnable(bundle, names or ())
    if not connections:
        raise ConfigError(
            "The bundle has no Connections.", suggestion="Declare a Connector and a Connection."
        )
    programs = [program_of(bundle, one, settings.javascript) for one in connections]
    sources = [source_of(bundle, one) for one in connections]
    require_broker(settings)
    configure_logging(settings)
    owner = f"{socket.gethostname()}:{os.getpid()}"
    named = [one.connection for one in programs]
    if output.as_json:
        output.document({"connectors": owner, "connections": named})
    output.note(f"Running {', '.join(named)} on {hidden_password(settings.redis_url)}")
    interruption = Interruption(STOP_SECONDS + END_SECONDS)
    with (
        interruption.listening(),
        connect(settings.redis_url, name="goondan-connectors") as redis,
        session.client() as client,
        ProcessGroup() as group,
    ):
        store = _store(session, bundle, redis)
        runners = [
            ConnectionRunner(program, source, client=client, store=store, group=group, owner=owner)
            for program, source in zip(programs, sources, strict=True)
        ]
        for runner in runners:
            runner.start()
        while not interruption.asked.wait(_LOOK_SECONDS) and not all(one.join(0) for one in runners):
            pass
        for runner in runners:
            runner.stop()
        for runner in runners:
            runner.join(STOP_SECONDS + 1)


@takes_session
def list_connections(session: Session) -> None:
    """List the Connections of the bundle: which run, where, since when, their last event and last error."""
    bundle, settings = session.bundle(), session.settings
    names = {one.name: one.spec.connector_ref.name for one in runnable(bundle)}
    require_broker(settings)
    with connect(settings.redis_url) as redis:
        store = _store(session, bundle, redis)
        statuses = store.statuses(names)
    session.output.write(
        listing(statuses, _COLUMNS, wire=ConnectionStatus.to_wire, none="The bundle has no Connections.")
    )


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
        read = ConnectorEvent.from_wire(event)
    except ValidationError as error:
        raise ConnectorError(f"The event is not valid: {faults_of(error)}.") from error
    found = route(source.rules, read, source.entry_agent)
    rule = "no rule: the entry agent" if found.rule is None else f"ingress.rules[{found.rule}]"
    document: JsonObject = {
        "agent": found.agent,
        "instanceKey": found.instance_key,
        "rule": found.rule,
        "input": read.message.as_text(),
        "origin": origin_of(source, read),
    }
    session.output.give(document, f"{found.agent}@{found.instance_key} by {rule}")


def _store(session: Session, bundle: Bundle, redis: Redis) -> ConnectionStore:
    settings = session.settings
    return ConnectionStore.of(redis, settings, bundle.workspace_name(settings.workspace, settings.swarm))
