"""The connection of a worker that is Celery's: remote control, events, and no calls.

A worker's lead takes all messages of agents' queues (:mod:`broker_config.queue_reader`). This differs from
kombu's own transport in that a Redis that accepts no writes counts as one that is away, and that Sentinels
are asked as everywhere else. ``tests/integration/transport`` checks the internals of kombu 5.7 that this
depends on.
"""

# celery-types lack most of kombu's internals
# mypy: disable-error-code="attr-defined, assignment"

from typing import Any

from kombu import Connection
from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from redis.exceptions import RedisError, ResponseError

from broker_config.connections import require_writable
from broker_config.sentinel import EncryptedMasterConnection, MasterConnection

#: kombu's names of the transports that are replaced, and ours
_REPLACED = {"redis": "Transport", "rediss": "Transport", "sentinel": "SentinelTransport"}


def use_transport() -> None:
    """Use these transports for all brokers that are a Redis. For worker processes only."""
    for alias, transport in _REPLACED.items():
        kombu_transport.TRANSPORT_ALIASES[alias] = f"{__name__}:{transport}"
        # kombu keeps the class that it found first: a connection may have been made before
        kombu_transport._transport_cache.pop(alias, None)


def require_registered(connection: Connection) -> None:
    """Check that :func:`use_transport` has taken effect.

    Raises:
        RuntimeError: the worker would use kombu's own transport.
    """
    used = type(connection.transport)
    if not issubclass(used, Transport):
        raise RuntimeError(
            f"The worker would connect with {used.__module__}:{used.__name__}, which ends when Redis accepts "
            f"no writes, and not with {__name__}:Transport. Another module has changed kombu's "
            "TRANSPORT_ALIASES since the start, or this version of kombu does not read them."
        )


class Poller(kombu_redis.MultiChannelPoller):
    """The event loop's view of the channels."""

    def on_poll_init(self, poller: Any) -> None:
        """Look for no messages that kombu's own consumers have left: none of them reads agents' queues."""
        self.poller = poller


class Transport(kombu_redis.Transport):
    """The transport of our workers."""

    #: a Redis that refuses commands (a replica, full, busy, ...) is treated like one that is away: the worker
    #: waits and connects again
    connection_errors = (*kombu_redis.Transport.connection_errors, ResponseError)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def establish_connection(self) -> Any:
        """Connect to a Redis that accepts writes; otherwise a worker would fail and reconnect all the time.

        Raises:
            redis.exceptions.RedisError: it cannot be reached, or accepts no writes now.
        """
        super().establish_connection()
        channel = self._avail_channels[-1]
        try:
            with channel.conn_or_acquire() as redis:
                require_writable(redis)
        except RedisError:
            self._avail_channels.remove(channel)
            channel.close()
            raise
        return self


class SentinelChannel(kombu_redis.SentinelChannel):
    """A channel to the master that Sentinels name."""

    connection_class = MasterConnection
    connection_class_ssl = EncryptedMasterConnection


class SentinelTransport(Transport):
    """The transport of our workers where Sentinels name the master."""

    default_port = kombu_redis.SentinelTransport.default_port
    Channel = SentinelChannel
