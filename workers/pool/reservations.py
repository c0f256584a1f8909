"""What a worker reserves (DESIGN "Concurrency"), and that calls are claimed in the same trip.

A worker reserves its free places only, so that no call waits here while another worker is idle. But a
trip to the broker costs more than a short call does; so while all calls are short, more are reserved.
As soon as one lasts, what waits for a place goes back to its queue.
"""

from collections.abc import Callable
from typing import Any, cast

from celery import bootsteps

from broker_config.transport import Channel, QoS
from workers.pool.pool import CallPool
from workers.runtime import process_runtime

#: how many calls are reserved beyond the free places
EXTRA = 64

LOOK_SECONDS = 0.05

#: so many calls must have ended between two looks
MANY = 4


class Reservations(bootsteps.StartStopStep):
    """The consumer step that sees to it; with our pool and our transport."""

    #: extensions may register tools before the worker is present
    requires = ("celery.worker.consumer.tasks:Tasks", "workers.pool.presence:Presence")

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timer: Any = None
        self._qos: Any = None
        self._accompany: Callable[[], None] = lambda: None
        #: the revision of the bundle whose terms the claims were told, its registry's version, and the agents
        self._told: tuple[str | None, int, tuple[str, ...]] | None = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        """Celery's own pools have no backlog that could be given back."""
        return isinstance(consumer.pool, CallPool)

    def start(self, consumer: Any) -> None:
        """Begin; kombu's own transports keep to the places, and calls are claimed afterwards."""
        channel = consumer.task_consumer.channel
        if isinstance(channel, Channel):
            # of all that the process serves: it may take up again what it has left
            self._accompany = lambda: channel.accompany(
                process_runtime().delivery.companion(consumer.hostname, process_runtime().revisions.served)
            )
            self._told = None
            self._tell_terms()
            self._qos = qos = cast(QoS, channel.qos)
            channel.settle = consumer.pool.acknowledge
            consumer.pool.may_wait = lambda: qos.has_much_credit
            _prefetch_places_only(consumer)
            self._timer = consumer.timer.call_repeatedly(LOOK_SECONDS, self._look, (consumer.pool,))

    def stop(self, consumer: Any) -> None:
        """Reserve no more than the places."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._qos.extra = 0
            consumer.pool.may_wait = lambda: False

    def _tell_terms(self) -> None:
        """Let claims know the terms of the tools that there are."""
        revisions = process_runtime().revisions
        current = revisions.active.ref, revisions.active.registry.version, revisions.served
        if current != self._told:
            self._told = current
            self._accompany()

    def _look(self, pool: CallPool) -> None:
        self._tell_terms()
        pace = pool.take_pace()
        self._qos.extra = EXTRA if pace.ended >= MANY and pace.is_quick else 0
        if not self._qos.extra:
            pool.return_backlog()


def _prefetch_places_only(consumer: Any) -> None:
    """Overrule a prefetch multiplier: what it reserves goes back at once, and would be reserved again."""
    consumer.prefetch_multiplier = 1
    consumer.initial_prefetch_count = consumer.qos.value = consumer.pool.num_processes
    consumer.qos.update()
