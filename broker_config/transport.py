"""A kombu transport for Redis that reserves messages in batches and loses none.

kombu's own transport takes a message with BRPOP and records it afterwards. A process that dies in between
loses the message, and each message costs three round trips. Here queues stay plain lists (Flower and LLEN
keep working), and one script acknowledges and reserves messages. Idle workers block on a *wake-up key*, a
list per queue. Producers of this package push to it, and so does a worker that leaves messages in a queue.
Plain Celery producers do not, so the blocking pop ends every half second.

The messages of a dead worker return to their queues after ``visibility_timeout`` seconds of Redis time.

``tests/integration/transport`` checks the internals of kombu 5.7 that this depends on.
"""

# celery-types lack most of kombu's internals
# mypy: disable-error-code="attr-defined, arg-type, assignment, union-attr, redundant-expr"

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty
from time import monotonic
from typing import Any

from kombu import Connection, serialization
from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps as kombu_dumps
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from broker_config import serializer
from broker_config.connections import require_writable
from broker_config.in_flight import BATCH, SLEEP_SECONDS, InFlight, ReservationFactory
from broker_config.queues import WAKE_UP_SUFFIX, wake_up_key
from broker_config.scripts import ScriptCall, answer_of, exchange, packet
from broker_config.sentinel import EncryptedMasterConnection, MasterConnection
from broker_config.task_message import read_envelope

logger = logging.getLogger(__name__)


#: kombu's names of the transports that are replaced, and ours
_REPLACED = {"redis": "Transport", "rediss": "Transport", "sentinel": "SentinelTransport"}


def use_reservations() -> None:
    """Use these transports for all brokers that are a Redis. For worker processes only."""
    for alias, transport in _REPLACED.items():
        kombu_transport.TRANSPORT_ALIASES[alias] = f"{__name__}:{transport}"
        # kombu keeps the class that it found first: a connection may have been made before
        kombu_transport._transport_cache.pop(alias, None)


def use_plain_json() -> None:
    """Read ``application/json`` messages as plain JSON. For worker processes only.

    kombu's decoder turns ``{"__type__": …, "__value__": …}`` into other types and refuses unknown ones
    (kombu/utils/json.py). A model's arguments could change, or their call could be lost.
    """
    serialization.register("json", kombu_dumps, serializer.decode, "application/json", "utf-8")


#: kombu's decoder turns it into a UUID
_MARKED = {"__type__": "uuid", "__value__": {"hex": "0" * 32}}


def require_registered(connection: Connection) -> None:
    """Check that :func:`use_reservations` and :func:`use_plain_json` have taken effect.

    Raises:
        RuntimeError: messages would be taken by kombu's own transport, which loses those of a worker that
            dies, or decoded by kombu's own decoder.
    """
    used = type(connection.transport)
    if not issubclass(used, Transport):
        raise RuntimeError(
            f"The worker would take messages with {used.__module__}:{used.__name__}, which loses those of a "
            f"worker that dies, and not with {__name__}:Transport. Another module has changed kombu's "
            "TRANSPORT_ALIASES since the start, or this version of kombu does not read them."
        )
    if serialization.loads(serializer.encode(_MARKED), "application/json", "utf-8") != _MARKED:
        raise RuntimeError(
            "The worker would decode application/json with kombu's decoder, which changes arguments. Another "
            "module has registered that decoder since the start."
        )


def _log_no_message(queue: str, data: bytes, reason: str) -> None:
    logger.error("dropped data that is not a message from queue %s: %s: %.200r", queue, reason, data)


class QoS(virtual.QoS):
    """The reservations of a channel. Acknowledgements are sent with the next trip."""

    restore_at_shutdown = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.acknowledged: list[str] = []
        self._acknowledged_at = 0.0
        self.returned: list[str] = []

    def can_consume(self) -> bool:
        """Return whether the channel itself waits for messages."""
        return self.channel.leave_to is None and super().can_consume()

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge with the next trip."""
        if not self.acknowledged:
            self._acknowledged_at = monotonic()
        self.acknowledged.append(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop the message, or with ``requeue`` put it back, with the next trip."""
        if not requeue:
            self.ack(delivery_tag)
            return
        self.returned.append(delivery_tag)
        super().ack(delivery_tag)

    @property
    def must_acknowledge(self) -> bool:
        """Whether acknowledgements have waited long enough and must be sent without a reservation."""
        return bool(self.acknowledged) and monotonic() - self._acknowledged_at >= SLEEP_SECONDS

    def restore_unacked(self) -> None:
        """Put back all unacknowledged messages, when the channel closes."""
        self.channel.in_flight.give_back(self.held()[::-1])
        self._delivered.clear()

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Renew our reservations, and put back the messages of dead workers."""
        in_flight = self.channel.in_flight
        in_flight.renew(self.held())
        in_flight.give_back(in_flight.overdue(self.channel.visibility_timeout))

    def held(self) -> list[str]:
        """Return the tags of unacknowledged messages."""
        self._flush()
        return list(self._delivered)


class Channel(kombu_redis.Channel):
    """A consumer's channel to its queues."""

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands: Redis = self._create_client()
        # not connected yet: if that failed here, the poller would already have a half-built channel
        self._connection = self._commands.connection_pool.make_connection()
        self._reservations = ReservationFactory()
        self.in_flight = InFlight(self._run)
        #: called for data that is not a message, with its queue, the data and the reason
        self.on_no_message: Callable[[str, bytes, str], object] = _log_no_message
        #: set if another part of the worker reads the queues, and delivers some messages here; called when
        #: the consumed queues have changed
        self.leave_to: Callable[[], object] | None = None
        #: the queues that may hold messages, in the order in which they are read
        self._hot: dict[str, None] = {}
        self._looked_at = monotonic()

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that are consumed now."""
        return tuple(self._active_queues)

    def deliver(self, tag: str, queue: str, data: bytes) -> None:
        """Deliver a message that was reserved for this channel under ``tag``."""
        self._take(tag, queue, data)

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Redis | None = None) -> Iterator[Redis]:
        """Yield always the same client; kombu makes a new one for every command."""
        yield client or self._commands

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Start consuming ``queue``, which may already hold messages."""
        self._hot[queue] = None
        tag = super().basic_consume(queue, *args, **kwargs)
        if self.leave_to is not None:
            self.leave_to()
        return tag

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop consuming a queue."""
        answer = super().basic_cancel(consumer_tag)
        if self.leave_to is not None:
            self.leave_to()
        return answer

    def exchange_messages(self) -> bool:
        """Acknowledge and reserve in one trip; return whether a message was delivered.

        Acknowledgements alone are delayed for a while, until there is something to reserve; nothing depends
        on them.
        """
        qos = self.qos
        if qos.returned:
            self._return()
        must_check_all = monotonic() - self._looked_at >= SLEEP_SECONDS
        if not (self._hot or qos.acknowledged or must_check_all):
            return False
        credit = self._credit() if self.leave_to is None else 0
        # also while wake-up keys never run empty: plain Celery producers do not fill them
        if credit and must_check_all:
            self._check_all()
        active = set(self._active_queues)
        queues = [queue for queue in self._hot if queue in active] if credit else []
        if not queues and active and not qos.must_acknowledge:
            return False
        return self._exchange(queues, credit)

    def _return(self) -> None:
        returned, self.qos.returned = self.qos.returned, []
        self.in_flight.give_back(returned)

    def _exchange(self, queues: Sequence[str], credit: int = 0) -> bool:
        if not queues and not self.qos.acknowledged:
            return False
        acknowledged, self.qos.acknowledged = self.qos.acknowledged, []
        reservation = self._reservations.make(queues, credit, acknowledged=acknowledged)
        emptied, taken = self._run(reservation.script_call)
        for number in emptied:
            self._hot.pop(queues[number], None)
        if queues and queues[0] in self._hot:  # the other queues come first next time
            del self._hot[queues[0]]
            self._hot[queues[0]] = None
        left = deque(zip(*[iter(taken)] * 4, strict=True))
        try:
            while left:
                tag, number, message, _ = left.popleft()
                self._take(tag.decode(), queues[number], message)
        finally:  # if one cannot be delivered, the others must not stay reserved
            self.in_flight.give_back([tag.decode() for tag, *_ in reversed(left)])
        return bool(taken)

    def _run(self, script_call: ScriptCall[Any]) -> Any:
        """Run a script without retries: a second reservation with the same tags would overwrite the first."""
        try:
            return exchange(self._connection, [script_call])[0]
        except RedisError:
            self._connection.disconnect()
            raise

    def close(self) -> None:
        """Send the delayed acknowledgements, and close."""
        if not self.closed:
            # else kombu would wait for a wake-up key; if that is lost, other workers notice within half a
            # second
            self._in_poll = None
            with contextlib.suppress(*self.connection_errors):
                self._return()
                self._exchange([])
        super().close()
        self._connection.disconnect()
        self._commands.close()

    def _credit(self) -> int:
        """Return how many messages may be reserved."""
        most = self.qos.prefetch_count
        held = len(self.qos._delivered) - len(self.qos._dirty)
        return min(BATCH, max(0, most - held)) if most else BATCH

    def _check_all(self) -> None:
        self._hot.update(dict.fromkeys(self.active_queues))
        self._looked_at = monotonic()

    def _take(self, tag: str, queue: str, data: bytes) -> None:
        try:
            message = read_envelope(data, queue)
        except ValueError as error:
            self.on_no_message(queue, data, str(error))
            self.qos.acknowledged.append(tag)
            return
        message["properties"] |= {"delivery_tag": tag}
        self.connection._deliver(message, queue)

    def _brpop_start(self, timeout: float | None = None) -> None:
        queues = self._queue_cycle.consume(len(self.active_queues))
        if not queues:
            return
        connection = self._in_poll = self.client.connection
        # redis-py's health check might reconnect, and the event loop would not know the new socket
        waiting = packet([("BRPOP", *map(wake_up_key, queues), SLEEP_SECONDS)])
        connection.send_packed_command([waiting], check_health=False)

    def pass_wake_up_on(self) -> None:
        """Wake another worker, because this one may not reserve the message."""
        woken = self._wake_up()
        if woken is not None:
            self._commands.lpush(*woken)

    def _wake_up(self) -> Any:
        """Return the answer to the blocking pop: wake-up key and value, or ``None`` after the timeout."""
        connection = self.client.connection
        try:
            woken = answer_of(connection)
            if isinstance(woken, RedisError):
                raise woken
            return woken
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._in_poll = None

    def _brpop_read(self, **options: Any) -> bool:
        woken = self._wake_up()
        if woken is None:
            self._check_all()
        else:
            queue = woken[0].decode().removesuffix(WAKE_UP_SUFFIX)
            self._hot[queue] = None
            self._queue_cycle.rotate(queue)
        if not self.exchange_messages():
            raise Empty
        return True


class Poller(kombu_redis.MultiChannelPoller):
    """The event loop's view of the channels."""

    def on_poll_start(self) -> None:
        """Exchange messages on every turn of the loop, before the loop blocks."""
        self._exchange()
        super().on_poll_start()

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Exchange messages for a consumer without an event loop; return when one was delivered."""
        if not self._exchange():
            super().get(callback, timeout)

    def on_readable(self, fileno: int) -> Any:
        """Read an answer. Unlike kombu, pass a wake-up on if this worker may not reserve messages."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if kind == "BRPOP" and channel._in_poll and not channel.qos.can_consume():
            return channel.pass_wake_up_on()
        return super().on_readable(fileno)

    def _update_brpop_polling(self) -> None:
        """Do nothing: wake-up keys are read even if no message may be reserved."""

    def _exchange(self) -> bool:
        delivered = False
        for channel in list(self._channels):
            while channel.exchange_messages():  # until credit or messages run out
                delivered = True
        return delivered


class Transport(kombu_redis.Transport):
    """The transport of our workers."""

    Channel = Channel

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
            require_writable(channel._commands)
        except RedisError:
            self._avail_channels.remove(channel)
            channel.close()
            raise
        return self


class SentinelChannel(Channel, kombu_redis.SentinelChannel):
    """A consumer's channel to queues at the master that Sentinels name."""

    connection_class = MasterConnection
    connection_class_ssl = EncryptedMasterConnection


class SentinelTransport(Transport):
    """The transport of our workers where Sentinels name the master."""

    default_port = kombu_redis.SentinelTransport.default_port
    Channel = SentinelChannel
