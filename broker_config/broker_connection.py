"""A worker's connection to its broker: short pauses between attempts, and no wait for a reply."""

import logging
from collections.abc import Callable
from typing import Any, Self

from celery.app.amqp import AMQP
from celery.app.control import Control as CeleryControl
from kombu import Connection, Consumer, Exchange, Producer, pidbox
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

#: The pause before another attempt: the first, the increase, and the longest, in seconds. kombu's (2, 2 and
#: 30) are longer than many outages, and a call that a limit has admitted would lose its turn.
PATIENCE = {"interval_start": 0.2, "interval_step": 0.4, "interval_max": 3.0}


class BrokerConnection(Connection):
    """A connection that is restored soon after the broker is back."""

    def ensure_connection(
        self, errback: Callable[[Exception, float], object] | None = None, *args: Any, **kwargs: Any
    ) -> Self:
        """Connect, with retries (kombu/connection.py ``ensure_connection``).

        ``errback`` is called once for each reason, not for each attempt.

        Raises:
            kombu.exceptions.OperationalError: the caller's limit of attempts or time was reached.
        """
        reported: set[str] = set()

        def report_once(error: Exception, interval: float) -> None:
            if errback is not None and str(error) not in reported:
                reported.add(str(error))
                errback(error, interval)

        super().ensure_connection(report_once, *args, **(PATIENCE | kwargs))
        return self


class QueueNames(Consumer):
    """The queues of a worker as Celery knows them; their messages are taken by the worker's lead."""

    def consume(self, no_ack: bool | None = None) -> None:
        """Take no messages."""


class Amqp(AMQP):
    """Celery's messaging over such connections."""

    Connection = BrokerConnection
    Consumer = QueueNames


class ReplyProducer(Producer):
    """Sends each answer once: kombu would try until Redis accepts writes, on the thread that beats."""

    def publish(self, *args: Any, **options: Any) -> Any:
        """Publish (kombu/messaging.py ``publish``).

        Raises:
            redis.exceptions.RedisError: Redis does not take it.
        """
        return super().publish(*args, **{**options, "retry": False})


class Mailbox(pidbox.Mailbox):
    """Where remote control's commands arrive and are answered."""

    def _publish_reply(
        self,
        reply: Any,
        exchange: str | Exchange,
        routing_key: str,
        ticket: str,
        channel: Any = None,
        producer: Producer | None = None,
        **options: Any,
    ) -> None:
        producer = producer or ReplyProducer(channel, auto_declare=False)
        try:
            super()._publish_reply(reply, exchange, routing_key, ticket, channel, producer, **options)
        except RedisError as error:  # who has asked waits a second or so
            logger.warning("Redis does not take the answer to a remote-control command: %s", error)


class Control(CeleryControl):
    """Celery's remote control with such mailboxes."""

    Mailbox = Mailbox
