"""Messages that were reserved without a claim: those of plain Celery producers, and what is no message.

A message stays in flight until its call is claimed or answered, so it is handled again if its worker dies
before that. One that holds no call becomes a dead letter.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import time
from typing import Any

import structlog
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.utils.saferepr import saferepr
from celery.worker import state
from pydantic import ValidationError
from redis.exceptions import RedisError

from broker_config.in_flight import InFlight, LeftMessages
from broker_config.queue_reader import Batch
from broker_config.queues import TOOL_CALL_TASK
from broker_config.task_message import ORIGIN, read_body, read_envelope
from goondan_tasks.contract.errors import ToolCancelledError, ToolInputValidationError
from goondan_tasks.contract.events import EVENT_TASKS
from goondan_tasks.contract.messages import IpcMessage, faults_of
from goondan_tasks.fleet.agent_registry import ShutdownRequest
from workers.concurrency.watchdog import CallOff
from workers.delivery.delivery import LONGEST_SHOWN
from workers.delivery.incoming import Incoming, carried
from workers.outcome import outcome_of
from workers.pool.parts import WorkerParts

logger = structlog.get_logger(__name__)

LONGEST_TASK_ID = 200

#: what agents' queues carry
TASKS = (TOOL_CALL_TASK, *EVENT_TASKS)

#: what a message's body may name besides the task
_CANVAS = {
    "chord": "the body of a chord",
    "chain": "further tasks of a chain",
    "callbacks": "callbacks (link)",
    "errbacks": "error callbacks (link_error)",
}


@dataclass(frozen=True, slots=True)
class ReservedMessage:
    """A reserved message: its tag, its queue, and its text."""

    tag: str
    queue: str
    data: bytes


class Intake:
    """Reads the messages of one worker process; ``again`` takes one whose time has come."""

    def __init__(self, runtime: WorkerParts, app: Any, again: Callable[[ReservedMessage], object]) -> None:
        self._runtime = runtime
        self._delivery = runtime.delivery
        self._writer = runtime.delivery.writer
        self._watchdog = runtime.delivery.watchdog
        self._app = app
        self._again = again
        redis = runtime.delivery.ledger.redis
        self._in_flight = InFlight(lambda script_call: script_call.run(redis))
        self._left = LeftMessages(redis, runtime.settings.lease_seconds)
        #: the tags of messages that are neither acknowledged nor given back
        self._held: dict[str, None] = {}
        #: the messages whose time has not come, each with its eta, its task and id, and what calls that off
        self._later: dict[ReservedMessage, tuple[str, str, str, CallOff]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no message is held."""
        return not self._held

    def hold(self, batch: Batch) -> list[ReservedMessage]:
        """Keep the messages of a batch in flight for this process."""
        self._held |= {tag: None for tag, *_ in batch.messages}
        return [ReservedMessage(*one) for one in batch.messages]

    def renew(self) -> None:
        """Renew the reservations, and put back the messages of dead workers; raises RedisError."""
        self._left.put_back(list(self._held.copy()))

    def acknowledge(self, message: ReservedMessage, call_id: str = "") -> None:
        """End a reservation with the next packet of the writer: the message is not needed any more.

        With ``call_id``, the record of that call has replaced the message, unless Redis has lost that.
        """
        self._held.pop(message.tag, None)
        record = self._delivery.ledger.keys.call(call_id) if call_id else ""
        self._writer.put_off(self._in_flight.acknowledging(message.tag, record), lambda _: None)

    def give_back(self, messages: Sequence[ReservedMessage]) -> None:
        """Put messages back to the front of their queues, in their order."""
        tags = sorted((one.tag for one in messages), reverse=True)
        for tag in tags:
            self._held.pop(tag, None)
        if tags:
            self._writer.send(self._in_flight.giving_back(tags), lambda _: None)

    def scheduled(self, worker: str) -> list[dict[str, Any]]:
        """Describe the messages whose time has not come, for ``inspect scheduled``."""
        return [
            {
                "eta": eta,
                "priority": 6,
                "request": {
                    "id": call_id,
                    "name": task,
                    "type": task,
                    "hostname": worker,
                    "delivery_info": {"exchange": "", "routing_key": message.queue},
                    "time_start": None,
                    "acknowledged": False,
                    "worker_pid": None,
                },
            }
            for message, (eta, task, call_id, _) in self._later.copy().items()
        ]

    def note_revoked(self, ids: Collection[str]) -> None:
        """Read the messages of revoked calls now, whatever their time."""
        for message, (_, _, call_id, call_off) in self._later.copy().items():
            if call_id in ids:
                call_off()
                self._on_time(message)

    def take_later(self) -> list[ReservedMessage]:
        """Remove and return the messages whose time has not come."""
        later = list(self._later.copy())
        for message in later:
            if (entry := self._later.pop(message, None)) is not None:
                entry[-1]()
        return later

    def read(self, message: ReservedMessage, worker: str) -> Incoming | None:
        """Return what a message carries; ``None`` if nothing is to be run now, and the message is dealt with.

        This may wait for Redis. If that is away, the message comes again when its reservation is over.
        """
        outcome = outcome_of(partial(self._read, message, worker))
        error = outcome.error
        if error is None:
            return outcome.get()
        logger.error("a message cannot be handled", exc_info=error)
        if isinstance(error, RedisError):
            self._held.pop(message.tag, None)
        else:
            self._bury(message, worker, repr(message.data[:LONGEST_SHOWN]), repr(error))
        return None

    def _read(self, message: ReservedMessage, worker: str) -> Incoming | None:
        try:
            envelope = read_envelope(message.data, message.queue)
        except ValueError as error:
            self._bury(message, worker, repr(message.data[:LONGEST_SHOWN]), str(error))
            return None
        headers, fault = envelope["headers"], None
        body: list[Any] = [[], None, None]
        try:
            body = read_body(envelope)
            seconds = _seconds_until(headers.get("eta"))
        except ValueError as error:
            fault = str(error)
        incoming = _incoming(message, headers, body)
        if headers["task"] not in TASKS:  # above all Celery's own tasks: no producer may run them here
            fault = self._answer_unknown(headers, {} if fault else body[2])
        elif not _is_task_id(headers.get("id")):
            fault = "it has no task id"
        elif fault is None:
            fault = _fault_of(body[2])
        if fault is not None:
            what = {"headers": headers, "body": envelope["body"]}
            self._bury(message, worker, saferepr(what, LONGEST_SHOWN), fault)
            self._answer_unreadable(incoming, worker, fault)
            return None
        if seconds > 0 and incoming.id not in state.revoked:
            call_off = self._watchdog.watch(seconds, partial(self._on_time, message))
            self._later[message] = headers["eta"], incoming.task, incoming.id, call_off
            return None
        if self._is_to_be_run(incoming, headers, body[2], worker):
            return incoming
        is_answered = not (incoming.is_shutdown or incoming.is_only_told)
        self.acknowledge(message, incoming.id if is_answered else "")
        return None

    def _is_to_be_run(
        self, incoming: Incoming, headers: Mapping[str, Any], embed: Mapping[str, Any], worker: str
    ) -> bool:
        if any(embed.values()):
            self._refuse_canvas(incoming, headers, embed, worker)
        elif incoming.id in state.revoked:
            self._delivery.refuse(incoming, worker, ToolCancelledError("The call was revoked."))
        elif incoming.is_shutdown:
            note_shutdown(self._runtime, incoming.wire)
        else:
            return not incoming.is_only_told
        return False

    def _on_time(self, message: ReservedMessage) -> None:
        if self._later.pop(message, None) is not None:
            self._again(message)

    def _answer_unknown(self, headers: Mapping[str, Any], embed: Any) -> str:
        """Give the producer of an unknown task a result, as Celery does; return why it is a dead letter."""
        name, task_id = headers["task"], headers.get("id")
        shown = saferepr(name, LONGEST_TASK_ID)
        if _is_task_id(task_id):
            sound = embed if isinstance(embed, dict) and _fault_of(embed) is None else {}
            request = _context_of(headers, sound)
            self._app.backend.mark_as_failure(task_id, NotRegistered(shown), request=request)
        return f"there is no task {shown}"

    def _refuse_canvas(
        self, incoming: Incoming, headers: Mapping[str, Any], embed: Mapping[str, Any], worker: str
    ) -> None:
        """Refuse a call with which others are to be sent, as in a chain or chord, and fail those others.

        The ledger keeps only the call: they could get lost, or be sent twice, and the producer that waits
        for the last of them would wait forever.
        """
        parts = " and ".join(words for name, words in _CANVAS.items() if embed.get(name))
        error = ToolInputValidationError(
            f"The message has {parts}, which the workers of agents do not send. The call was not run.",
            suggestion="Send the call alone, and wait for its result, for example in a task of your own; "
            "a call may be the last task of a chain, or the body of a chord.",
        )
        # the call itself is answered as any other; what it would have sent fails as if it were the chain
        backend = self._app.backend
        request = _context_of(headers, {**embed, "chain": None})
        backend.mark_as_failure(request.id, error, request=request, store_result=False)
        backend._fail_chain([*(embed.get("chain") or []), *(embed.get("callbacks") or [])], error)
        self._delivery.refuse(incoming, worker, error)

    def _bury(self, message: ReservedMessage, worker: str, shown: str, reason: str) -> None:
        plain = [text.encode("ascii", "backslashreplace").decode() for text in (reason, shown)]
        self._delivery.bury(message.queue, worker, plain[0][:LONGEST_SHOWN], plain[1])
        self.acknowledge(message)

    def _answer_unreadable(self, incoming: Incoming, worker: str, reason: str) -> None:
        """Answer the clients that wait for the call of a message which cannot be read."""
        if incoming.task in TASKS and _is_task_id(incoming.id):
            error = ToolInputValidationError(f"The message cannot be read: {reason}.")
            self._delivery.refuse(incoming, worker, error)


def note_shutdown(runtime: WorkerParts, wire: Any) -> None:
    """Pass a ``shutdown`` IpcMessage on to the workers that it names, this one included.

    Its payload is ``{agent or worker, reason?}``; without either it means the agent that it was sent to. An
    invalid message is dropped.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    try:
        message = IpcMessage.from_wire(wire)
        payload = message.payload
        is_named = payload.get("worker") or payload.get("agent")
        request = ShutdownRequest.from_wire(payload if is_named else {**payload, "agent": message.to})
    except ValidationError as error:
        logger.warning("shutdown.refused", reason=faults_of(error))
        return
    runtime.shutdowns.ask(request)
    logger.info("shutdown.asked", sender=message.from_agent, target=request.target, reason=request.reason)


def _incoming(message: ReservedMessage, headers: Mapping[str, Any], body: Sequence[Any]) -> Incoming:
    task, expires = headers["task"], headers.get("expires")
    wire = carried(task, body[1])
    if expires and isinstance(wire, Mapping):
        wire = {"deadline": expires, **wire}
    return Incoming(
        headers.get("id", ""),
        message.queue,
        wire,
        task,
        headers.get("traceparent"),
        was_stored=headers.get("origin") == ORIGIN,
    )


def _seconds_until(eta: str | None) -> float:
    """Return in how many seconds the time of a message comes, by this machine's clock as in Celery.

    Raises:
        ValueError: it is no time.
    """
    if not eta:
        return 0.0
    try:
        at = datetime.fromisoformat(eta)
    except ValueError as error:
        raise ValueError(f"its eta is no time: {error}") from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time()


def _fault_of(embed: Any) -> str | None:
    if isinstance(embed, dict) and (not any(embed.values()) or _names_tasks(embed)):
        return None
    return "its body names callbacks that are not tasks"


def _context_of(headers: Mapping[str, Any], embed: Mapping[str, Any]) -> Context:
    """Return a message's task request, with what Celery needs to fail the tasks that depend on it."""
    return Context({**headers, **embed, "delivery_info": {}})


def _names_tasks(embed: Mapping[str, Any]) -> bool:
    lists = [embed.get(name) or [] for name in ("callbacks", "errbacks", "chain")]
    if not all(isinstance(tasks, list) for tasks in lists):
        return False
    tasks = [*itertools.chain(*lists), *([embed["chord"]] if embed.get("chord") else [])]
    return all(isinstance(task, dict) and isinstance(task.get("task"), str) for task in tasks)


def _is_task_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TASK_ID and value.isprintable()
