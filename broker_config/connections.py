"""Redis clients: bounded in every wait, retried over short faults; and what to say of a Redis that fails."""

import re

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from broker_config.in_flight import IN_FLIGHT_INDEX
from broker_config.settings import SettingsError, hidden_password

#: what says "Redis cannot be reached", as opposed to "Redis refuses this command"
UNREACHABLE = (RedisConnectionError, RedisTimeoutError)

CONNECT_TIMEOUT_SECONDS = 3.0
SOCKET_TIMEOUT_SECONDS = 3.5


def connect(url: str, *, name: str = "goondan", timeout_seconds: float = SOCKET_TIMEOUT_SECONDS) -> Redis:
    """Make a client of ``url`` (``redis://``, ``rediss://``, ``unix://``); nothing is sent yet.

    A lost connection is retried once after 50 ms. A server that does not answer within ``timeout_seconds``
    is away; with the default that is reported within 10 s in all.

    Raises:
        SettingsError: the URL has an option that there is not, or a value that it cannot have.
    """
    keepalive = {} if url.startswith("unix:") else {"socket_keepalive": True}
    try:
        client = Redis.from_url(
            url,
            client_name=name,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=min(timeout_seconds, CONNECT_TIMEOUT_SECONDS),
            **keepalive,
            health_check_interval=10,
            redis_connect_func=_greet,
            retry=Retry(ExponentialBackoff(cap=0.05, base=0.05), 1),
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # else the first command would notice
    except (TypeError, ValueError, RedisError) as error:
        raise SettingsError(f"GOONDAN_REDIS_URL: {hidden_password(url)} cannot be used: {error}") from error
    return client


def redis_time(redis: Redis) -> float:
    """Return the time of a Redis in milliseconds since the epoch."""
    return milliseconds_of(redis.time())


def milliseconds_of(answer: tuple[int, int]) -> float:
    """Return the milliseconds since the epoch that the answer to ``TIME`` says."""
    seconds, micros = answer
    return float(seconds * 1000 + micros / 1000)


def _greet(connection: AbstractConnection) -> None:
    """Greet a new server without a health check first, which would double the wait for a silent one."""
    connection.on_connect_check_health(check_health=False)


def require_writable(redis: Redis) -> None:
    """Go on if Redis takes writes, also those that need memory; nothing is changed.

    Raises:
        redis.exceptions.RedisError: it takes none: it is a replica, full, busy, ..., or cannot be reached.
    """
    redis.zadd(IN_FLIGHT_INDEX, {"": 0}, xx=True)


#: where an old Redis puts the error that a script has met with
_IN_A_SCRIPT = re.compile(r"Error running script \(.*?\): (?:@user_script: ?\d+: )*-?")

#: what an error says that comes from a script's own lines, or from a key that is of another type
_FAULT = re.compile(r"user_script|^WRONGTYPE")

#: what to do, by what the error says; redis-py takes the code off some
_REMEDIES = (
    ("READONLY|read only replica", "Use the URL of the master: after a failover that is another server."),
    (
        "MASTERDOWN|Link with MASTER is down",
        "Use the URL of the master, or wait for the replica.",
    ),
    ("NOREPLICAS|good replicas", "Bring its replicas back, or lower min-replicas-to-write."),
    ("MISCONF|RDB snapshots", "Look at the server's log and the space on its disk: it cannot save its data."),
    ("BUSY", "A script runs there without end: `redis-cli SCRIPT KILL` ends it."),
    ("OOM|maxmemory", "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS: the server is full."),
    ("LOADING|loading the dataset", "Wait until it has read its data from disk."),
    (
        "CLUSTERDOWN|Hash slot",
        "Use a server that is not part of a Redis Cluster.",
    ),
    ("NOAUTH|WRONGPASS|Authentication|password", "Correct user and password in GOONDAN_REDIS_URL."),
    (
        "NOPERM|has no permissions",
        "Let the user of GOONDAN_REDIS_URL do all: `ACL SETUSER`.",
    ),
    ("max number of clients", "Raise maxclients, or end clients: `redis-cli CLIENT LIST` shows them."),
)


def refusal_text(error: RedisError) -> str:
    """Return what Redis says, without the place in the script that has met with it."""
    return _IN_A_SCRIPT.sub("", str(error))


def remedy_of(error: RedisError) -> str | None:
    """Say what to do about an error that Redis answers with; none if that is not known."""
    said = str(error)
    return next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, said)), None)


def is_script_fault(error: RedisError) -> bool:
    """Say whether a script has met with keys or arguments that it cannot use: it would do so again."""
    return isinstance(error, ResponseError) and remedy_of(error) is None and bool(_FAULT.search(str(error)))


def reason_unreachable(url: str, error: RedisError) -> str:
    """Say in one line why the server at ``url`` (its password hidden) cannot be used."""
    place, said = hidden_password(url), refusal_text(error)
    if isinstance(error, AuthenticationError):
        return f"Redis at {place} refuses the credentials: {said}"
    if isinstance(error, ResponseError):
        return f"Redis at {place} answers with an error: {said}"
    return f"Redis at {place} cannot be reached: {said}"
