"""A master with replicas, one of which takes its place when the test says so, or when Sentinels do."""

# redis-py leaves some of its commands untyped
# mypy: disable-error-code="no-untyped-call"

import random
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from broker_config.embedded import HOST, EmbeddedRedis, find_redis_server
from broker_config.process_group import ProcessGroup, end_processes
from goondan_tasks.testing import LocalStack
from tests.faults.crowd import Answer, Crowd
from tests.faults.handler_log import HandlerLog
from tests.faults.work import mixed_work
from tests.waiting import wait_until

PASSWORD = "one-password-for-all"
SYNC_SECONDS = 30
STOP_SECONDS = 5.0


@dataclass
class Replicated:
    """Servers of which the first is the master; all have one password."""

    servers: list[EmbeddedRedis] = field(default_factory=list)

    @property
    def master(self) -> EmbeddedRedis:
        """The server that the others follow."""
        return self.servers[0]

    def follow(self, server: EmbeddedRedis) -> None:
        """Let a server be a replica of the master, and wait until it has its data."""
        with control(server) as redis:
            redis.config_set("masterauth", PASSWORD)
            redis.replicaof(HOST, self.master.port)
            wait_until(lambda: redis.info("replication").get("master_link_status") == "up", SYNC_SECONDS)

    def fail_over(self) -> EmbeddedRedis:
        """Let the first replica become the master, and all others its replicas; return it.

        The old master takes no more writes, and waits until the replica has all that it has acknowledged.
        """
        old, new, *others = self.servers
        with control(old) as redis:
            redis.execute_command("FAILOVER", "TO", HOST, new.port)
            wait_until(lambda: _has_failed_over(redis.info("replication")), SYNC_SECONDS)
        self.servers = [new, *others, old]
        for server in self.servers[1:]:
            self.follow(server)
        return new


def _has_failed_over(info: Mapping[str, Any]) -> bool:
    """Whether an old master is a replica, and may be told whom to follow."""
    return (info["role"], info["master_failover_state"]) == ("slave", "no-failover")


def control(server: EmbeddedRedis) -> Redis:
    """Make a client that does not ask first whether its connection is well."""
    return Redis.from_url(server.url, socket_timeout=None)


@contextmanager
def replicated(replicas: int) -> Iterator[Replicated]:
    """Start a master with so many replicas."""
    with ExitStack() as stack:
        cluster = Replicated()
        for _ in range(replicas + 1):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="goondan-replicated-")))
            (directory / "password").write_text(PASSWORD, "ascii")
            server = stack.enter_context(EmbeddedRedis(directory=directory))
            cluster.servers.append(server)
            with control(server) as redis:
                redis.config_set("masterauth", PASSWORD)
                redis.config_set("repl-diskless-sync-delay", 0)
        for server in cluster.servers[1:]:
            cluster.follow(server)
        yield cluster


#: how many calls have an answer between two failovers
CALLS = 100
#: how long a call is waited for
PATIENCE = 60.0


def crowd_through(
    fail_over: Callable[[], object], failovers: int, stack: LocalStack, log: HandlerLog
) -> Sequence[Answer]:
    """Let producers submit calls through so many failovers; return the answers."""
    crowd = Crowd(stack.client, 16, PATIENCE)
    with crowd.at_work(mixed_work(log, random.Random(failovers), 1.0)) as answers:
        for number in range(1, failovers + 1):
            wait_until(partial(_has_answered, crowd, number * CALLS), PATIENCE)
            fail_over()
        wait_until(partial(_has_answered, crowd, (failovers + 1) * CALLS), PATIENCE)
    return answers


def _has_answered(crowd: Crowd, calls: int) -> bool:
    return crowd.answered >= calls


SERVICE = "swarm"
_SENTINEL = """\
bind 127.0.0.1
port {port}
daemonize no
logfile sentinel.log
sentinel monitor {service} 127.0.0.1 {master} {quorum}
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} {down_after}
sentinel failover-timeout {service} 5000
{more}
"""
#: below the ephemeral ports, and those of EmbeddedRedis
_PORTS = range(10_000, 16_000)


@dataclass
class Sentinels:
    """Sentinels that watch a master."""

    ports: list[int] = field(default_factory=list)
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def url(self, options: str = "") -> str:
        """Return the URL of the master for ``GOONDAN_REDIS_URL``."""
        places = ",".join(f"{HOST}:{port}" for port in self.ports)
        return f"sentinel://:{PASSWORD}@{places}/{SERVICE}/0{options}"

    def master_port(self) -> int:
        """Return the port of the master that the first Sentinel names."""
        with self.client(0) as sentinel:
            return int(sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def client(self, number: int) -> Redis:
        """Make a client of one Sentinel."""
        return Redis(HOST, self.ports[number], decode_responses=True)

    def fail_over(self) -> int:
        """Let the Sentinels make a replica the master; return its port.

        The old master takes no writes any more before the new one does, where the server knows that.
        """
        old = self.master_port()
        with self.client(0) as sentinel:
            wait_until(lambda: _is_accepted(sentinel), SYNC_SECONDS)
        wait_until(lambda: self.master_port() != old, SYNC_SECONDS)
        return self.master_port()


def _is_accepted(sentinel: Redis) -> bool:
    """Ask for a failover; it is refused while no replica is known, and for a while after the last one."""
    try:
        sentinel.execute_command("SENTINEL FAILOVER", SERVICE, "COORDINATED")
    except ResponseError as error:
        assert "NOGOODSLAVE" in str(error) or "INPROG" in str(error), error
        return False
    return True


@contextmanager
def sentinels(
    servers: Replicated, count: int, *, down_after: int = 60_000, more: str = ""
) -> Iterator[Sentinels]:
    """Start Sentinels; ``more`` is added to their configuration.

    After ``down_after`` ms of silence they hold the master for dead. By default that is so long that a busy
    machine causes no failover that the test has not asked for.
    """
    with ExitStack() as stack:
        found = Sentinels()
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="goondan-sentinels-")))
        group = stack.enter_context(ProcessGroup())
        stack.callback(lambda: end_processes(found.processes, STOP_SECONDS))
        for _ in range(count):
            port = _free_port()
            directory = place / str(port)
            directory.mkdir()
            configuration = _SENTINEL.format(
                port=port,
                service=SERVICE,
                master=servers.master.port,
                quorum=count // 2 + 1,
                password=PASSWORD,
                down_after=down_after,
                more=more,
            )
            (directory / "sentinel.conf").write_text(configuration, "ascii")
            command = [str(find_redis_server()), "sentinel.conf", "--sentinel"]
            found.processes.append(group.start(command, cwd=directory, env={"LC_ALL": "C"}))
            found.ports.append(port)
        if not more:
            for number in range(count):
                with found.client(number) as client:
                    wait_until(partial(_knows, client, count, len(servers.servers)), SYNC_SECONDS)
        yield found


def _free_port() -> int:
    while True:
        port = secrets.choice(_PORTS)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


def _knows(sentinel: Redis, sentinels: int, servers: int) -> bool:
    """Say whether a Sentinel knows all others and all replicas."""
    try:
        state = sentinel.execute_command("SENTINEL MASTER", SERVICE)
    except RedisConnectionError:
        return False
    return (state["num-other-sentinels"], state["num-slaves"]) == (sentinels - 1, servers - 1)
