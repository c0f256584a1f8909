"""What Flower and other monitors are told of calls (Celery's task events) goes out in batches.

Celery sends what there is on every turn of the main loop, which each event wakes: with many calls that is
a message for every few events, and most of what events cost. Those of plain calls are written by template.
"""

import contextlib
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic, time
from typing import Any

from celery import bootsteps
from celery.utils.time import utcoffset
from redis.exceptions import RedisError

from goondan_tasks.messages import ToolCallResult
from workers.delivery.call_request import event_fields, sends_events
from workers.delivery.summary import summary, summary_of
from workers.job import Job

#: how long an event waits for company
FLUSH_SECONDS = 0.2

#: so many events do not wait any longer
MOST_EVENTS = 500

#: of so many plain calls the events wait for a broker that is away
MOST_CALLS = 3_000

#: as Celery writes them (celery/events/event.py ``Event``, celery/worker/request.py)
_EVENTS = (
    '{%(common)s,"type":"task-received","timestamp":%(received)r,"name":%(name)s,"args":"()",'
    '"kwargs":%(kwargs)s,"root_id":%(root)s,"parent_id":%(parent)s,"retries":0,"eta":null,"expires":null},'
    '{%(common)s,"type":"task-started","timestamp":%(started)r},'
    '{%(common)s,"type":"task-succeeded","timestamp":%(ended)r,"result":%(result)s,"runtime":%(runtime)r}'
)


class PlainEvents:
    """The events of plain calls, until they are sent; any thread may add some."""

    def __init__(self) -> None:
        self._written: list[str] = []

    def add(self, dispatcher: Any, ended: Sequence[tuple[Job, ToolCallResult | None]]) -> None:
        """Note plain calls that have ended, each with its failure."""
        if not sends_events(dispatcher) or len(self._written) > MOST_CALLS:
            return
        since_boot = time() - monotonic()
        sender = f'"hostname":{quoted(dispatcher.hostname)},"utcoffset":{utcoffset()},"pid":{dispatcher.pid}'
        for job, failure in ended:
            fields = event_fields(job)
            parent = fields["parent_id"]
            started = since_boot + job.begun_at
            self._written.append(
                _EVENTS
                % {
                    "common": f'{sender},"uuid":{quoted(job.id)},"clock":{dispatcher.clock.forward()}',
                    "received": since_boot + job.asked_at,
                    "name": quoted(fields["shadow"]),
                    "kwargs": quoted(fields["kwargsrepr"]),
                    "root": quoted(fields["root_id"]),
                    "parent": "null" if parent is None else quoted(parent),
                    "started": started,
                    "ended": started + job.duration_ms / 1000,
                    "result": quoted(summary_of(job) if failure is None else summary(failure)),
                    "runtime": job.duration_ms / 1000,
                }
            )

    def send(self, dispatcher: Any) -> None:
        """Publish what there is in one message; on the main thread. It stays while the broker is away."""
        if not self._written or dispatcher.producer is None:
            return
        count = len(self._written)
        with contextlib.suppress(RedisError, OSError):  # whatever else the worker asks of Redis tells of it
            dispatcher.producer.publish(
                f"[{','.join(self._written[:count])}]",
                content_type="application/json",
                content_encoding="utf-8",
                routing_key="task.multi",
                exchange=dispatcher.exchange.name,
                declare=[dispatcher.exchange],
                headers=dispatcher.headers,
                delivery_mode=dispatcher.delivery_mode,
            )
            del self._written[:count]


class TaskEvents(bootsteps.StartStopStep):
    """The consumer step that sends events; with our own pool."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        """Leave it to Celery where events come one by one."""
        return hasattr(consumer.pool, "events")

    def start(self, consumer: Any) -> None:
        """Let events wait; there is a new dispatcher after each reconnection."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = MOST_EVENTS
        dispatcher.on_send_buffered = None

        def flush() -> None:
            dispatcher.flush()
            consumer.pool.events.send(dispatcher)

        self._timer = consumer.timer.call_repeatedly(FLUSH_SECONDS, flush)

    def stop(self, consumer: Any) -> None:
        """Send what is left; what cannot be sent now goes out after the reconnection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            consumer.event_dispatcher.flush()
            consumer.pool.events.send(consumer.event_dispatcher)
