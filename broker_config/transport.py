"""A kombu transport for Redis that reserves messages in batches and loses none.

kombu's own takes a message with BRPOP and indexes it afterwards; a process that dies in between loses
it, and each message costs three round trips. Here queues stay plain lists (Flower and LLEN keep
working), and one script acknowledges what is finished and reserves what is wanted. Idle workers
block on a *wake-up key*, a list per queue. Producers of this package push to it, and so does a worker that
leaves messages behind. A plain Celery producer does not, so the blocking pop ends every half second anyway.

The messages of a dead worker go back after ``visibility_timeout`` seconds of Redis time.

What this leans on inside kombu 5.7 is held by ``tests/integration/transport``.
"""

# celery-types know little of kombu's insides
# mypy: disable-error-code="attr-defined, arg-type, assignment, union-attr, redundant-expr"

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty
from time import monotonic
from typing import Any

from kombu import serialization
from kombu import transport as kombu_transport
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.json import dumps as kombu_dumps
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from broker_config import serializer
from broker_config.connections import require_writable
from broker_config.in_flight import BATCH, SLEEP_SECONDS, InFlight, Orders
from broker_config.queues import WAKE_UP_SUFFIX, wake_up_key
from broker_config.scripts import ScriptCall, answer_of, exchange, packet
from broker_config.task_message import read_envelope

logger = logging.getLogger(__name__)


def use_reservations() -> None:
    """Let this process reach ``redis://`` brokers through this transport. For worker processes only."""
    for alias in ("redis", "rediss"):
        kombu_transport.TRANSPORT_ALIASES[alias] = f"{__name__}:Transport"


def use_plain_json() -> None:
    """Let this process read ``application/json`` messages as plain JSON. For worker processes only.

    kombu's own decoder turns ``{"__type__": …, "__value__": …}`` into other types and refuses
    unknown ones (kombu/utils/json.py), so a model's arguments could change or make a call vanish.
    """
    serialization.register("json", kombu_dumps, serializer.decode, "application/json", "utf-8")


def _log_no_message(queue: str, data: bytes, reason: str) -> None:
    logger.error("dropped what is not a message from queue %s: %s: %.200r", queue, reason, data)


class QoS(virtual.QoS):
    """What this channel has reserved; acknowledgements wait for the next trip."""

    restore_at_shutdown = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.acknowledged: list[str] = []
        self._acknowledged_at = 0.0
        self.returned: list[str] = []

    def can_consume(self) -> bool:
        """Return whether this channel itself is to wait for messages."""
        return self.channel.leave_to is None and super().can_consume()

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge with the next trip."""
        if not self.acknowledged:
            self._acknowledged_at = monotonic()
        self.acknowledged.append(delivery_tag)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop the message, or put it back, with the next trip."""
        if not requeue:
            self.ack(delivery_tag)
            return
        self.returned.append(delivery_tag)
        super().ack(delivery_tag)

    @property
    def must_acknowledge(self) -> bool:
        """Whether acknowledgements have waited long enough for a reservation to travel with."""
        return bool(self.acknowledged) and monotonic() - self._acknowledged_at >= SLEEP_SECONDS

    def restore_unacked(self) -> None:
        """Put everything back that is not acknowledged, when the channel closes."""
        self.channel.in_flight.give_back(self.held()[::-1])
        self._delivered.clear()

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Renew our reservations, and put back those of dead workers."""
        in_flight = self.channel.in_flight
        in_flight.renew(self.held())
        in_flight.give_back(in_flight.overdue(self.channel.visibility_timeout))

    def held(self) -> list[str]:
        """Return the tags that are reserved and not acknowledged."""
        self._flush()
        return list(self._delivered)


class Channel(kombu_redis.Channel):
    """One consumer's way to its queues."""

    QoS = QoS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands: Redis = self._create_client()
        # not connected yet: a channel that fails from here on is polled already, and must be whole
        self._connection = self._commands.connection_pool.make_connection()
        self._orders = Orders()
        self.in_flight = InFlight(self._run)
        #: called with data that is not a message: its queue, the data, and why
        self.on_no_message: Callable[[str, bytes, str], object] = _log_no_message
        #: set if another part of the worker takes messages off the queues, and delivers some of them here: it
        #: called when the queues have changed
        self.leave_to: Callable[[], object] | None = None
        #: the queues that may hold messages, the one to look at first in front
        self._hot: dict[str, None] = {}
        self._looked_at = monotonic()

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that are consumed now."""
        return tuple(self._active_queues)

    def deliver(self, tag: str, queue: str, data: bytes) -> None:
        """Take a message that was reserved for this channel under ``tag``."""
        self._take(tag, queue, data)

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Redis | None = None) -> Iterator[Redis]:
        """Yield one client, always the same: kombu makes a new one for every command."""
        yield client or self._commands

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        """Consume ``queue``, which may hold messages already."""
        self._hot[queue] = None
        tag = super().basic_consume(queue, *args, **kwargs)
        if self.leave_to is not None:
            self.leave_to()
        return tag

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Consume a queue no longer."""
        answer = super().basic_cancel(consumer_tag)
        if self.leave_to is not None:
            self.leave_to()
        return answer

    def exchange_messages(self) -> bool:
        """Acknowledge and reserve in one trip; return whether a message was delivered.

        Acknowledgements alone wait a while for something to reserve: no other worker waits for them.
        """
        qos = self.qos
        if qos.returned:
            self._return()
        is_time_to_look = monotonic() - self._looked_at >= SLEEP_SECONDS
        if not (self._hot or qos.acknowledged or is_time_to_look):
            return False
        credit = self._credit() if self.leave_to is None else 0
        # wake-up keys that are filled without end must not keep it from queues whose producers fill none
        if credit and is_time_to_look:
            self._look_everywhere()
        active = set(self._active_queues)
        queues = [queue for queue in self._hot if queue in active] if credit else []
        if not queues and active and not qos.must_acknowledge:
            return False
        return self._travel(queues, credit)

    def _return(self) -> None:
        returned, self.qos.returned = self.qos.returned, []
        self.in_flight.give_back(returned)

    def _travel(self, queues: Sequence[str], credit: int = 0) -> bool:
        if not queues and not self.qos.acknowledged:
            return False
        acknowledged, self.qos.acknowledged = self.qos.acknowledged, []
        order = self._orders.order(queues, credit, acknowledged=acknowledged)
        emptied, taken = self._run(order.script_call)
        for number in emptied:
            self._hot.pop(order.queues[number], None)
        self._rotate(order.queues)
        left = deque(zip(*[iter(taken)] * 4, strict=True))
        try:
            while left:
                tag, number, message, _ = left.popleft()
                self._take(tag.decode(), order.queues[number], message)
        finally:  # the messages behind one that cannot be delivered would belong to no worker
            self.in_flight.give_back([tag.decode() for tag, *_ in reversed(left)])
        return bool(taken)

    def _run(self, script_call: ScriptCall[Any]) -> Any:
        """Run a script once: a second reservation under the same tags would lose those of the first."""
        try:
            return exchange(self._connection, [script_call])[0]
        except RedisError:
            self._connection.disconnect()
            raise

    def close(self) -> None:
        """Send the acknowledgements that still wait, and close."""
        if not self.closed:
            # kombu would wait here for the wake-up key; a lost wake-up costs the other workers half a second
            self._in_poll = None
            with contextlib.suppress(*self.connection_errors):
                self._return()
                self._travel([])
        super().close()
        self._connection.disconnect()
        self._commands.close()

    def _credit(self) -> int:
        """Return how many messages are wanted."""
        most = self.qos.prefetch_count
        held = len(self.qos._delivered) - len(self.qos._dirty)
        return min(BATCH, max(0, most - held)) if most else BATCH

    def _look_everywhere(self) -> None:
        self._hot.update(dict.fromkeys(self.active_queues))
        self._looked_at = monotonic()

    def _rotate(self, queues: list[str]) -> None:
        if queues and queues[0] in self._hot:
            del self._hot[queues[0]]
            self._hot[queues[0]] = None

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
        # redis-py's own check of the connection might open a new one, unknown to the event loop
        waiting = packet([("BRPOP", *map(wake_up_key, queues), SLEEP_SECONDS)])
        connection.send_packed_command([waiting], check_health=False)

    def pass_wake_up_on(self) -> None:
        """Wake another worker instead: this one has no credit for the message."""
        woken = self._wake_up()
        if woken is not None:
            self._commands.lpush(*woken)

    def _wake_up(self) -> Any:
        """Read what has ended the wait, or wait for it: a wake-up key and what it held, or time."""
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
            self._look_everywhere()
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
        """Do the same for a consumer without an event loop; return when something was delivered."""
        if not self._exchange():
            super().get(callback, timeout)

    def on_readable(self, fileno: int) -> Any:
        """Read what has come; kombu would withhold a wake-up without credit from workers that have some."""
        channel, kind = self._fd_to_chan.get(fileno, (None, None))
        if kind == "BRPOP" and channel._in_poll and not channel.qos.can_consume():
            return channel.pass_wake_up_on()
        return super().on_readable(fileno)

    def _update_brpop_polling(self) -> None:
        """Let wake-up keys be read without credit, too."""

    def _exchange(self) -> bool:
        delivered = False
        for channel in list(self._channels):
            while channel.exchange_messages():  # until credit or messages have run out
                delivered = True
        return delivered


class Transport(kombu_redis.Transport):
    """The transport of our workers."""

    Channel = Channel

    #: what Redis refuses now (it is a replica, full, busy, ...) it does later: a worker waits and connects
    #: again, as when it is away
    connection_errors = (*kombu_redis.Transport.connection_errors, ResponseError)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cycle = Poller()

    def establish_connection(self) -> Any:
        """Connect to a Redis that takes writes: without them a worker would fail at once, and connect again.

        Raises:
            redis.exceptions.RedisError: it cannot be reached, or takes none now.
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
