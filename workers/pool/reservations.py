"""What a worker takes off its queues (DESIGN "Concurrency"): the pool's lead reserves and claims calls.

A worker reserves its free slots only, so that no call waits here while another worker is idle. But a trip to
the broker costs more than a short call does; so while all calls are short, more are reserved. As soon as one
lasts, what waits for a slot goes back to its queue. See :mod:`workers.pool.lead`.
"""

from typing import Any

from celery import bootsteps

from broker_config.scripts import Companion
from broker_config.transport import Channel
from workers.pool.pool import CallPool
from workers.runtime import process_runtime


class Reservations(bootsteps.StartStopStep):
    """The consumer step that lets the lead take the consumer's queues; with our pool and our transport."""

    #: extensions may register tools before the worker is present
    requires = ("celery.worker.consumer.tasks:Tasks", "workers.pool.presence:Presence")

    def __init__(self, consumer: Any, **options: Any) -> None:
        #: the revision of the bundle whose terms the claims were told, its registry's version, and the agents
        self._told: tuple[str | None, int, tuple[str, ...]] | None = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        """Celery's own pools have no lead."""
        return isinstance(consumer.pool, CallPool)

    def start(self, consumer: Any) -> None:
        """Begin, and again after each reconnection; kombu's own transports keep to the slots."""
        channel, pool = consumer.task_consumer.channel, consumer.pool
        pool.consumer = consumer
        if not (isinstance(channel, Channel) and pool.lead):
            return
        channel.leave_to = pool.lead.look_again
        pool.channel = channel
        _prefetch_slots_only(consumer)
        self._told = None
        pool.lead.attach(consumer.hostname, lambda: channel.queues, lambda: self._terms(consumer))

    def stop(self, consumer: Any) -> None:
        """Take nothing until there is a connection again."""
        if consumer.pool.lead:
            consumer.pool.lead.detach()

    def _terms(self, consumer: Any) -> Companion | None:
        """Return the terms of the tools that there are, if they are others than before."""
        runtime = process_runtime()
        revisions = runtime.revisions
        # of all that the process serves: it may take up again what it has left
        current = revisions.active.ref, revisions.active.registry.version, revisions.served
        if current == self._told:
            return None
        self._told = current
        return runtime.delivery.companion(consumer.hostname, revisions.served)


def _prefetch_slots_only(consumer: Any) -> None:
    """Overrule a prefetch multiplier, which would reserve what no slot is free for."""
    consumer.prefetch_multiplier = 1
    consumer.initial_prefetch_count = consumer.qos.value = consumer.pool.num_processes
    consumer.qos.update()
