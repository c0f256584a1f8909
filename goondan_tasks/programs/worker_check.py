"""The health check of a worker's container: ``python -I -m goondan_tasks.worker_check``.

``-I`` keeps Python from importing what tools have written into the current or the home directory.

A worker reports to Redis from the loop that also takes calls. The check exits with 0 if a worker of this
host has reported in the last seconds, with 1 if none has. It also exits with 0 while Redis cannot be
reached: workers continue when Redis is back, and restarting them would not help.

A container runs the check every few seconds beside its worker. Importing pydantic and redis-py would take
nine tenths of its processor time, so the check reads two variables itself and uses hiredis over a plain
socket. It imports the settings and redis-py only for TLS, for a URL with options, and to say why Redis does
not answer.
"""

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import hiredis

from broker_config import serializer
from broker_config.keys import Keys

_SECONDS = 3.0
_PORT = 6379


def main() -> None:
    """Run the check."""
    variable = os.environ.get  # noqa: TID251 - importing the settings takes too long
    namespace = variable("GOONDAN_NAMESPACE")
    keys = Keys(namespace) if namespace else Keys()
    hosts: set[str] | None
    try:
        hosts = _hosts_over_socket(variable("GOONDAN_REDIS_URL", ""), keys)
    except (OSError, ValueError, hiredis.HiredisError):
        hosts = _hosts_over_redis_py()
    if hosts is not None and socket.gethostname() not in hosts:
        sys.exit(f"No worker of {socket.gethostname()} has reported recently that it takes calls.")


def _hosts_over_socket(url: str, keys: Keys) -> set[str]:
    """Read the hosts of all live workers as :class:`~goondan_tasks.fleet.agent_registry.AgentRegistry` does.

    Raises:
        OSError, ValueError, hiredis.HiredisError: the URL needs redis-py, or Redis does not answer.
    """
    with _connected(url) as connection:
        rows = _ask(connection, "ZRANGE", keys.workers, "0", "-1")
        found = _ask(connection, "MGET", *(keys.worker(row.decode()) for row in rows)) if rows else []
    records = [serializer.decode(record) for record in found if record]
    return {record["host"] for record in records if not record.get("isJoining")}


@contextlib.contextmanager
def _connected(url: str) -> Iterator[socket.socket]:
    """Open an authenticated connection to the database of a URL."""
    parts = urlsplit(url)
    if parts.scheme != "redis" or parts.query:
        raise ValueError("only redis-py supports this URL")
    address = parts.hostname or "localhost", parts.port or _PORT
    with socket.create_connection(address, _SECONDS) as connection:
        if login := [unquote(one) for one in (parts.username, parts.password) if one]:
            _ask(connection, "AUTH", *login)
        if database := parts.path.strip("/"):
            _ask(connection, "SELECT", database)
        yield connection


def _ask(connection: socket.socket, *command: str) -> Any:
    """Send a command and return the answer."""
    connection.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]
    reader = hiredis.Reader()
    while (answer := reader.gets()) is False:  # incomplete
        received = connection.recv(65_536)
        if not received:
            raise ConnectionError("Redis has closed the connection")
        reader.feed(received)
    if isinstance(answer, hiredis.HiredisError):
        raise answer
    return answer


def _hosts_over_redis_py() -> set[str] | None:
    """Read the hosts with redis-py; ``None``, with the reason on stderr, if Redis cannot be reached."""
    from redis.exceptions import RedisError

    from broker_config.connections import connect
    from broker_config.refusals import reason_unreachable
    from broker_config.settings import Settings
    from goondan_tasks.fleet.agent_registry import AgentRegistry

    settings = Settings.load()
    try:
        with connect(settings.redis_url, name="goondan-check") as redis:
            return {worker.host for worker in AgentRegistry(redis, Keys(settings.namespace)).workers()}
    except RedisError as error:
        sys.stderr.write(f"Not known: {reason_unreachable(settings.redis_url, error)}\n")
        return None


if __name__ == "__main__":
    main()
