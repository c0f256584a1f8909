"""The Connections that run in this process, and the requests to those that answer some."""

import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import structlog
from redis import Redis
from redis.exceptions import RedisError

from broker_config.connections import connect
from broker_config.settings import Settings
from goondan_tasks.authoring.webhooks import HttpRequest, HttpResponse
from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.connection_spec import ConnectionResource
from goondan_tasks.bundle.connectors import path_of
from goondan_tasks.bundle.v1_connectors import http_of
from goondan_tasks.client import Client
from goondan_tasks.connectors.connections import program_of, source_of
from goondan_tasks.connectors.older_connections import bound_connector, tokens_of
from goondan_tasks.connectors.open_requests import failure
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.connectors.runner import SHARED, STOP_SECONDS, ConnectionRunner
from goondan_tasks.connectors.store import ConnectionStore, Lease
from goondan_tasks.connectors.terminal import TerminalLines
from goondan_tasks.contract.errors import ConfigError, GoondanError, extra
from goondan_tasks.oauth.apps import apps_of
from goondan_tasks.oauth.manager import OAuthManager

logger = structlog.get_logger("goondan.connector")

#: answers a request
Answer = Callable[[HttpRequest], Awaitable[HttpResponse]]


@dataclass(frozen=True, slots=True)
class Entrance:
    """Where a Connection takes requests."""

    connection: str
    path: str
    methods: tuple[str, ...]
    answer: Answer


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

    The programs of ``goondan dev`` also run if none can be started, and answer its requests with 503.

    Raises:
        ConfigError: none of them has values for all variables that it needs, or there is no such Swarm.
    """
    sources = {one.name: source_of(bundle, one) for one in connections}
    programs, faults = _programs(bundle, connections, settings)
    is_dev = settings.dev == "on"
    if faults and not programs and not is_dev:
        raise next(iter(faults.values()))
    workspace = bundle.workspace_name(settings.workspace, settings.swarm)
    with connect(settings.redis_url, name="goondan-connectors") as redis:
        store = ConnectionStore.of(redis, settings, workspace)
        manager = cache(lambda: _manager(settings, bundle, redis))
        for one in connections:
            if one.name in faults:
                _tell(one, faults[one.name], store)
        runners = {
            one.name: ConnectionRunner(
                programs[one.name], sources[one.name], client=client, store=store, owner=owner(), lines=lines,
                tokens=tokens_of(bundle, one, manager),
            )
            for one in connections if one.name in programs
        }  # fmt: skip
        answers: dict[str, Answer] = {
            name: runner.requests.answer for name, runner in runners.items() if runner.requests
        }
        if is_dev:
            answers |= {name: _refusing(fault) for name, fault in faults.items()}
        for runner in runners.values():
            runner.start()
        try:
            yield RunningConnections([*runners.values()], list(_entrances(bundle, connections, answers)))
        finally:
            for runner in runners.values():
                runner.stop()
            for runner in runners.values():
                runner.join(STOP_SECONDS + 1)


def _programs(
    bundle: Bundle, connections: Sequence[ConnectionResource], settings: Settings
) -> tuple[dict[str, ConnectorProgram], dict[str, ConfigError]]:
    """Return what runs each Connection by its name, and why others cannot be started."""
    programs, faults = dict[str, ConnectorProgram](), dict[str, ConfigError]()
    for one in connections:
        try:
            programs[one.name] = program_of(bundle, one, settings.javascript)
        except ConfigError as error:
            faults[one.name] = error
    return programs, faults


def _tell(connection: ConnectionResource, fault: ConfigError, store: ConnectionStore) -> None:
    """Log why a Connection cannot be started, and note it for those who list Connections."""
    logger.error("connector.not_started", code=fault.code, error=fault.message, what_to_do=fault.suggestion)
    name, text = connection.name, f"{fault.code}: {fault.message} {fault.suggestion}"
    lease = Lease(store.key(name), uuid.uuid4().hex, owner(), connection.spec.connector_ref.name)
    try:
        if store.hold(lease):  # another process runs it
            store.note_error(replace(lease, token=SHARED), text)
        else:
            store.let_go(lease, text)
    except (RedisError, GoondanError) as error:
        logger.warning("connector.not-noted", connection=name, error=str(error))


def _refusing(fault: ConfigError) -> Answer:
    """Return what answers the requests to a Connection that cannot be started."""

    async def answer(_: HttpRequest) -> HttpResponse:
        return failure(503, f"{fault.message} {fault.suggestion}", fault.code)

    return answer


def _manager(settings: Settings, bundle: Bundle, redis: Redis) -> OAuthManager:
    with extra("oauth"):
        from goondan_tasks.oauth.consent import open_manager
    return open_manager(settings, apps_of(bundle.oauth_apps), redis)


def _entrances(
    bundle: Bundle,
    connections: Sequence[ConnectionResource],
    answers: Mapping[str, Answer],
) -> Iterator[Entrance]:
    for connection in connections:
        connector = bound_connector(bundle, connection).resource
        path, declared = path_of(connection, connector), http_of(connector.spec)
        if path is not None and declared is not None and connection.name in answers:
            yield Entrance(connection.name, path, declared.methods, answers[connection.name])
