"""A master with replicas, one of which takes its place when the test says so."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from redis import Redis

from broker_config.embedded import HOST, EmbeddedRedis
from tests.waiting import wait_until

PASSWORD = "one-password-for-all"
SYNC_SECONDS = 30


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
        """Let the first replica become the master, and all others its replicas; return it."""
        old, new, *others = self.servers
        with control(old) as redis:  # what it has acknowledged arrives: it takes no more writes
            redis.replicaof(HOST, new.port)
        with control(new) as redis:
            redis.replicaof("NO", "ONE")
        self.servers = [new, *others, old]
        for server in self.servers[1:]:
            self.follow(server)
        return new


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
