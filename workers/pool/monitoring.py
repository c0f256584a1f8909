"""Calls as Celery's bookkeeping, its remote control and its monitors (Flower) see them.

Celery's own ``Request`` does far more than a call needs, at a fifth of the cost of a call. Events go out in
batches: Celery itself would send them on every turn of the main loop, which each event wakes. Those of a
plain call are written by template when its result is stored. The beginning of any other call is reported
here, and its end when that is stored (:mod:`goondan_tasks.fleet.monitors`). A message that runs nothing
causes no events.
"""

import contextlib
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic, time
from typing import Any

import structlog
from celery import bootsteps
from celery.utils.time import utcoffset
from celery.worker import state
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.queues import TOOL_CALL_TASK, agent_of, is_events_queue
from broker_config.task_message import ORIGIN
from goondan_tasks.contract.events import DEFAULT_INSTANCE, TOOL_OF_TASK, task_of
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.fleet.monitors import Monitors, ended, shown, shown_arguments, task_name
from workers.concurrency.slots import ReleasedSlot
from workers.delivery.incoming import Incoming, carried
from workers.job import Job

logger = structlog.get_logger(__name__)

#: how many tool names are counted, and how long they may be: models make names up, and Celery never forgets
#: one
MOST_NAMES = 1_000
LONGEST_NAME = 200

#: how long events collect before they are sent
FLUSH_SECONDS = 0.2

#: how many events are sent without waiting for more
MOST_EVENTS = 500

#: for how many plain calls the events are kept while the broker is away
MOST_CALLS = 3_000

#: events as Celery writes them (celery/events/event.py ``Event``, celery/worker/request.py)
_RECEIVED = (
    '{%(common)s,"type":"task-received","timestamp":%(received)r,"name":%(name)s,"args":"()",'
    '"kwargs":%(kwargs)s,"root_id":%(root)s,"parent_id":%(parent)s,"retries":0,"eta":null,"expires":null},'
)
_STARTED = '{%(common)s,"type":"task-started","timestamp":%(started)r},'
_ENDED = '{%(common)s,"timestamp":%(ended)r,%(end)s}'
_EVENTS = _RECEIVED + _STARTED + _ENDED
_SUCCEEDED = '"type":"task-succeeded","result":%s,"runtime":%r'


class CallRequest:
    """A message or a claimed call, as a request of Celery (celery/worker/{state,control}.py)."""

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_consumer",
        "_headers",
        "_message",
        "acknowledged",
        "eventer",  # set by Celery after a reconnection (celery/worker/consumer/events.py ``start``)
        "has_ended",
        "id",
        "incoming",
        "job",
        "name",
        "released_slot",
        "task_name",
        "time_start",
    )

    def __init__(self, incoming: Incoming, headers: Mapping[str, Any], consumer: Any) -> None:
        self.incoming = incoming
        self.id = incoming.id
        self.task_name = incoming.task
        #: the name of the tool if the headers have it
        shadow = headers.get("shadow")
        self.name: str = shadow if shadow and isinstance(shadow, str) else self.task_name
        #: the claimed call, if it was claimed as it was reserved: then there is no message
        self.job: Job | None = None
        self.acknowledged = False
        #: whether its slot is free again
        self.has_ended = False
        #: the slot of a call that waits, or has waited
        self.released_slot: ReleasedSlot | None = None
        self.time_start: float | None = None
        self._headers = headers
        self._message: Any = None
        self._consumer = consumer
        self._arrived = time()

    @classmethod
    def of_message(cls, message: Any, consumer: Any) -> "CallRequest":
        """Make the request of a message, which must be acknowledged."""
        incoming = incoming_of(message)
        request = cls(incoming, {**message.headers, **shown_headers(incoming)}, consumer)
        request._message = message
        return request

    @classmethod
    def of_job(cls, job: Job, consumer: Any) -> "CallRequest":
        """Make the request of a claimed call."""
        incoming = Incoming(job.id, job.queue, job.read(), _task(job), claimed=job.original)
        request = cls(incoming, event_fields(job), consumer)
        request.job = job
        request.acknowledged = True
        if job.begun_at:  # a plain call that takes long; it may have been queued after it was asked for
            request._arrived = _clock_time(job.begun_at)
        return request

    @property
    def worker(self) -> str:
        """The name of this worker."""
        hostname: str = self._consumer.hostname
        return hostname

    @property
    def task(self) -> Any:
        """The Celery task."""
        return self._consumer.app.tasks[self.task_name]

    @property
    def log_fields(self) -> JsonObject:
        """The fields of each log line about this call; some are missing if it cannot be read."""
        if self.job is not None:
            return self.job.log_fields.known()
        return self.incoming.log_fields(self.worker)

    def reserve(self) -> None:
        """Add it to the reserved requests."""
        state.requests[self.id] = self
        state.reserved_requests.add(self)

    def accept(self) -> None:
        """Add it to the active requests."""
        self.time_start = time()
        state.active_requests.add(self)
        state.reserved_requests.add(self)  # from which a lost connection has removed it if it had not begun
        count(self.name, self.task_name)

    def tell_claim(self, monitors: Monitors) -> None:
        """Tell monitors that the call has been claimed and will run here."""
        if not sends_events(self._consumer.event_dispatcher):
            return
        headers = self._headers
        received = {
            "type": "task-received",
            "uuid": self.id,
            "name": self.name,
            "args": headers.get("argsrepr"),
            "kwargs": headers.get("kwargsrepr"),
            "root_id": headers.get("root_id"),
            "parent_id": headers.get("parent_id"),
            "retries": 0,
            "eta": None,
            "expires": None,
        }
        monitors.add(self.worker, received, self._arrived)

    def tell_start(self, monitors: Monitors, begun_at: float | None = None) -> None:
        """Tell monitors that the handler begins now, or has begun at that ``time.monotonic()``."""
        if sends_events(self._consumer.event_dispatcher):
            at = None if begun_at is None else _clock_time(begun_at)
            monitors.add(self.worker, {"type": "task-started", "uuid": self.id}, at)

    def end(self) -> None:
        """Remove it from Celery's requests; its message is acknowledged separately."""
        state.requests.pop(self.id, None)
        state.active_requests.discard(self)
        state.reserved_requests.discard(self)  # a worker that stops waits until there are none

    def acknowledge(self) -> None:
        """Acknowledge the message; on the main thread only."""
        if not self.acknowledged:
            self.acknowledged = True
            self._message.ack_log_error(logger, self._consumer.connection_errors)

    def reject(self, requeue: bool = False) -> None:
        """Requeue the message or drop it; on the main thread only."""
        if not self.acknowledged:
            self.acknowledged = True
            self._message.reject_log_error(logger, self._consumer.connection_errors, requeue)
            state.requests.pop(self.id, None)
            state.reserved_requests.discard(self)

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Describe it for ``inspect active`` and ``inspect reserved``, without its arguments."""
        return {
            **_info(self.id, self._headers, self.task_name, self.incoming.queue, self.worker),
            "name": self.name,
            "time_start": self.time_start,
            "acknowledged": self.acknowledged,
        }

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Refuse to terminate a call: it shares its process with others."""
        logger.warning("call.not_terminated", **self.log_fields, what_to_do=f"goondan cancel {self.id}")

    cancel = terminate


def job_info(job: Job, worker: str) -> dict[str, Any]:
    """Describe a claimed call for ``inspect active`` and ``inspect reserved``."""
    fields = event_fields(job)
    return {
        **_info(job.id, fields, _task(job), job.queue, worker),
        "name": fields["shadow"],
        "time_start": _clock_time(job.begun_at) if job.begun_at else None,
        "acknowledged": True,
    }


def _info(call_id: str, headers: Mapping[str, Any], task: str, queue: str, worker: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "args": headers.get("argsrepr"),
        "kwargs": headers.get("kwargsrepr"),
        "type": task,
        "hostname": worker,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "worker_pid": None,
    }


def _task(job: Job) -> str:
    return task_of(job.original) if is_events_queue(job.queue) else TOOL_CALL_TASK


def count(name: str, task_name: str) -> None:
    """Count a call for Celery, under the name of its tool unless there are too many names."""
    is_known = name in state.total_count or (
        len(state.total_count) < MOST_NAMES and len(name) <= LONGEST_NAME
    )
    state.total_count[name if is_known else task_name] += 1
    state.all_total_count[0] += 1


def sends_events(dispatcher: Any) -> bool:
    """Return whether task events are sent for calls."""
    if dispatcher is None or not dispatcher.enabled:
        return False
    return not dispatcher.groups or "task" in dispatcher.groups  # else the dispatcher drops them


def event_fields(job: Job) -> dict[str, Any]:
    """Return the event fields of a claimed call that monitors show."""
    call = job.read()
    tool = str(call.get("toolName"))
    return {
        "shadow": task_name(job.agent, tool),
        "argsrepr": "()",
        "kwargsrepr": shown_arguments(
            tool, job.agent, call.get("instanceKey"), call.get("args"), job.args_text
        ),
        "root_id": call.get("rootId") or job.id,
        "parent_id": call.get("parentId"),
    }


def shown_headers(incoming: Incoming) -> dict[str, str]:
    """Return the headers of a message that monitors show; they replace those of the producer."""
    wire = incoming.wire if isinstance(incoming.wire, Mapping) else {}
    agent = agent_of(incoming.queue)
    named = TOOL_OF_TASK[incoming.task] if incoming.is_event else wire.get("toolName")
    tool = named if isinstance(named, str) else ""
    args = wire if incoming.is_event else wire.get("args")
    instance = wire.get("toInstanceKey" if incoming.is_event else "instanceKey")
    return {
        "shadow": task_name(agent, tool),
        "argsrepr": "()",
        "kwargsrepr": shown_arguments(tool, agent, instance or DEFAULT_INSTANCE, args),
    }


def _clock_time(moment: float) -> float:
    """Return the time of a ``time.monotonic()`` in seconds since the epoch."""
    return time() - monotonic() + moment


def incoming_of(message: Any, *, is_readable: bool = True) -> Incoming:
    """Return the content of a message; if it cannot be read, only where it came from."""
    task = message.headers["task"]
    wire = carried(task, message.payload[1]) if is_readable else None
    queue, traceparent = message.delivery_info.get("routing_key") or "", message.headers.get("traceparent")
    was_stored = message.headers.get("origin") == ORIGIN
    return Incoming(message.headers["id"], queue, wire, task, traceparent, was_stored=was_stored)


class PlainEvents:
    """Keeps the events of plain calls until they are sent; any thread may add some."""

    def __init__(self) -> None:
        self._written: list[str] = []

    def add(self, dispatcher: Any, ended: Sequence[tuple[Job, ToolCallResult | None]]) -> None:
        """Write the events of plain calls that have ended, each with its failure if it has failed."""
        if not sends_events(dispatcher) or len(self._written) > MOST_CALLS:
            return
        now, since_boot = time(), time() - monotonic()
        sender = f'"hostname":{quoted(dispatcher.hostname)},"utcoffset":{utcoffset()},"pid":{dispatcher.pid}'
        for job, failure in ended:
            fields = event_fields(job)
            parent = fields["parent_id"]
            started = since_boot + job.begun_at if job.begun_at else now  # it has not, if it was refused
            self._written.append(
                (_EVENTS if job.begun_at else _RECEIVED + _ENDED)
                % {
                    "common": f'{sender},"uuid":{quoted(job.id)},"clock":{dispatcher.clock.forward()}',
                    "received": since_boot + job.asked_at,
                    "name": quoted(fields["shadow"]),
                    "kwargs": quoted(fields["kwargsrepr"]),
                    "root": quoted(fields["root_id"]),
                    "parent": "null" if parent is None else quoted(parent),
                    "started": started,
                    "ended": started + job.duration_ms / 1000,
                    "end": _end_of(job, failure),
                }
            )

    def send(self, dispatcher: Any) -> None:
        """Publish all events in one message, on the main thread; they are kept while the broker is away."""
        if not self._written or dispatcher.producer is None:
            return
        count = len(self._written)
        with contextlib.suppress(RedisError, OSError):  # other requests of the worker log this
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


def _end_of(job: Job, failure: ToolCallResult | None) -> str:
    if failure is None:
        return _SUCCEEDED % (quoted(f"ok {shown(job.output, job.output_text)}"), job.duration_ms / 1000)
    return serializer.encode(ended(failure))[1:-1].decode()


class TaskEvents(bootsteps.StartStopStep):
    """The consumer step that sends events."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Send events in batches; there is a new dispatcher after each reconnection."""
        dispatcher = consumer.event_dispatcher
        dispatcher.buffer_limit = MOST_EVENTS
        dispatcher.on_send_buffered = None

        def flush() -> None:
            dispatcher.flush()
            consumer.pool.flush_events(dispatcher)

        self._timer = consumer.timer.call_repeatedly(FLUSH_SECONDS, flush)

    def stop(self, consumer: Any) -> None:
        """Send the remaining events; those that cannot be sent go out after the reconnection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            consumer.event_dispatcher.flush()
            consumer.pool.flush_events(consumer.event_dispatcher)
