"""Celery's consumer: remote control, heartbeat, mingle and gossip. Calls are taken by the lead.

A worker reserves no more messages than it has free slots, so that no call waits while another worker is idle.
While all calls are short it reserves more, since a trip to the broker costs more than a short call does. As
soon as one takes long, those that wait for a slot return to their queue. See :mod:`workers.pool.lead`.
"""

from typing import Any

from celery import bootsteps
from celery.events.dispatcher import EventDispatcher as CeleryEventDispatcher
from celery.worker.consumer import Consumer as CeleryConsumer

from broker_config import serializer
from broker_config.options import celery_url
from broker_config.scripts import ClaimOnReserve
from broker_config.settings import Settings, hidden_password
from broker_config.transport import require_registered, use_transport
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.fleet.pauses import Paused
from workers.pool.pool import CallPool
from workers.pool.refusal import refuse
from workers.runtime import process_runtime


class EventDispatcher(CeleryEventDispatcher):
    """Sends Celery's own events, those of the worker: online, heartbeat, offline.

    One that Redis does not take is dropped, since the next heartbeat says the same. Celery's dispatcher would
    wait for a connection on the main thread, for as long as Redis accepts no writes.
    """

    def _publish(self, event: Any, _: Any, routing_key: str, **__: Any) -> None:
        process_runtime().monitors.publish(serializer.encode(event), routing_key)


class Consumer(CeleryConsumer):
    """Celery's consumer without messages of its own: it knows the queues of which the lead takes them."""

    # celery-types do not know it
    pool: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the consumer of a pool.

        Raises:
            SystemExit: the pool or the broker is not ours.
        """
        # not in a signal of Celery's, which goes on after an error of its receivers
        require_pool(kwargs.get("pool"))
        use_transport()
        # its statistics: the lead takes as many as there are slots
        kwargs |= {"prefetch_multiplier": 1, "initial_prefetch_count": kwargs["pool"].num_processes}
        super().__init__(*args, **kwargs)
        events: Any = self.app.events
        events.Dispatcher = self.app.subclass_with_self(EventDispatcher, reverse="events.Dispatcher")
        require_broker(self.app.conf.broker_read_url, Settings.load().redis_url)

    def connection_for_read(self, heartbeat: float | None = None) -> Any:
        """Connect to the broker.

        Raises:
            RuntimeError: the connection is not ours; the worker ends.
        """
        connection = super().connection_for_read(heartbeat)
        require_registered(connection)
        return connection

    def add_task_queue(self, *args: Any, **options: Any) -> Any:
        """Take the messages of another queue."""
        super().add_task_queue(*args, **options)
        self.pool.lead.look_again()

    def cancel_task_queue(self, queue: Any) -> None:
        """Take no more messages of a queue."""
        super().cancel_task_queue(queue)
        self.pool.lead.look_again()


def require_pool(pool: object) -> None:
    """Refuse a worker that was started with one of Celery's own pools.

    Raises:
        SystemExit: it was.
    """
    if not isinstance(pool, CallPool):
        kind = type(pool).__module__.rpartition(".")[2]
        refuse(
            ConfigError(
                f"Calls are not carried out by Celery's pool {kind}: it would run them without their limits, "
                "leases and cancels.",
                suggestion="Leave out -P/--pool. For handlers that hold the interpreter, set "
                "`isolation: process` on their Tool; for more calls at once, raise --concurrency.",
            )
        )


def require_broker(named: str, redis_url: str) -> None:
    """Refuse a worker that Celery would let take messages from elsewhere, by ``-b`` or its own variables.

    Raises:
        SystemExit: ``named``, Celery's broker, is not the Redis at ``redis_url``.
    """
    if named != celery_url(redis_url):
        refuse(
            ConfigError(
                f"Celery was given the broker {hidden_password(named)}, but calls lie in the Redis or Valkey "
                f"of GOONDAN_REDIS_URL, {hidden_password(redis_url)}.",
                suggestion="Leave out -b/--broker, unset CELERY_BROKER_URL and CELERY_BROKER_READ_URL, and "
                "name the server in GOONDAN_REDIS_URL.",
            )
        )


class Reservations(bootsteps.StartStopStep):
    """The consumer step that lets the lead take the consumer's queues."""

    #: extensions may register tools before the worker is present
    requires = ("celery.worker.consumer.tasks:Tasks", "workers.pool.heartbeat:Heartbeat")

    def __init__(self, consumer: Any, **options: Any) -> None:
        #: what the current terms are made of: the revision of the bundle, its registry's version, the agents,
        #: what is paused
        self._told: tuple[str | None, int, tuple[str, ...], Paused] | None = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Attach the lead, also after each reconnection."""
        self._told = None
        queues = consumer.app.amqp.queues
        consumer.pool.attach(consumer, lambda: tuple(queues.consume_from), lambda: self._terms(consumer))

    def stop(self, consumer: Any) -> None:
        """Take nothing until there is a connection again."""
        consumer.pool.lead.detach()

    def _terms(self, consumer: Any) -> ClaimOnReserve | None:
        """Return the terms on which calls are claimed, if they have changed."""
        runtime = process_runtime()
        revisions = runtime.revisions
        # for all agents that the process serves: it may resume a paused queue
        active, paused = revisions.active, runtime.limiter.paused
        current = active.ref, active.registry.version, revisions.served, paused
        if current == self._told:
            return None
        self._told = current
        return runtime.delivery.claim_on_reserve(consumer.hostname, revisions.served)
