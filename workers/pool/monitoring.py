"""Calls as Celery's remote control and its monitors (Flower) see them: views, made when they are asked for.

Events go out in batches, over the worker's own client: Celery would send each over a connection of kombu's.
Those of a short call are written by template when its result is stored. The beginning of any other call is
reported here, and its end when that is stored (:mod:`goondan_tasks.fleet.monitors`). A message that runs
nothing causes no events.
"""

from collections.abc import Callable, Sequence
from functools import partial
from json.encoder import encode_basestring_ascii as quoted
from time import monotonic, time
from typing import Any

from celery import bootsteps
from celery.utils.time import utcoffset
from celery.worker import state

from broker_config import serializer
from broker_config.queues import TOOL_CALL_TASK, is_events_queue
from goondan_tasks.contract.events import is_event, queue_of, task_of
from goondan_tasks.fleet.monitors import Monitors, failed, shown, shown_arguments, task_name
from goondan_tasks.ledger.record import CallRecord
from workers.job import Job

#: how many tool names are counted, and how long they may be: models make names up, and Celery never forgets
#: one
MOST_NAMES = 1_000
LONGEST_NAME = 200

#: how long events collect before they are sent
FLUSH_SECONDS = 0.2

#: for how many short calls the events are kept while the broker is away
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


def tell_claim(job: Job, dispatcher: Any, monitors: Monitors) -> None:
    """Tell monitors that a call has been claimed and will run here."""
    if not sends_events(dispatcher):
        return
    fields = event_fields(job)
    received = {
        "type": "task-received",
        "uuid": job.id,
        "name": fields["shadow"],
        "args": fields["argsrepr"],
        "kwargs": fields["kwargsrepr"],
        "root_id": fields["root_id"],
        "parent_id": fields["parent_id"],
        "retries": 0,
        "eta": None,
        "expires": None,
    }
    # a call that takes long may have been queued after it was asked for
    monitors.add(job.worker, received, _clock_time(job.begun_at) if job.begun_at else None)


def tell_start(job: Job, dispatcher: Any, monitors: Monitors, begun_at: float | None = None) -> None:
    """Tell monitors that the handler begins now, or has begun at that ``time.monotonic()``."""
    if sends_events(dispatcher):
        at = None if begun_at is None else _clock_time(begun_at)
        monitors.add(job.worker, {"type": "task-started", "uuid": job.id}, at)


def job_info(job: Job) -> dict[str, Any]:
    """Describe a claimed call for ``inspect active`` and ``inspect reserved``, without its arguments."""
    fields = event_fields(job)
    return {
        "id": job.id,
        "name": fields["shadow"],
        "args": fields["argsrepr"],
        "kwargs": fields["kwargsrepr"],
        "type": task_of_job(job),
        "hostname": job.worker,
        "delivery_info": {"exchange": "", "routing_key": job.queue},
        "worker_pid": None,
        "time_start": _clock_time(job.begun_at) if job.begun_at else None,
        "acknowledged": True,
    }


def scheduled_info(record: CallRecord, worker: str) -> dict[str, Any]:
    """Describe a scheduled call for ``inspect scheduled``, without its arguments."""
    call = record.call
    return {
        "eta": call.not_before,
        "priority": 6,
        "request": {
            "id": record.id,
            "name": task_name(call.agent_name, call.tool_name),
            "type": task_of(call) if is_event(call) else TOOL_CALL_TASK,
            "hostname": worker,
            "delivery_info": {"exchange": "", "routing_key": queue_of(call)},
            "time_start": None,
            "acknowledged": True,
            "worker_pid": None,
        },
    }


def task_of_job(job: Job) -> str:
    """Return the name of the task that a call is for Celery."""
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


def _clock_time(moment: float) -> float:
    """Return the time of a ``time.monotonic()`` in seconds since the epoch."""
    return time() - monotonic() + moment


class ShortEvents:
    """Keeps the events of short calls until they are sent; any thread may add some."""

    def __init__(self) -> None:
        self._written: list[str] = []

    def add(self, dispatcher: Any, jobs: Sequence[Job]) -> None:
        """Write the events of short calls that have ended."""
        if not sends_events(dispatcher) or len(self._written) > MOST_CALLS:
            return
        now, since_boot = time(), time() - monotonic()
        sender = f'"hostname":{quoted(dispatcher.hostname)},"utcoffset":{utcoffset()},"pid":{dispatcher.pid}'
        for job in jobs:
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
                    "end": _end_of(job),
                }
            )

    def send(self, publish: Callable[[bytes], bool]) -> None:
        """Publish all events in one message, on the main thread; they are kept while the broker is away."""
        count = len(self._written)
        if count and publish(f"[{','.join(self._written[:count])}]".encode()):
            del self._written[:count]


def _end_of(job: Job) -> str:
    seconds, has_begun = job.duration_ms / 1000, job.started_at is not None
    if job.error is None:
        return _SUCCEEDED % (quoted(f"ok {shown(job.output, job.output_text)}"), seconds)
    fields = failed(job.error, seconds if has_begun else None, has_begun=has_begun)
    return serializer.encode(fields)[1:-1].decode()


class TaskEvents(bootsteps.StartStopStep):
    """The consumer step that sends events of calls."""

    requires = ("celery.worker.consumer.events:Events",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timer: Any = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Send events in batches; there is a new dispatcher after each reconnection."""
        flush = partial(consumer.pool.flush_events, consumer.event_dispatcher)
        self._timer = consumer.timer.call_repeatedly(FLUSH_SECONDS, flush)

    def stop(self, consumer: Any) -> None:
        """Send the remaining events; those that cannot be sent go out after the reconnection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            consumer.pool.flush_events(consumer.event_dispatcher)
