"""The ledger's records of calls, and claims on calls."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Self, cast

from redis import Redis
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.connections import rows_of
from broker_config.keys import Keys
from broker_config.refusals import is_script_fault, refusal_text
from goondan_tasks.contract.call_fields import META_TEXTS
from goondan_tasks.contract.calls import ENDED, STATUSES, Run, with_meta
from goondan_tasks.contract.errors import ToolCancelledError, ToolError, ToolOutputError
from goondan_tasks.contract.messages import (
    JsonObject,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    epoch_milliseconds,
    iso_time,
)
from goondan_tasks.contract.output import Progress
from goondan_tasks.contract.wording import duration_text
from goondan_tasks.ledger.former_runs import FormerRun, lines_of_runs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Admission:
    """The ledger's answer to a submission. ``status`` is the call's current status."""

    is_new: bool
    is_conflict: bool
    status: str
    #: whether its record or mailbox is damaged: it is not accepted
    is_damaged: bool = False

    @classmethod
    def of(cls, answer: Sequence[Any]) -> Self:
        """Read the answer of ``submit.lua`` about one call."""
        return cls.of_batch(answer, 1)[0]

    @classmethod
    def of_batch(cls, answer: Sequence[Any], count: int) -> list[Self]:
        """Read the answer of ``submit.lua`` about ``count`` calls; it lists only those submitted before."""
        admissions = [cls(is_new=True, is_conflict=False, status="queued")] * count
        for number, word, status in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
            admissions[number] = cls(
                is_new=False,
                is_conflict=word == b"conflict",
                status=status.decode(errors="replace"),
                is_damaged=word == b"damaged",
            )
        return admissions


class Verdict(StrEnum):
    """What the ledger has decided about a call (``claim_call`` in ``claiming.lua``, ``sweep.lua``)."""

    RUN = "run"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    #: it is past its time limit, and its worker runs, but cannot end it
    OVERRAN = "overran"
    POISONED = "poisoned"
    CANCELLED = "cancelled"
    HELD = "held"
    DONE = "done"
    REQUEUE = "requeue"
    ABSENT = "absent"
    #: its deadline passed while it waited for a limit
    LIMITED = "limited"
    #: it waits for a limit; the script that admits it pushes a new message
    WAITING = "waiting"
    #: it was pending, and was not completed in time, or not approved in time
    UNRESOLVED = "unresolved"
    UNAPPROVED = "unapproved"
    #: it was pending: :attr:`Claim.completion` is its outcome
    COMPLETED = "completed"
    #: it is an answer that the asking agent already has: there is nothing to handle
    TOLD = "told"
    #: the call :attr:`Claim.about` has the same idempotencyKey, and its result is this call's, too
    SHARED = "shared"
    #: the call :attr:`Claim.about` has the same idempotencyKey and other arguments
    CONFLICT = "conflict"
    #: its id is that of another call, whose record stays as it is
    TAKEN = "taken"

    @property
    def is_granted(self) -> bool:
        """Whether the asking worker holds the claim now."""
        return self not in _NOT_GRANTED

    @property
    def is_recorded(self) -> bool:
        """Whether the record of a message's call has replaced the message."""
        return self not in (Verdict.ABSENT, Verdict.TAKEN, Verdict.TOLD)


_NOT_GRANTED = frozenset(
    {Verdict.HELD, Verdict.DONE, Verdict.ABSENT, Verdict.WAITING, Verdict.TOLD, Verdict.TAKEN}
)


class Stored(IntEnum):
    """Whether Redis stored a result (``finish.lua``) or the mark "started" (``start.lua``)."""

    YES = 1
    #: the claim was lost
    LOST = 0
    #: the call is cancelled, and accepts no other result
    CANCELLED = -1
    #: its record is damaged: nothing can be stored there
    DAMAGED = -2
    #: of a mark: another call has its idempotencyKey
    KEYED = -3


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run or settle a call, valid while ``token`` is the call's current token."""

    run: Run
    token: str
    verdict: Verdict
    #: when the lease began, by ``time.monotonic()`` of the process that asked for the claim
    asked_at: float = 0.0
    #: the limit or the other call that the verdict is about
    about: str = ""
    #: whether the call was ever pending; it may have been approved, queued and run since
    was_suspended: bool = False
    #: the token and outcome that ``resolve.lua`` has stored, see :meth:`Outcome.of`
    completion: bytes = b""
    #: of a sweep: the worker whose lease ran out, and when it claimed the call (ms)
    lost_by: str = ""
    lost_claim_at: float | None = None
    #: whether the call is an event that has its result, but whose handler was still running
    has_result: bool = False
    #: of a sweep: whether its worker runs, but cannot end it; an event that ``still_runs`` keeps its claim
    is_held: bool = False
    still_runs: bool = False

    @property
    def was_pending(self) -> bool:
        """Whether the agent knows the call as pending, so that it gets an event when the call ends."""
        return self.was_suspended or self.run.approved_by is not None

    @property
    def id_and_token(self) -> tuple[str, str]:
        """The claim as :meth:`Ledger.renew` and :meth:`Ledger.start` take it."""
        return self.run.id, self.token

    @property
    def is_ours(self) -> bool:
        """Whether the claim was granted at all."""
        return self.verdict.is_granted


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The ledger's record of a call. Times are milliseconds since the epoch, Redis time."""

    id: str
    status: str
    call: ToolCall
    queued_at: int
    claimed_at: int | None
    finished_at: int | None
    attempt: int
    worker: str | None
    #: ok or error, if there is a result
    outcome: str | None
    #: whether the handler of the current run has started
    has_started: bool
    #: whether it was cancelled
    is_cancelled: bool = False
    #: the handler's latest progress report
    progress: Progress | None = None
    #: the latest replay of the call, and how many there were
    replayed_by: str | None = None
    replays: int = 0
    #: the limit that the call waits for, see :mod:`goondan_tasks.ledger.limiter`
    waiting_for: str | None = None
    #: of a pending call: since when and until when it waits, and for what: ``completion`` or ``approval``
    suspended_at: int | None = None
    expires_at: int | None = None
    awaits: str | None = None
    #: the tool's own name for the work that it has begun
    handle: str | None = None
    #: who approved the call
    approved_by: str | None = None
    #: the final or interim result as JSON
    result: bytes | None = None
    #: until when it must have been started or completed; dropped when the call ends
    deadline: int | None = None
    #: of a scheduled call: when it is queued
    not_before: int | None = None
    #: since when it is queued again, because its worker released it or died
    requeued_at: int | None = None
    #: by the last claim: whether it may run again after its worker died, and how many workers it may kill
    is_idempotent: bool | None = None
    most_attempts: int | None = None
    #: the deaths of its workers, in fifths; a death before the handler started counts as one fifth
    #: (``release.lua``)
    deaths: int = 0
    #: how many failed runs were retried, and when the first run began
    retries: int = 0
    begun_at: int | None = None
    #: if its worker is dead: when that was last seen (:mod:`goondan_tasks.ledger.losses`)
    lost_at: int | None = None
    #: of a queued call whose agent or tool is paused: by whom, and why (:mod:`goondan_tasks.fleet.pauses`)
    paused: str | None = None
    #: the end of the traceback of the handler's exception
    traceback: str | None = None
    #: the last log lines of failed runs, by the number of the attempt
    lines: Mapping[int, str] = field(default_factory=dict)
    #: the runs that have ended without a result, the earliest first
    former: tuple[FormerRun, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether nothing changes any more."""
        return self.status in ENDED

    @property
    def state(self) -> str:
        """The state in one word: a status, ``waiting`` (for a limit), ``lost``, ``ok`` or ``error``."""
        if self.status == "done":
            return "ok" if self.outcome == "ok" else "error"
        if self.waiting_for is not None:
            return "waiting"
        return self.status if self.lost_at is None else "lost"

    @property
    def error(self) -> ToolCallError | None:
        """The error that the call ended with, if it can be read."""
        result = self.known_result if self.outcome == "error" else None
        return None if result is None else result.error

    @property
    def known_result(self) -> ToolCallResult | None:
        """The final or interim result, if there is one that can be read."""
        try:
            return None if self.result is None else ToolCallResult.from_json(self.result)
        except ValueError:
            return None

    @property
    def deadly_runs_left(self) -> int | None:
        """How many more runs the call gets if each kills its worker; ``None`` before a run has started."""
        if self.most_attempts is None or not (self.has_started or self.deaths or self.retries):
            return None
        return max(0, (5 * self.most_attempts - self.deaths - 1) // 5) if self.is_idempotent else 0

    def state_text(self, now: float) -> str:
        """Describe the call at ``now`` (ms, Redis time): its state, its worker, and for how long."""

        def since(moment: float | None) -> str:
            return duration_text(max(0.0, now - (self.queued_at if moment is None else moment)) / 1000)

        attempt = f", attempt {self.attempt}" if self.attempt > 1 else ""
        match self.state:
            case "waiting" | "queued" if self.paused is not None:
                return f"{self.paused}; queued {since(None)} ago"
            case "waiting":
                return f"waiting for the limit {self.waiting_for}, queued {since(None)} ago"
            case "queued" if self.requeued_at is not None:
                return f"queued again for {since(self.requeued_at)}, after attempt {self.attempt}"
            case "queued":
                return f"queued for {since(None)}"
            case "scheduled":
                again = f", after attempt {self.attempt}" if self.attempt else ""
                return f"scheduled, in {self._left(self.not_before, now)}{again}"
            case "pending":
                left = "" if self.expires_at is None else f", expires in {self._left(self.expires_at, now)}"
                return f"waiting for {self._awaited} for {since(self.suspended_at)}{left}"
            case "running" | "lost":
                return self._run_text(since, attempt)
        return f"{self._ending} {since(self.finished_at)} ago{attempt}"

    def _run_text(self, since: Callable[[float | None], str], attempt: str) -> str:
        if self.state == "lost":
            begun = "" if self.has_started else ", before it had started"
            return f"lost with {self.worker} {since(self.lost_at)} ago{begun}{attempt}"
        if self.worker is None:
            return "about to end: no worker has it"
        told = ", told to stop" if self.is_cancelled else ""
        begun = "running on" if self.has_started else "not started yet, claimed by"
        return f"{begun} {self.worker} for {since(self.claimed_at)}{attempt}{told}"

    @property
    def _awaited(self) -> str:
        return "an approval" if self.awaits == "approval" else "its completion"

    @staticmethod
    def _left(moment: float | None, now: float) -> str:
        return duration_text(max(0.0, (moment or now) - now) / 1000)

    @property
    def _ending(self) -> str:
        if self.state == "ok":
            return "ended ok"
        code = "an error" if self.error is None else self.error.code
        if self.status == "dead":
            return f"became a dead letter with {code}"
        return "cancelled" if code == ToolCancelledError.code else f"ended with {code}"

    @classmethod
    def from_redis(cls, call_id: str, fields: Mapping[bytes, bytes]) -> "CallRecord":
        """Read the hash of one call.

        Raises:
            ValueError: it is damaged, or of a newer version.
        """

        def number(name: bytes) -> int | None:
            if name not in fields:
                return None
            number = float(fields[name])
            if not 0 <= number < 1e15:  # as numbers.lua does
                raise ValueError(f"{name.decode()} is {number}")
            return int(number)

        def text(name: bytes) -> str | None:
            return fields[name].decode() if name in fields else None

        if b"call" not in fields and b"args" in fields:
            return cls._of_plain(call_id, fields)
        status, outcome = text(b"status") or "", text(b"outcome")
        if status not in STATUSES or outcome not in {None, "ok", "error"}:
            raise ValueError(f"its status is {status!r}, its outcome {outcome!r}")
        retries, _, begun_at = fields.get(b"retried", b"0").partition(b" ")
        return cls(
            id=call_id,
            status=status,
            call=ToolCall.from_wire(serializer.decode(fields.get(b"call", b""))),
            queued_at=number(b"queuedAt") or 0,
            claimed_at=number(b"claimedAt"),
            finished_at=number(b"finishedAt"),
            attempt=number(b"attempt") or 0,
            worker=text(b"worker"),
            outcome=outcome,
            has_started=b"notStarted" not in fields and b"token" in fields,
            replayed_by=text(b"replayedBy"),
            replays=number(b"replays") or 0,
            is_cancelled=b"cancelled" in fields,
            progress=Progress.from_redis(fields[b"progress"]) if b"progress" in fields else None,
            waiting_for=text(b"waiting") if status == "queued" else None,
            suspended_at=number(b"suspendedAt") if status == "pending" else None,
            expires_at=number(b"deadline") if status == "pending" else None,
            awaits=("approval" if b"approval" in fields else "completion") if status == "pending" else None,
            handle=text(b"handle"),
            approved_by=text(b"approved"),
            result=fields.get(b"result"),
            deadline=number(b"deadline"),
            not_before=number(b"notBefore"),
            requeued_at=number(b"releasedAt") if status == "queued" else None,
            is_idempotent=fields[b"idempotent"] == b"1" if b"idempotent" in fields else None,
            most_attempts=number(b"maxAttempts"),
            deaths=number(b"deaths") or 0,
            retries=int(retries),
            begun_at=int(begun_at) if begun_at else None,
            traceback=fields[b"traceback"].decode(errors="replace") if b"traceback" in fields else None,
            lines=lines_of_runs(fields),
            former=FormerRun.read(fields.get(b"former", b"")),
        )

    @classmethod
    def _of_plain(cls, call_id: str, fields: Mapping[bytes, bytes]) -> "CallRecord":
        """Read a plain call that has succeeded: its result holds most of the record (``finishing.lua``)."""
        wire = fields[b"result"]
        meta = ToolCallResult.from_json(wire).meta
        return cls(
            id=call_id,
            status=fields[b"status"].decode(),
            call=ToolCall.from_wire(call_of(fields)),
            queued_at=epoch_milliseconds(meta.queued_at or ""),
            claimed_at=epoch_milliseconds(meta.started_at or ""),
            finished_at=int(_parts_of(fields[b"args"])[1]),
            attempt=meta.attempt or 0,
            worker=meta.worker,
            outcome="ok",
            has_started=False,
            result=wire,
        )

    def to_wire(self) -> JsonObject:
        """Return the row that ``goondan calls --json`` prints."""
        return {
            "id": self.id,
            "status": self.status,
            "outcome": self.outcome,
            "agent": self.call.agent_name,
            "tool": self.call.tool_name,
            "instance": self.call.instance_key,
            "correlationId": self.call.correlation_id,
            "attempt": self.attempt,
            "worker": self.worker,
            "replayedBy": self.replayed_by,
            "handle": self.handle,
            "awaits": self.awaits,
            "expiresAt": None if self.expires_at is None else iso_time(self.expires_at),
            "notBefore": None if self.not_before is None else iso_time(self.not_before),
            "approvedBy": self.approved_by,
            "cancelled": self.is_cancelled,
            "progress": None if self.progress is None else self.progress.to_wire(),
            "queuedAt": iso_time(self.queued_at),
            "claimedAt": None if self.claimed_at is None else iso_time(self.claimed_at),
            "finishedAt": None if self.finished_at is None else iso_time(self.finished_at),
            "lostAt": None if self.lost_at is None else iso_time(self.lost_at),
            "waitingFor": self.waiting_for,
            "code": None if self.error is None else self.error.code,
        }


#: the fields of a record that :func:`call_of` reads
CALL_FIELDS = (b"call", b"args", b"result")


def call_of(fields: Mapping[bytes, bytes | None]) -> JsonObject:
    """Return the wire record of a call; that of a plain call that has ended is rebuilt from its result.

    Raises:
        ValueError: the record is damaged.
    """
    call, args = fields.get(b"call"), fields.get(b"args")
    if call is not None or args is None:
        wire = serializer.decode(call or b"")
    else:
        result = ToolCallResult.from_json(fields.get(b"result") or b"").to_wire()
        meta = {name: result["meta"][name] for name in META_TEXTS}
        names = {name: result[name] for name in ("v", "toolCallId", "toolName")}
        wire = {**names, **meta, "args": serializer.decode(_parts_of(args)[2])}
    if not isinstance(wire, dict):
        raise ValueError("the call is not an object")
    return wire


def _parts_of(args: bytes) -> tuple[bytes, bytes, bytes]:
    """Split the field ``args`` that ``finishing.lua`` writes: digest, end time (ms) and arguments."""
    digest, finished_at, written = args.split(b" ", 2)
    return digest, finished_at, written


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a pending call: an output, or an error."""

    output: Any = None
    error: ToolCallError | None = None

    def to_json(self) -> bytes:
        """Return the outcome as the ledger stores it.

        Raises:
            NotJsonError: the output has no JSON form.
        """
        if self.error is not None:
            return serializer.encode({"error": self.error.to_wire()})
        return serializer.encode({"output": self.output})

    @classmethod
    def of(cls, completion: bytes) -> Self:
        """Read what ``resolve.lua`` has stored: a token, a space and the outcome.

        Damaged data becomes an error, so that this call and others can end.
        """
        try:
            wire = serializer.decode(completion.partition(b" ")[2])
            error = wire.get("error")
            return cls(wire.get("output"), None if error is None else ToolCallError.from_wire(error))
        except (ValueError, AttributeError) as damage:
            message = f"The completion of the call cannot be read: {damage}"
            lost = ToolOutputError(message[:500])
            name = type(lost).__name__
            return cls(error=ToolCallError(code=lost.code, name=name, message=lost.message))


def completed(run: Run, interim: ToolCallResult | None, outcome: Outcome) -> ToolCallResult:
    """Return the final result of a pending call; worker and start time come from the interim result."""
    result = run.ok(None, None) if interim is None else interim
    now, started_at = run.clock(), result.meta.started_at
    status = "ok" if outcome.error is None else "error"
    ended = {"status": status, "output": outcome.output, "error": outcome.error}
    return with_meta(
        result.model_copy(update=ended),
        finished_at=iso_time(now),
        duration_ms=None if started_at is None else round(now - epoch_milliseconds(started_at), 3),
        output_file=None,
        expires_at=None,
        awaits=None,
        edited=run.call.edited_arguments,
    )


#: a notification with a larger result carries only the id; the waiting client then reads the record
INLINE_RESULT_BYTES = 16_384


def notification(run: Run, wire: bytes) -> bytes:
    """Return the notification of a result: the call's id, and after a space the JSON unless it is large."""
    return run.id.encode() + (b" " + wire if len(wire) <= INLINE_RESULT_BYTES else b"")


def celery_record(run: Run, wire: bytes) -> bytes:
    """Return what ``AsyncResult.get()`` reads (celery/backends/base.py ``_get_result_meta``)."""
    date_done = iso_time(run.clock())
    return (
        b'{"task_id":"%b","status":"SUCCESS","traceback":null,"children":[],"date_done":"%b","result":%b}'
        % (run.id.encode(), date_done.encode(), wire)
    )


class CallRecords:
    """Reads the records of calls of one namespace; methods may raise ``redis.exceptions.RedisError``."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self.redis = redis
        self.keys = keys

    def record(self, call_id: str) -> CallRecord | None:
        """Read one call's record."""
        return self.records([call_id])[0]

    def records(self, call_ids: Sequence[str]) -> list[CallRecord | None]:
        """Read records in one round trip, in order; ``None`` is one that is unknown or unreadable."""
        with self.redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.hgetall(self.keys.call(call_id))
            rows = rows_of(pipe)
        return [_readable_record(call_id, row) for call_id, row in zip(call_ids, rows, strict=True)]

    def recent(
        self, agents: Iterable[str], limit: int, between: tuple[float, float] = (-math.inf, math.inf)
    ) -> list[CallRecord]:
        """Return the latest calls of ``agents``, the newest first, submitted ``between`` two moments."""
        earliest, latest = between
        with self.redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zrevrangebyscore(self.keys.calls(agent), latest, earliest, 0, limit, withscores=True)
            rows = sorted((row for found in rows_of(pipe) for row in found or ()), key=lambda row: -row[1])
        return list(
            filter(None, self.records([call_id.decode(errors="replace") for call_id, _ in rows[:limit]]))
        )

    def forget(self, call_id: str, agent: str) -> None:
        """Remove the record, the result, the stream and the index entries of a call that has ended."""
        keys = self.keys
        with self.redis.pipeline() as pipe:
            pipe.delete(keys.call(call_id), keys.celery_result(call_id), keys.turn_stream(call_id))
            pipe.zrem(keys.calls(agent), call_id)
            pipe.zrem(keys.failures(agent), call_id)
            pipe.execute()

    def result(self, call_id: str) -> ToolCallResult | None:
        """Read a call's result, if there is one.

        Raises:
            ValueError: it is damaged, or of a newer version.
        """
        try:
            stored = cast("bytes | None", self.redis.hget(self.keys.call(call_id), "result"))
        except ResponseError as error:
            if not is_script_fault(error):
                raise
            raise ValueError(refusal_text(error)) from error
        return None if stored is None else ToolCallResult.from_json(stored)


def _readable_record(call_id: str, row: Mapping[bytes, bytes] | None) -> CallRecord | None:
    try:
        return CallRecord.from_redis(call_id, row) if row else None
    except ValueError as error:
        logger.error("the record of call %r cannot be read: %s", call_id, error, extra={"call_id": call_id})
        return None


#: what is wrong with a damaged record, and what to do about it
NO_CALL = "another program has written its key"
REPAIR = (
    "Find its keys with `redis-cli --scan --pattern '*ID*'`, remove what another program has written there, "
    "and submit the call again with another toolCallId."
)


def damaged(call_id: str, reason: str) -> ToolError:
    """Return the error of a call whose keys no script can use; ``reason`` is the error of Redis."""
    return ToolError(
        f"The record of call {call_id}, or of its limits, is damaged: {reason}", suggestion=REPAIR
    )
