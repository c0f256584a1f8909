"""A claimed call in a worker, from its claim to its stored result."""

import contextlib
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from time import monotonic
from typing import Any, Self, TypeVar

from broker_config import serializer
from broker_config.queues import agent_of, is_events_queue
from broker_config.scripts import ScriptCall
from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.contract.call_fields import (
    BARE_FIELDS,
    PLAN_FIELDS,
    STEP_FIELDS,
    TEXTS,
    is_sound,
    shown_id,
)
from goondan_tasks.contract.calls import MAX_CONTEXT_BYTES, Run
from goondan_tasks.contract.events import sender_of
from goondan_tasks.contract.messages import (
    CallLogFields,
    Clock,
    JsonObject,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    iso_time,
)
from goondan_tasks.contract.names import EVENT_TOOLS
from goondan_tasks.contract.run_lines import RunLines
from goondan_tasks.fleet.call_counts import OK, CountedCall
from goondan_tasks.fleet.usage import user_of
from goondan_tasks.ledger.claim_request import read_retried
from goondan_tasks.ledger.endings import kind_of
from goondan_tasks.ledger.former_runs import failure_of
from goondan_tasks.ledger.limiter import key_limit
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from workers.cancellation import Cancellation, Watch
from workers.concurrency.slots import ReleasedSlot
from workers.concurrency.watchdog import CallOff
from workers.plan import Plan
from workers.reporters import OutputEmitter, ProgressReporter, Reporter
from workers.turns.turn_state import OpenedStep, TurnState

T = TypeVar("T")

#: limits the time of a handler that has run for some seconds
LimitHandler = Callable[[float], CallOff]

#: the fields of a producer's call
_PRODUCED_FIELDS = BARE_FIELDS | STEP_FIELDS

_ALL_TEXTS = frozenset({str})

#: the text before the arguments of a producer's call (goondan_tasks/ledger/submission.py)
_BEFORE_ARGS = b'"callChain":[],"args":'


def is_plain(call: Mapping[str, Any], agent: str | None) -> bool:
    """Return whether a wire record is a plain call to ``agent``, complete and with the right types."""
    return (
        call.keys() <= PLAN_FIELDS
        and call.get("agentName") == agent
        and call.get("v") == 1
        and "args" in call
        and bool(call.get("instanceKey"))
        and _ALL_TEXTS.issuperset(map(type, map(call.get, TEXTS)))
        and call["toolName"] not in EVENT_TOOLS
        and (call.keys().isdisjoint(STEP_FIELDS) or is_sound(call))
    )


class JobState(IntEnum):
    """The state of a call in this worker."""

    CLAIMED = 0
    #: the mark "started" was sent
    MARKING = 1
    #: the mark is confirmed, and the handler may begin
    STARTED = 2
    #: the claim belongs to another worker: the call is not run here
    LOST = 3
    #: the call is cancelled and not run
    CANCELLED = 4
    #: the handler has ended
    ENDED = 5
    #: its record is damaged: the call is lost, and not run
    DAMAGED = 6
    #: another call has its idempotencyKey, or had: the limiter says what follows
    KEYED = 7


#: by the answer of ``start.lua``
STATES = {
    Stored.YES: JobState.STARTED,
    Stored.LOST: JobState.LOST,
    Stored.CANCELLED: JobState.CANCELLED,
    Stored.DAMAGED: JobState.DAMAGED,
    Stored.KEYED: JobState.KEYED,
}


class Job:
    """One claimed call. What most calls do not need is made on first use."""

    __slots__ = (
        "__weakref__",
        "_call_off",
        "_claim",
        "_limit_handler",
        "_lines",
        "_log_fields",
        "_original",
        "_retried",
        "_text",
        "agent",
        "approved_by",
        "around",
        "asked_at",
        "attempt",
        "begun_at",
        "bundle_ref",
        "call",
        "cancellation",
        "claimed_at",
        "clock",
        "duration_ms",
        "early",
        "emitter",
        "end_detached",
        "ended_at",
        "error",
        "eventer",  # set by Celery after a reconnection (celery/worker/consumer/events.py ``start``)
        "fresh_until",
        "handler_at",
        "has_result",
        "id",
        "is_bare",
        "is_plain",
        "is_told",
        "opened",
        "output",
        "output_text",
        "plan",
        "queue",
        "queued_at",
        "read_ahead",
        "released_slot",
        "reporter",
        "result",
        "shown",
        "started_at",
        "state",
        "token",
        "turn_state",
        "verdict",
        "watch",
        "wire",
        "worker",
    )

    #: the result as JSON; the result itself, unless ``result_of`` has written it; and its error
    wire: bytes
    result: ToolCallResult | None
    error: ToolCallError | None
    #: whether it has a result: its own, or one that was stored while its handler still runs
    has_result: bool
    #: whether monitors have been told that it began; else they are with its end
    is_told: bool
    #: made when the handler asks for it
    reporter: ProgressReporter[ScriptCall[Any]] | None
    emitter: OutputEmitter[ScriptCall[Any]] | None
    #: the answer to what its tool reads in the trip of its mark; ``None`` if that was not asked
    read_ahead: Any
    #: the Step that it has opened
    opened: OpenedStep | None
    #: made on first use
    _original: ToolCall | None
    _claim: Claim | None
    _lines: RunLines | None
    _log_fields: CallLogFields | None
    #: limits the time of the handler of a detached call, and calls that off
    _limit_handler: LimitHandler | None
    _call_off: CallOff | None

    #: held for a moment; one for all, as most calls need no cancellation
    _lock = threading.Lock()

    def __init__(
        self, queue: str, token: str, answer: Sequence[Any], *, asked_at: float, clock: Clock, worker: str
    ) -> None:
        """``answer`` is what ``claim_on_reserve.lua`` returns."""
        verdict, attempt, queued_at, claimed_at, retried, approved_by, text, ref, call_id = answer
        self.id: str = call_id.decode()
        self.token = token
        self.queue = queue
        self.agent = agent_of(queue) or ""
        self.worker = worker
        self.verdict = Verdict(verdict.decode())
        self.attempt: int = attempt
        #: ms, Redis time
        self.queued_at: float = queued_at
        self.claimed_at: float = claimed_at
        self.clock = clock
        #: ``time.monotonic()`` from which the lease counts
        self.asked_at = asked_at
        self.bundle_ref: str | None = ref.decode() or None
        #: the wire record; ``None`` until it is read
        self.call: JsonObject | None = None
        #: set by :meth:`classify`: whether it is plain, and its result repeats all fields but the arguments
        self.is_plain = self.is_bare = False
        #: how the handler is run
        self.plan: Plan | None = None
        #: the result of a call whose handler must not begin: wrong arguments, or it waits for an approval
        self.early: ToolCallResult | None = None
        self.state = JobState.CLAIMED
        #: ``time.monotonic()`` until which the mark, which renews the lease, lets code around the call begin
        self.fresh_until = 0.0
        #: ms, Redis time
        self.started_at: float | None = None
        #: ``time.monotonic()`` when the first code around the call began, and the handler; 0 before, and the
        #: second after the handler's end if it has middlewares
        self.begun_at = self.handler_at = 0.0
        #: the context of the middlewares around the handler, which an older tool's shares
        self.around: ToolCallContext | None = None
        #: the result of the handler that async middlewares see; what it says of the end is stored
        self.shown: ToolCallResult | None = None
        #: ISO 8601, Redis time
        self.ended_at = ""
        self.duration_ms = 0.0
        #: what a plain handler has returned, and its JSON
        self.output: Any = None
        self.output_text: bytes | None = None
        #: made when the handler asks for it, or when the call takes long
        self.cancellation: Cancellation | None = None
        #: the slot of a call that waits, or has waited
        self.released_slot: ReleasedSlot | None = None
        #: the input of a Turn, and the tokens of models
        self.turn_state: TurnState | None = None
        #: sets time limits; set once the pool looks after the call's lease and its cancellation
        self.watch: Watch | None = None
        #: takes the result of a call that takes long, and is detached from the lead
        self.end_detached: Callable[[ToolCallResult], None] | None = None
        #: empty if there is no record
        self._text: bytes = text or b""
        self._retried, self.approved_by, self._log_fields = retried, approved_by, None
        self.wire, self.result, self.error, self.has_result, self.is_told = b"", None, None, False, False
        self._original = self._claim = self._lines = self._limit_handler = self._call_off = None
        self.reporter = self.emitter = self.read_ahead = self.opened = None

    @classmethod
    def of_claim(cls, claim: Claim, queue: str) -> Self:
        """Make the job of a call that was claimed by itself."""
        run, ref = claim.run, claim.run.call.bundle_ref or ""
        answer = (
            *(str(claim.verdict).encode(), run.attempt, run.queued_at, run.claimed_at, None, None),
            *(serializer.encode(run.call.to_wire()), ref.encode(), run.id.encode()),
        )
        job = cls(queue, claim.token, answer, asked_at=claim.asked_at, clock=run.clock, worker=run.worker)
        job._claim, job._original, job._lines = claim, run.call, run.lines
        return job

    @property
    def is_fresh(self) -> bool:
        """Whether enough is left of the lease for code around the call to begin."""
        return monotonic() < self.fresh_until

    def require_fresh(self) -> None:
        """Require a new mark if the confirmed one is old."""
        if self.state is JobState.STARTED and not self.is_fresh:
            self.state = JobState.CLAIMED

    def start_unmarked(self) -> None:
        """Let a call begin whose run leaves no trace but its result: its record keeps no mark."""
        self.state, self.fresh_until = JobState.STARTED, math.inf

    def ask_ahead(self, post: Callable[[ScriptCall[Any], Callable[[Any], None]], None]) -> None:
        """Ask what the tool of a planned call reads in the trip of its mark, if that is still to come."""
        reads = self.planned.tool.reads
        if reads is not None and self.state is JobState.CLAIMED and (asked := reads(self)) is not None:
            post(asked, partial(setattr, self, "read_ahead"))

    def begin(self, *, is_wrapped: bool) -> None:
        """Note that the first code around the call begins: the handler, if nothing is around it."""
        self.begun_at = monotonic()
        if not is_wrapped:
            self.started_at, self.handler_at = self.clock(), self.begun_at

    def begin_handler(self) -> None:
        """Note that the handler begins within its middlewares."""
        if self.cancellation is not None:
            self.cancellation.require_wanted()  # a middleware may have taken too long
        with self._lock:
            self.started_at, self.handler_at, limit = self.clock(), monotonic(), self._limit_handler
        if limit is not None:
            self._keep(limit(0.0))

    def end_handler(self) -> None:
        """Note that the handler has ended: the middlewares have a time limit of their own."""
        with self._lock:
            call_off, self._call_off, self.handler_at = self._call_off, None, 0.0
        if call_off is not None:
            call_off()

    def limit_handler(self, limit: "LimitHandler") -> bool:
        """Limit the time of the handler, which runs or may begin; return false if it has ended already.

        ``limit`` takes the seconds that it has run. It is called when the handler begins, or at once.
        """
        with self._lock:
            self._limit_handler, begun_at = limit, self.handler_at
            has_ended = self.started_at is not None and not begun_at
        if begun_at:
            self._keep(limit(monotonic() - begun_at))
        return not has_ended

    def _keep(self, call_off: CallOff) -> None:
        with self._lock:
            if self.handler_at:
                self._call_off = call_off
                return
        call_off()  # the handler has ended meanwhile

    @property
    def planned(self) -> Plan:
        """The plan of a call that has one."""
        assert self.plan is not None  # noqa: S101 - a planned call
        return self.plan

    @property
    def seconds_left(self) -> float:
        """How many seconds the time limit leaves for the handler of a planned call."""
        return max(0.001, self.planned.limit_seconds - (monotonic() - (self.handler_at or self.begun_at)))

    def ensure_cancellation(self) -> Cancellation:
        """Return the cancellation of this call, and make it on first use; any thread may call this."""
        with self._lock:
            if self.cancellation is None:
                self.cancellation = Cancellation()
                if self.state is JobState.ENDED:
                    self.cancellation.end()
            return self.cancellation

    def ensure_turn_state(self) -> TurnState:
        """Return the state of the Turn, made on first use."""
        if self.turn_state is None:
            self.turn_state = TurnState()
        return self.turn_state

    def let_go(self) -> Sequence[ScriptCall[Any]]:
        """End the cancellation: the handler has ended, and was not detached.

        Return what writes its last progress and output, which must be stored before its result.
        """
        if self.cancellation is not None:
            self.cancellation.end()
        return self.last_reports()

    def last_reports(self) -> Sequence[ScriptCall[Any]]:
        """Return what writes the last progress and output of a handler that has ended."""
        if self.reporter is None and self.emitter is None:
            return ()
        return [last for one in self.reporters if (last := one.last()) is not None]

    @property
    def reporters(self) -> list[Reporter[ScriptCall[Any]]]:
        """What the handler has asked for to tell of itself."""
        return [one for one in (self.reporter, self.emitter) if one is not None]

    @property
    def key(self) -> str:
        """The limit of a planned call's idempotencyKey as text, empty if it has none (``start.lua``)."""
        call, declared = self.read(), self.planned.key_arguments
        if not declared and "idempotencyKey" not in call:
            return ""
        names = self.agent, self.tool_name
        return key_limit(names, call["args"], declared, call.get("idempotencyKey")) or ""

    @property
    def lines(self) -> RunLines:
        """The last log lines of the run."""
        if self._lines is None:
            self._lines = RunLines()
        return self._lines

    @property
    def is_running(self) -> bool:
        """Whether the handler runs and is not detached; a detached one is among the pool's requests."""
        return bool(self.begun_at) and self.state is not JobState.ENDED and self.end_detached is None

    @property
    def waits(self) -> bool:
        """Whether the handler has not begun."""
        return not self.begun_at and self.state is not JobState.ENDED

    @property
    def size(self) -> int:
        """The size of the call's JSON in bytes."""
        return len(self._text)

    @property
    def args_text(self) -> bytes | None:
        """The JSON of a bare call's arguments, which come last if a client of ours has written it."""
        begin = self._text.find(_BEFORE_ARGS) if self.is_bare else -1
        return None if begin < 0 else self._text[begin + len(_BEFORE_ARGS) : -1]

    def read(self) -> JsonObject:
        """Return the call's wire record.

        Raises:
            ValueError: it cannot be read.
        """
        if self.call is None:
            call = serializer.decode(self._text)
            if not isinstance(call, dict):
                raise ValueError("the call is not an object")
            self.call = call
        return self.call

    def classify(self) -> bool:
        """Read the call and note whether it is plain; return whether this version can handle it.

        In a queue of events it must be an event.
        """
        try:
            call = self.read()
            may_be_plain = is_plain(call, self.agent)
            is_of_producer = call.keys() <= _PRODUCED_FIELDS and call.get("callChain", []) == []
            if may_be_plain and is_of_producer:
                is_first_run = self._retried is None and self.approved_by is None
                self.is_plain, self.is_bare = True, is_first_run and call.keys() <= BARE_FIELDS
                return True
            # any other is checked as a whole before it is begun
            is_event = self.claim.run.call.tool_name in EVENT_TOOLS
        except ValueError:
            return False
        self.is_plain = may_be_plain and self.size <= MAX_CONTEXT_BYTES
        return is_event or not is_events_queue(self.queue)

    def ends_alone(self, plan: Plan, result: ToolCallResult) -> bool:
        """Return whether a call ends by itself with this result, since more than its end follows.

        The call is pending, or may be tried again, or its end causes an event.
        """
        may_retry = result.status == "error" and plan.has_retry
        return result.status == "pending" or may_retry or self.approved_by is not None

    def end_with(self, result: bytes | ToolCallResult) -> None:
        """Keep the result of the call, which ends now; bytes are those of ``result_of``."""
        if isinstance(result, bytes):
            self.wire = result
            return
        self.ended_at, self.duration_ms = iso_time(self.clock()), result.meta.duration_ms or 0.0
        self.wire, self.result, self.error, self.output = (
            result.to_json(),
            result,
            result.error,
            result.output,
        )

    @property
    def row(self) -> tuple[Any, ...]:
        """The end of the call as :meth:`Ledger.finish_many` takes it."""
        error = self.error
        if error is None:
            outcome, kind, failure = "ok", "plain" if self.is_bare else "", b""
        else:
            outcome, kind = "error", kind_of(error)
            failure = failure_of(self.attempt, self._lines, error.traceback)
        status = "dead" if self.verdict is Verdict.POISONED else "done"
        return self.id, self.token, self.agent, status, outcome, kind, self.wire, self.ended_at, failure

    @property
    def logged(self) -> tuple[CallLogFields, float | None, str, str | None]:
        """What :meth:`CallLog.write` takes of a call that has ended."""
        result, code = self.result, None if self.error is None else self.error.code
        if result is None:
            return self.log_fields, self.duration_ms, "ok" if code is None else "error", code
        return self.log_fields, result.meta.duration_ms, result.status, code

    @property
    def counted(self) -> CountedCall:
        """What metrics count; a call that has run before has no wait, which would include earlier runs."""
        error, waited, seconds = self.error, None, None
        if self.started_at is not None:
            seconds = self.duration_ms / 1000
            waited = None if self.attempt > 1 else (self.started_at - self.queued_at) / 1000
        call, tokens, sender = self.read(), None, ""
        tool = str(call.get("toolName"))
        if tool in EVENT_TOOLS:
            sender = sender_of(call)
        elif self.result is not None:
            tokens = self.result.meta.usage  # a Turn's tokens are the sum of its requests'
        user = user_of(call["auth"]) if "auth" in call else ""
        code = OK if error is None else error.code
        return CountedCall(self.agent, tool, code, waited, seconds, tokens, self.ended_at, user, sender)

    @property
    def log_fields(self) -> CallLogFields:
        """The fields of each log line about this run; some are missing if the call cannot be read."""
        if self._log_fields is None:
            call: JsonObject = {}
            with contextlib.suppress(ValueError):
                call = self.read()
            correlation_id, instance = call.get("correlationId"), call.get("instanceKey")
            tool, trace_id = call.get("toolName"), call.get("traceId")
            self._log_fields = CallLogFields(
                self.agent, self.attempt, self.id, correlation_id, instance, tool, trace_id, self.worker
            )
        return self._log_fields

    @property
    def tool_name(self) -> str:
        """The tool's name as the call has it."""
        return str(self.read().get("toolName"))

    @property
    def turn(self) -> tuple[str, str]:
        """The instanceKey and the turnId of a call."""
        call = self.read()
        return call["instanceKey"], call["turnId"]

    @property
    def shown_id(self) -> str:
        """The id of a call that everybody is shown."""
        return shown_id(self.read())

    @property
    def claim(self) -> Claim:
        """The claim with its run, in the models that foreign code and the ledger's commands take.

        Raises:
            ValueError: the call cannot be read.
        """
        if self._claim is None:
            call = self.original
            if call.bundle_ref is None and self.bundle_ref is not None:
                call = call.model_copy(update={"bundle_ref": self.bundle_ref})
            retries, begun_at = read_retried(self._retried)
            run = Run(
                self.id,
                call,
                self.worker,
                self.attempt,
                self.queued_at,
                self.clock,
                retries,
                begun_at,
                None if self.approved_by is None else self.approved_by.decode(errors="replace"),
                self.claimed_at,
                self.lines,
            )
            self._claim = Claim(run, self.token, self.verdict, self.asked_at)
        return self._claim

    @property
    def original(self) -> ToolCall:
        """The call as it was submitted, without the revision that :attr:`claim` fills in.

        Raises:
            ValueError: the call cannot be read.
        """
        if self._original is None:
            self._original = ToolCall.from_wire(self.read())
        return self._original
