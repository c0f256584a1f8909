"""Redis clients: bounded in every wait, retried over short faults."""

from redis import Redis
from redis.backoff import ExponentialBackoff
from redis.connection import AbstractConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from broker_config.settings import SettingsError, hidden_password

#: what says "Redis cannot be reached", as opposed to "Redis refuses this command"
UNREACHABLE = (RedisConnectionError, RedisTimeoutError)

CONNECT_TIMEOUT_SECONDS = 3.0
SOCKET_TIMEOUT_SECONDS = 3.5


def connect(url: str, *, name: str = "goondan", timeout_seconds: float = SOCKET_TIMEOUT_SECONDS) -> Redis:
    """Make a client of ``url`` (``redis://``, ``rediss://``, ``unix://``); nothing is sent yet.

    A lost connection is tried once more after 50 ms. A server that does not answer within ``timeout_seconds``
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


def _greet(connection: AbstractConnection) -> None:
    """Greet a new server without a health check first, which would double the wait for a silent one."""
    connection.on_connect_check_health(check_health=False)


def reason_unreachable(url: str, error: RedisError) -> str:
    """Say in one line why the server at ``url`` (its password hidden) cannot be used."""
    place = hidden_password(url)
    if isinstance(error, AuthenticationError):
        return f"Redis at {place} refuses the credentials: {error}"
    if isinstance(error, ResponseError):
        return f"Redis at {place} answers with an error: {error}"
    return f"Redis at {place} cannot be reached: {error}"
