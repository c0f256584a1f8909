"""A call's or an event's message while it is here, as Celery's bookkeeping and remote control see it.

Celery's own ``Request`` does far more than a call needs: it made up a fifth of what a call costs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic, time
from typing import Any

import structlog
from celery.worker import state

from broker_config.transport import COMPANION, Channel
from goondan_tasks.ledger.record import Verdict
from goondan_tasks.messages import ToolCallResult
from workers.concurrency.places import Absence
from workers.delivery.incoming import Incoming, carried
from workers.delivery.summary import summary

logger = structlog.get_logger(__name__)

#: so many names of tools are counted, and no longer ones: models make names up, and counts are kept for ever
MOST_NAMES = 1_000
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Reserved:
    """A claim made in the trip that reserved the message (see ``accompany.lua``)."""

    token: str
    asked_at: float
    answer: Sequence[Any]

    @classmethod
    def of(cls, message: Any) -> "Reserved | None":
        """Read what our transport has put there; by any other, a producer could have."""
        companion = isinstance(message.channel, Channel) and message.properties.get(COMPANION)
        return cls(message.delivery_tag, *companion) if companion else None

    @property
    def verdict(self) -> Verdict:
        """What the ledger decided."""
        return Verdict(self.answer[0].decode())


class CallRequest:
    """One message. What Celery asks of a request is there (celery/worker/{state,control}.py)."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "_consumer",
        "_message",
        "absence",
        "acknowledged",
        "eventer",  # set by Celery after a reconnection (celery/worker/consumer/events.py ``start``)
        "has_ended",
        "id",
        "name",
        "reserved",
        "task_name",
        "time_start",
    )

    def __init__(self, message: Any, consumer: Any) -> None:
        self.id: str = message.headers["id"]
        self.task_name: str = message.headers["task"]
        #: the tool's, if the producer says so
        shadow = message.headers.get("shadow")
        self.name: str = shadow if shadow and isinstance(shadow, str) else self.task_name
        #: the claim that came with the message, if one did
        self.reserved = Reserved.of(message)
        self.acknowledged = False
        #: whether its place is free again
        self.has_ended = False
        #: that of a call which waits for another agent, or has
        self.absence: Absence | None = None
        self.time_start: float | None = None
        self._message = message
        self._consumer = consumer
        self._begun = 0.0

    @property
    def worker(self) -> str:
        """The name of this worker."""
        hostname: str = self._consumer.hostname
        return hostname

    @property
    def task(self) -> Any:
        """Celery's task of that name."""
        return self._consumer.app.tasks[self.task_name]

    def incoming(self) -> Incoming:
        """Return what the message carries."""
        return incoming_of(self._message)

    def reserve(self) -> None:
        """Count it among what waits here."""
        state.requests[self.id] = self
        state.reserved_requests.add(self)
        if not self._sends_events:
            return
        headers = self._message.headers
        self._send_event(
            "task-received",
            name=self.name,
            args=headers.get("argsrepr"),
            kwargs=headers.get("kwargsrepr"),
            root_id=headers.get("root_id"),
            parent_id=headers.get("parent_id"),
            retries=0,
            eta=None,
            expires=None,
        )

    def accept(self) -> None:
        """Count it among what is in progress."""
        self._begun, self.time_start = monotonic(), time()
        state.active_requests.add(self)
        state.reserved_requests.add(self)  # a lost connection clears it of what has not begun
        state.total_count[self._counted_as] += 1
        state.all_total_count[0] += 1
        self._send_event("task-started")

    def note(self) -> None:
        """Let the books show a message that only tells of something; on the main thread only."""
        self.reserve()
        self.accept()
        self.end(None)
        self.acknowledge()

    def end(self, result: ToolCallResult | None) -> None:
        """Take it off the books; its message is still to be acknowledged."""
        if self._sends_events:
            runtime = monotonic() - self._begun
            self._send_event("task-succeeded", result=summary(result), runtime=runtime)
        state.requests.pop(self.id, None)
        state.active_requests.discard(self)
        state.reserved_requests.discard(self)  # a worker that stops waits for this

    def acknowledge(self) -> None:
        """Acknowledge the message; on the main thread only."""
        if not self.acknowledged:
            self.acknowledged = True
            self._message.ack_log_error(logger, self._consumer.connection_errors)

    def reject(self, requeue: bool = False) -> None:
        """Give the message back, or drop it; on the main thread only."""
        if not self.acknowledged:
            self.acknowledged = True
            self._message.reject_log_error(logger, self._consumer.connection_errors, requeue)
            state.requests.pop(self.id, None)
            state.reserved_requests.discard(self)
            self._send_event("task-rejected", requeue=requeue)

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Describe it for ``inspect active`` and ``inspect reserved``, without its arguments."""
        headers = self._message.headers
        return {
            "id": self.id,
            "name": self.name,
            "args": headers.get("argsrepr"),
            "kwargs": headers.get("kwargsrepr"),
            "type": self.task_name,
            "hostname": self.worker,
            "time_start": self.time_start,
            "acknowledged": self.acknowledged,
            "delivery_info": self._message.delivery_info,
            "worker_pid": None,
        }

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Refuse: a call shares its process with others."""
        logger.warning("call.not_terminated", call_id=self.id, what_to_do=f"goondan cancel {self.id}")

    cancel = terminate

    @property
    def _counted_as(self) -> str:
        is_counted = self.name in state.total_count or (
            len(state.total_count) < MOST_NAMES and len(self.name) <= LONGEST_NAME
        )
        return self.name if is_counted else self.task_name

    @property
    def _sends_events(self) -> bool:
        dispatcher = self._consumer.event_dispatcher
        if dispatcher is None or not dispatcher.enabled:
            return False
        return not dispatcher.groups or "task" in dispatcher.groups  # else it drops them, after much ado

    def _send_event(self, event: str, **fields: Any) -> None:
        if self._sends_events:
            self._consumer.event_dispatcher.send(event, uuid=self.id, **fields)


def incoming_of(message: Any, *, is_readable: bool = True) -> Incoming:
    """Return what a message carries; of one that cannot be read, where it came from."""
    task = message.headers["task"]
    wire = carried(task, message.payload[1]) if is_readable else None
    queue, traceparent = message.delivery_info.get("routing_key") or "", message.headers.get("traceparent")
    return Incoming(message.headers["id"], queue, wire, task, traceparent)
