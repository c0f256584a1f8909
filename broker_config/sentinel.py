"""Connections to the master that Sentinels name; each new connection asks them again."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

from collections.abc import Mapping
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from broker_config.refusals import MasterUnknownError
from broker_config.sentinel_url import SentinelUrl

#: how long one silent Sentinel is waited for, and all of them
_SECONDS = 1.0
_ALL_SECONDS = 3.0


class MasterConnection(Connection):
    """A connection that asks the Sentinels each time it is opened.

    redis-py's own goes back to the old master when a command is repeated over it.
    """

    def __init__(self, *, connection_pool: Any, **options: Any) -> None:
        self.connection_pool = connection_pool
        super().__init__(**options)

    def _connect(self) -> Any:
        self.host, self.port = self.connection_pool.get_master_address()
        return super()._connect()


class EncryptedMasterConnection(MasterConnection, SSLConnection):
    """The same with TLS."""


class _Sentinels(Sentinel):
    """Asks the Sentinels in turn, beginning with the one that answered last; no connection to them stays."""

    sentinels: list[Redis]

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the master's address (redis/sentinel.py ``discover_master``, with reasons).

        Raises:
            MasterUnknownError: each one knows no such service, or demands a password.
            redis.exceptions.ConnectionError: none can be reached, or they hold the master for dead.
        """
        reasons: list[str] = []
        is_fixed = False
        has_waited = False
        for sentinel in tuple(self.sentinels):
            options = sentinel.connection_pool.connection_kwargs
            place = f"the Sentinel at {options['host']}:{options['port']}"
            try:
                state: dict[str, Any] = sentinel.execute_command("SENTINEL MASTER", service_name)
            except AuthenticationError:
                is_fixed = True
                reasons.append(
                    f"{place} demands a password or another one: ?sentinel_password=… in the URL names it"
                )
            except ResponseError as error:
                is_fixed = True
                reasons.append(_explained(place, service_name, str(error)))
            except RedisError as error:
                has_waited = True
                reasons.append(f"{place} cannot be reached ({error})")
            else:
                if not (state["is_sdown"] or state["is_odown"]):
                    self.sentinels.sort(key=lambda one: one is not sentinel)
                    return str(state["ip"]), int(state["port"])
                has_waited = True
                reasons.append(f"{place} holds the master for dead, and a failover has not ended")
            finally:  # other threads may be asking
                sentinel.connection_pool.disconnect(inuse_connections=False)
        kind = MasterUnknownError if is_fixed and not has_waited else RedisConnectionError
        raise kind("; ".join(reasons))


def _explained(place: str, service: str, said: str) -> str:
    if "No such master" in said:
        return f"{place} watches no service {service!r}"
    if "unknown command" in said.lower():
        return f"{place} is no Sentinel but a Redis: use redis://"
    return f"{place} answers with an error ({said})"


def sentinel_settings(url: SentinelUrl) -> dict[str, Any]:
    """Return the options of redis-py for connections to the Sentinels."""
    seconds = min(_SECONDS, _ALL_SECONDS / len(url.sentinels))
    settings: dict[str, Any] = {
        "socket_timeout": seconds,
        "socket_connect_timeout": seconds,
        "retry": Retry(NoBackoff(), 0),
        "username": url.sentinel_username,
        "password": url.sentinel_password,
    }
    return {**settings, "ssl": True, **tls_options(url)} if url.is_encrypted else settings


def tls_options(url: SentinelUrl) -> dict[str, Any]:
    """Return the options of TLS in the URL; by default the certificate is verified."""
    if not url.is_encrypted:
        return {}
    given = {name: value for name, value in parse_url(url.of_master).items() if name.startswith("ssl_")}
    return {"ssl_cert_reqs": "required", **given}


def sentinel_client(url: SentinelUrl, options: Mapping[str, Any]) -> Redis:
    """Make a client for the master without connecting; ``options`` are those of its connections.

    Raises:
        TypeError, ValueError: an option of the URL is unknown, or has an invalid value.
    """
    given = parse_url(url.of_master)
    for name in ("host", "port", "connection_class"):
        given.pop(name, None)
    kind = EncryptedMasterConnection if url.is_encrypted else MasterConnection
    sentinels = _Sentinels(url.sentinels, sentinel_kwargs=sentinel_settings(url))
    pool = SentinelConnectionPool(
        url.service, sentinels, **{**options, **given, **tls_options(url), "connection_class": kind}
    )
    return Redis.from_pool(pool)
