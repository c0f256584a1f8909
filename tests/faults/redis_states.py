"""States in which a Redis that is there answers with errors, until they pass. Each is a context manager."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from redis import Redis
from redis.exceptions import ResponseError

from broker_config.embedded import EmbeddedRedis
from tests.faults.proxy import Proxy
from tests.waiting import wait_until

State = Callable[[EmbeddedRedis, Proxy], AbstractContextManager[None]]


def control(server: EmbeddedRedis) -> Redis:
    """Make a client that does not ask first whether its connection is well: the answer would be an error."""
    return Redis.from_url(server.url, socket_timeout=None)


@contextmanager
def read_only(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Let the server be a replica, as an old master is after a failover: READONLY."""
    with control(server) as redis:
        redis.replicaof("127.0.0.1", 1)
        try:
            yield
        finally:
            redis.replicaof("NO", "ONE")


@contextmanager
def without_replicas(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Let the server miss the replicas that it must have: NOREPLICAS."""
    with control(server) as redis:
        redis.config_set("min-replicas-to-write", 1)
        try:
            yield
        finally:
            redis.config_set("min-replicas-to-write", 0)


@contextmanager
def without_disk(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Let the server fail to write its snapshot: MISCONF."""
    in_the_way = server.directory / "dump.rdb" / "file"  # what stops root, too
    with control(server) as redis:
        in_the_way.parent.mkdir()
        in_the_way.touch()
        redis.config_set("save", "3600 1000000")
        redis.bgsave()
        wait_until(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", 10)
        try:
            yield
        finally:
            shutil.rmtree(in_the_way.parent)
            redis.config_set("save", "")


@contextmanager
def busy(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Let a script run without end: BUSY."""
    with control(server) as redis, control(server) as other:
        redis.config_set("lua-time-limit", 50)
        script = threading.Thread(target=_run_without_end, args=[other])
        script.start()
        wait_until(lambda: _is_busy(redis), 10)
        try:
            yield
        finally:
            redis.script_kill()
            script.join(10)


def _run_without_end(redis: Redis) -> None:
    try:
        redis.eval("while true do end", 0)
    except ResponseError:  # it was killed
        return


def _is_busy(redis: Redis) -> bool:
    try:
        redis.ping()
    except ResponseError:
        return True
    return False


@contextmanager
def out_of_memory(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Let the server refuse what needs memory: OOM."""
    with control(server) as redis:
        redis.config_set("maxmemory", 1)
        try:
            yield
        finally:
            redis.config_set("maxmemory", 0)


@contextmanager
def other_password(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Change the password, and end the connections that were let in with the old one: WRONGPASS."""
    with control(server) as redis:
        password = redis.config_get("requirepass")["requirepass"]
        redis.config_set("requirepass", "another")
        _end_connections(redis)
        try:
            yield
        finally:
            redis.config_set("requirepass", password)


@contextmanager
def crowded(server: EmbeddedRedis, _proxy: Proxy) -> Iterator[None]:
    """Let the server have no room for another connection: max number of clients reached."""
    with control(server) as redis:
        redis.config_set("maxclients", 1)
        _end_connections(redis)
        try:
            yield
        finally:
            redis.config_set("maxclients", 1000)


def _end_connections(redis: Redis) -> None:
    for kind in ("normal", "pubsub"):
        redis.client_kill_filter(_type=kind, skipme=True)


@contextmanager
def loading(_server: EmbeddedRedis, proxy: Proxy) -> Iterator[None]:
    """Answer as a server does that reads its data from disk: LOADING, to new connections."""
    with answers(proxy, "LOADING Redis is loading the dataset in memory"):
        proxy.cut()
        yield


@contextmanager
def cluster_down(_server: EmbeddedRedis, proxy: Proxy) -> Iterator[None]:
    """Answer as a server does whose cluster is: CLUSTERDOWN."""
    with answers(proxy, "CLUSTERDOWN Hash slot not served"):
        yield


@contextmanager
def answers(proxy: Proxy, error: str) -> Iterator[None]:
    """Answer with an error in the place of the server."""
    proxy.answer(error)
    try:
        yield
    finally:
        proxy.answer(None)


#: each state, and what its errors say
STATES: dict[State, str] = {
    read_only: "read only replica",
    without_replicas: "NOREPLICAS|[Nn]ot enough good replicas",
    without_disk: "MISCONF|RDB snapshots",
    busy: "BUSY|busy running a script",
    out_of_memory: "OOM|maxmemory",
    other_password: "WRONGPASS|invalid username-password pair|invalid password",
    crowded: "max number of clients",
    loading: "loading the dataset",
    cluster_down: "Hash slot not served",
}
