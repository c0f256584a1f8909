"""What Flower and other monitors are told of calls (Celery's task events) goes out in batches.

Celery sends what there is on every turn of the main loop, which each event wakes: with many calls that is
a message for every few events, and most of what events cost.
"""

from typing import Any

from celery import bootsteps

from workers.pool.pool import CallPool

#: how long an event waits for company
FLUSH_SECONDS = 0.1

#: so many events do not wait any longer
MOST_EVENTS = 500


class TaskEvents(bootsteps.StartStopStep):
    """The consumer step that sees to it; with our own pool."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        """Leave it to Celery where events come one by one."""
        return isinstance(consumer.pool, CallPool)

    def start(self, consumer: Any) -> None:
        """Let events wait; there is a new dispatcher after each reconnection."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = MOST_EVENTS
        dispatcher.on_send_buffered = None
        self._timer = consumer.timer.call_repeatedly(FLUSH_SECONDS, dispatcher.flush)

    def stop(self, consumer: Any) -> None:
        """Send what is left; what cannot be sent now goes out after the reconnection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            consumer.event_dispatcher.flush()
