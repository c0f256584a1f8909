"""The Connections that run in this process, and the requests to those that answer some."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import structlog
from redis import Redis

from broker_config.connections import connect
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.connection_spec import ConnectionResource
from goondan_tasks.bundle.connectors import path_of
from goondan_tasks.bundle.v1_connectors import http_of
from goondan_tasks.client import Client
from goondan_tasks.connectors.connections import program_of, source_of
from goondan_tasks.connectors.older_connections import bound_connector, tokens_of
from goondan_tasks.connectors.open_requests import OpenRequests
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.connectors.runner import STOP_SECONDS, ConnectionRunner
from goondan_tasks.connectors.store import ConnectionStore
from goondan_tasks.connectors.terminal import TerminalLines
from goondan_tasks.contract.errors import ConfigError, extra
from goondan_tasks.oauth.apps import apps_of
from goondan_tasks.oauth.manager import OAuthManager

logger = structlog.get_logger("goondan.connector")


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where a Connection takes requests."""

    connection: str
    path: str
    methods: tuple[str, ...]
    requests: OpenRequests


@dataclass(frozen=True, slots=True)
class RunningConnections:
    """Connections that run."""

    runners: Sequence[ConnectionRunner]
    #: to those that answer requests
    entrances: Sequence[Entrance]

    def have_ended(self) -> bool:
        """Whether all connectors have returned."""
        return all(runner.join(0) for runner in self.runners)


def owner() -> str:
    """Return the name of this process: ``<host>:<pid>``."""
    return f"{socket.gethostname()}:{os.getpid()}"


@contextmanager
def running(
    bundle: Bundle,
    connections: Sequence[ConnectionResource],
    settings: Settings,
    client: Client,
    lines: TerminalLines | None = None,
) -> Iterator[RunningConnections]:
    """Run Connections for a ``with`` block. One that cannot be started is logged, and the others run.

    Raises:
        ConfigError: none of them has values for all variables that it needs, or there is no such Swarm.
    """
    sources = {one.name: source_of(bundle, one) for one in connections}
    startable = _startable(bundle, connections, settings)
    workspace = bundle.workspace_name(settings.workspace, settings.swarm)
    with connect(settings.redis_url, name="goondan-connectors") as redis:
        store = ConnectionStore.of(redis, settings, workspace)
        manager = cache(lambda: _manager(settings, bundle, redis))
        runners = [
            ConnectionRunner(
                program, sources[connection.name], client=client, store=store, owner=owner(), lines=lines,
                tokens=tokens_of(bundle, connection, manager),
            )
            for connection, program in startable
        ]  # fmt: skip
        for runner in runners:
            runner.start()
        try:
            running = [connection for connection, _ in startable]
            yield RunningConnections(runners, list(_entrances(bundle, running, runners)))
        finally:
            for runner in runners:
                runner.stop()
            for runner in runners:
                runner.join(STOP_SECONDS + 1)


def _startable(
    bundle: Bundle, connections: Sequence[ConnectionResource], settings: Settings
) -> list[tuple[ConnectionResource, ConnectorProgram]]:
    found, errors = [], list[ConfigError]()
    for one in connections:
        try:
            found.append((one, program_of(bundle, one, settings.javascript)))
        except ConfigError as error:
            errors.append(error)
    if errors and not found:
        raise errors[0]
    for fault in errors:
        logger.error("connector.not_started", error=fault.message, what_to_do=fault.suggestion)
    return found


def _manager(settings: Settings, bundle: Bundle, redis: Redis) -> OAuthManager:
    with extra("oauth"):
        from goondan_tasks.oauth.consent import open_manager
    return open_manager(settings, apps_of(bundle.oauth_apps), redis)


def _entrances(
    bundle: Bundle, connections: Sequence[ConnectionResource], runners: Sequence[ConnectionRunner]
) -> Iterator[Entrance]:
    for connection, runner in zip(connections, runners, strict=True):
        connector = bound_connector(bundle, connection).resource
        path, declared = path_of(connection, connector), http_of(connector.spec)
        if path is not None and declared is not None and runner.requests is not None:
            yield Entrance(connection.name, path, declared.methods, runner.requests)
