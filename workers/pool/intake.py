"""Messages that were reserved without a claim: those of plain Celery producers, and what is no message.

A message stays in flight until its call is claimed, scheduled or answered, so it is handled again if its
worker dies before that. One that holds no call becomes a dead letter.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.utils.saferepr import saferepr
from celery.worker import state
from pydantic import ValidationError
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.in_flight import InFlight, LeftMessages
from broker_config.queue_reader import Batch
from broker_config.queues import TOOL_CALL_TASK
from broker_config.task_message import ORIGIN, read_body, read_envelope
from goondan_tasks.contract.errors import GoondanError, ToolCancelledError, ToolInputValidationError
from goondan_tasks.contract.events import EVENT_TASKS, is_event, mailbox_of
from goondan_tasks.contract.messages import IpcMessage, epoch_milliseconds, faults_of, iso_time
from goondan_tasks.contract.moments import delay_fault
from goondan_tasks.fleet.agent_registry import ShutdownRequest
from goondan_tasks.ledger.submission import Submission, digest_of
from workers.delivery.delivery import LONGEST_SHOWN
from workers.delivery.incoming import Incoming, carried
from workers.outcome import outcome_of
from workers.pool.parts import WorkerParts

logger = structlog.get_logger(__name__)

LONGEST_TASK_ID = 200

#: the producer of plain calls: Celery's own result record is all that it reads
NO_PRODUCER = ""

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
    """Reads the messages of one worker process."""

    def __init__(self, runtime: WorkerParts, app: Any) -> None:
        self._runtime = runtime
        self._delivery = runtime.delivery
        self._writer = runtime.delivery.writer
        self._app = app
        redis = runtime.delivery.ledger.redis
        self._in_flight = InFlight(lambda script_call: script_call.run(redis))
        self._left = LeftMessages(redis, runtime.settings.lease_seconds)
        #: the tags of messages that are neither acknowledged nor given back
        self._held: dict[str, None] = {}

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
        headers, fault, eta = envelope["headers"], None, None
        body: list[Any] = [[], None, None]
        try:
            body = read_body(envelope)
            eta = _time_of(headers.get("eta"))
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
        is_to_be_run = self._is_to_be_run(incoming, headers, body[2], worker)
        if is_to_be_run and not self._is_scheduled(incoming, eta, worker):
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

    def _is_scheduled(self, incoming: Incoming, eta: int | None, worker: str) -> bool:
        """Make a record of a call whose time is to come; return whether the message is not needed any more.

        A call that cannot be run is refused where it is claimed.
        """
        wire = incoming.wire if isinstance(incoming.wire, Mapping) else {}
        if incoming.was_stored or (eta is None and wire.keys().isdisjoint({"notBefore", "not_before"})):
            return False
        try:
            call, ledger = self._delivery.call_of(incoming), self._delivery.ledger
        except GoondanError:
            return False
        if eta is not None:
            call = call.model_copy(update={"not_before": iso_time(eta)})
        if call.not_before is None or epoch_milliseconds(call.not_before) <= redis_time(ledger.redis):
            return False
        if fault := delay_fault(call):
            error = ToolInputValidationError(f"The call is not valid: {fault}.")
            self._delivery.refuse(incoming, worker, error)
            return True
        submission = Submission(
            incoming.id,
            call,
            serializer.encode(call.to_wire()),
            digest_of(call),
            self._delivery.reaper.message(incoming.id, call),
            mailbox=mailbox_of(call) if is_event(call) else "",
        )
        [admission] = ledger.submit_all([submission], NO_PRODUCER)
        return not (admission.is_conflict or admission.is_damaged)

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
        headers,
        was_stored=headers.get("origin") == ORIGIN,
    )


def _time_of(eta: str | None) -> int | None:
    """Return the time of a message in ms; a part of one counts as a whole, so that nothing begins early.

    Raises:
        ValueError: it is no time.
    """
    if not eta:
        return None
    try:
        at = datetime.fromisoformat(eta)
        return math.ceil((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"its eta is no time: {error}") from error


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
