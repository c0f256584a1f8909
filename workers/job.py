"""A call in a worker's hands, from the claim to its end, and how plain calls are run.

A plain call has checked arguments and a JSON value, and nothing around its handler. What an export's plain
calls have alike is found out once, in a plan. A call that needs more, because of its tool or of its fields,
is run by :meth:`workers.executor.Executor.execute`.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from json.encoder import encode_basestring as quoted
from time import monotonic, thread_time
from typing import Any, TypeVar

from broker_config import serializer
from broker_config.queues import agent_of, is_events_queue
from goondan_tasks.call_counts import OK, CountedCall
from goondan_tasks.calls import MAX_CONTEXT_BYTES, Run
from goondan_tasks.ledger.claim_request import read_retried
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import CallLogFields, Clock, JsonObject, ToolCall, ToolCallResult, iso_time
from goondan_tasks.names import EVENT_TOOLS
from workers.cancellation import Cancellation
from workers.concurrency.threads import SHORT_SECONDS
from workers.progress_reporter import ProgressReporter
from workers.tools.registered_tool import RegisteredTool

T = TypeVar("T")

_TEXTS = (
    "toolCallId",
    "toolName",
    "agentName",
    "instanceKey",
    "turnId",
    "traceId",
    "spanId",
    "correlationId",
)

#: all that a producer's call says, and its result says again but for the arguments
_BARE_FIELDS = {"v", "args", "callChain", *_TEXTS}

#: and what an agent's own call says besides
_PLAIN_FIELDS = _BARE_FIELDS | {"waiting", "parentId", "rootId", "parentSpanId", "auth", "origin"}

#: what stands before the arguments of a producer's call (goondan_tasks/ledger/submission.py)
_BEFORE_ARGS = b'"callChain":[],"args":'

#: as ``ToolCallResult.to_wire`` writes it
_RESULT = (
    '{"v":1,"toolCallId":%s,"toolName":%s,"status":"ok","output":%s,"meta":{"id":%s,"agentName":%s,'
    '"instanceKey":%s,"turnId":%s,"traceId":%s,"spanId":%s,"correlationId":%s,"worker":%s,"attempt":%d,'
    '"queuedAt":"%s","startedAt":"%s","finishedAt":"%s","durationMs":%r}}'
)


#: a handler that waits longer for something else than the processor, in seconds, runs on its own thread
IDLE_SECONDS = 0.001

#: how many of them in a row are not chance: the machine may have something else to do, too
SURE = 3


class SlowToolDetector:
    """Learns from a tool's runs whether its plain handler is slow."""

    __slots__ = ("_suspicion",)

    def __init__(self) -> None:
        self._suspicion = 0

    @property
    def is_slow(self) -> bool:
        """Whether its calls would keep the short ones waiting: each gets a thread of its own then."""
        return self._suspicion >= SURE

    def note_slow(self) -> None:
        """Record that a handler lasts."""
        self._suspicion = SURE

    def timed(self, handler: Callable[[], T]) -> T:
        """Run a handler and learn from its time alone, without the work around it."""
        begun, busy = monotonic(), thread_time()
        try:
            return handler()
        finally:
            wall = monotonic() - begun
            self.learn(wall, wall - (thread_time() - busy))

    def learn(self, wall: float, idle: float) -> None:
        """Record how many seconds a handler took, and how many of them it waited.

        One long handler is enough. Short waits count if there are several in a row: the machine may have been
        busy.
        """
        if wall > SHORT_SECONDS:
            self._suspicion = SURE
        elif idle > IDLE_SECONDS:
            self._suspicion += 1
        elif self._suspicion:
            self._suspicion = 0


#: the versions of what extensions may put around calls
Stamp = tuple[object, ...]


class Plan:
    """How an export's plain calls are run."""

    __slots__ = (
        "detector",
        "handler",
        "has_retry",
        "is_async",
        "limit_seconds",
        "message_limit",
        "stamp",
        "tool",
    )

    def __init__(
        self,
        tool: RegisteredTool,
        handler: Callable[[Any, JsonObject], Any],
        limit: float,
        detector: SlowToolDetector,
        stamp: Stamp,
    ) -> None:
        self.tool = tool
        #: the plan holds while extensions have changed nothing since
        self.stamp = stamp
        self.detector = detector
        self.handler = handler
        self.limit_seconds = limit
        self.message_limit = tool.bound.tool.spec.error_message_limit
        self.has_retry = tool.bound.export.retry is not None
        #: whether it is to be awaited on the event loop
        self.is_async = tool.is_async


def is_plain(call: Mapping[str, Any], agent: str | None) -> bool:
    """Return whether a wire record is that of a plain call to ``agent``, whole and of the right types."""
    return (
        call.keys() <= _PLAIN_FIELDS
        and call.get("agentName") == agent
        and call.get("v") == 1
        and "args" in call
        and bool(call.get("instanceKey"))
        and all(type(call.get(name)) is str for name in _TEXTS)
        and call["toolName"] not in EVENT_TOOLS
    )


def _is_bare(call: Mapping[str, Any]) -> bool:
    return call.keys() <= _BARE_FIELDS and call.get("callChain", []) == []


class JobState(IntEnum):
    """The state of a call in this worker."""

    CLAIMED = 0
    #: its mark "started" was sent
    MARKING = 1
    #: the mark is confirmed: its handler may begin
    STARTED = 2
    #: there is no run: the claim is no longer ours
    LOST = 3
    #: there is no run: the call is cancelled
    CANCELLED = 4
    #: its handler has ended
    ENDED = 5


class Job:
    """One claimed call. Whatever a plain call does not need is made when it is first asked for."""

    __slots__ = (
        "_approved_by",
        "_claim",
        "_original",
        "_retried",
        "_text",
        "agent",
        "asked_at",
        "attempt",
        "begun_at",
        "bundle_ref",
        "call",
        "cancellation",
        "claimed_at",
        "clock",
        "duration_ms",
        "end_detached",
        "ended_at",
        "id",
        "is_bare",
        "is_plain",
        "marked_at",
        "output",
        "output_text",
        "plan",
        "queue",
        "queued_at",
        "refusal",
        "reporter",
        "request",
        "started_at",
        "state",
        "token",
        "verdict",
        "worker",
    )

    def __init__(
        self, queue: str, token: str, answer: Sequence[Any], *, asked_at: float, clock: Clock, worker: str
    ) -> None:
        """Take what ``claim_on_reserve.lua`` has returned."""
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
        #: the call as in its record; ``None`` until it is read
        self.call: JsonObject | None = None
        #: whether its record is that of a plain call; known once it was asked for being readable
        self.is_plain = False
        #: whether the result of a plain call says all that the call says, but for the arguments
        self.is_bare = False
        #: how its handler is run, if it is a plain call
        self.plan: Plan | None = None
        #: its result, if its arguments are wrong
        self.refusal: ToolCallResult | None = None
        self.state = JobState.CLAIMED
        #: ``time.monotonic()`` before the mark was sent, which renews the lease
        self.marked_at = 0.0
        #: ms, Redis time
        self.started_at: float | None = None
        #: ``time.monotonic()`` when its handler began
        self.begun_at = 0.0
        #: ISO 8601, Redis time
        self.ended_at = ""
        self.duration_ms = 0.0
        #: what a plain handler has returned, and its JSON
        self.output: Any = None
        self.output_text: bytes | None = None
        #: made when its handler asks, or when the call lasts
        self.cancellation: Cancellation | None = None
        self.reporter: ProgressReporter | None = None
        #: set when the call lasts: takes its result, since the thread that runs it does nothing else any more
        self.request: Any = None
        self.end_detached: Callable[[ToolCallResult], None] | None = None
        #: nothing, if its record has none
        self._text: bytes = text or b""
        self._retried: bytes | None = retried
        self._approved_by: bytes | None = approved_by
        self._original: ToolCall | None = None
        self._claim: Claim | None = None

    def require_fresh(self, seconds: float) -> None:
        """Have the call marked again if its mark, which has renewed the lease, is as old as that."""
        if self.state is JobState.STARTED and monotonic() - self.marked_at >= seconds:
            self.state = JobState.CLAIMED

    @property
    def is_running(self) -> bool:
        """Whether its handler runs; the pool shows one that lasts."""
        return bool(self.begun_at) and self.state is not JobState.ENDED and self.end_detached is None

    @property
    def waits(self) -> bool:
        """Whether its handler has not begun."""
        return not self.begun_at and self.state is not JobState.ENDED

    @property
    def is_first_run(self) -> bool:
        """Whether nothing has happened to the call before: no retry, no approval."""
        return self._retried is None and self._approved_by is None

    @property
    def size(self) -> int:
        """How many bytes the call has as JSON."""
        return len(self._text)

    @property
    def args_text(self) -> bytes | None:
        """The JSON of such a call's arguments, if a client of ours has written it: they come last then."""
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

    @property
    def is_readable(self) -> bool:
        """Whether the record holds a call that this version knows, or in a queue of events an event."""
        try:
            call = self.read()
            may_be_plain = self.is_first_run and is_plain(call, self.agent)
            self.is_bare = self.is_plain = may_be_plain and _is_bare(call)
            if self.is_bare:
                return True
            # all else is read now, before anything is begun for it
            is_event = self.claim.run.call.tool_name in EVENT_TOOLS
        except ValueError:
            return False
        self.is_plain = may_be_plain and self.size <= MAX_CONTEXT_BYTES
        return is_event or not is_events_queue(self.queue)

    @property
    def counted(self) -> CountedCall:
        """What is counted of its end if it has succeeded."""
        waited = None if self.attempt > 1 or self.started_at is None else self.started_at - self.queued_at
        return CountedCall(
            self.agent, self.tool_name, OK, None if waited is None else waited / 1000, self.duration_ms / 1000
        )

    @property
    def log_fields(self) -> CallLogFields:
        """The fields of each log line about this run, as far as its call can be read."""
        call: JsonObject = {}
        with contextlib.suppress(ValueError):
            call = self.read()
        correlation_id, instance = call.get("correlationId"), call.get("instanceKey")
        tool, trace_id = call.get("toolName"), call.get("traceId")
        return CallLogFields(
            self.agent, self.attempt, self.id, correlation_id, instance, tool, trace_id, self.worker
        )

    @property
    def tool_name(self) -> str:
        """The tool's name, as in the call."""
        return str(self.read().get("toolName"))

    @property
    def claim(self) -> Claim:
        """The claim, as the general way takes it.

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
                None if self._approved_by is None else self._approved_by.decode(errors="replace"),
                self.claimed_at,
            )
            self._claim = Claim(run, self.token, self.verdict, self.asked_at)
        return self._claim

    @property
    def original(self) -> ToolCall:
        """The call as it was submitted: the claim has filled in the revision that this worker runs.

        Raises:
            ValueError: the call cannot be read.
        """
        if self._original is None:
            self._original = ToolCall.from_wire(self.read())
        return self._original


def result_of(job: Job, call: JsonObject, output: str) -> bytes:
    """Write the result of a plain call that has just succeeded; ``output`` is JSON."""
    finished_at = job.clock()
    started_at = job.started_at or finished_at
    job.ended_at = iso_time(finished_at)
    job.duration_ms = round(finished_at - started_at, 3)
    return (
        _RESULT
        % (
            quoted(call["toolCallId"]),
            quoted(call["toolName"]),
            output,
            quoted(job.id),
            quoted(call["agentName"]),
            quoted(call["instanceKey"]),
            quoted(call["turnId"]),
            quoted(call["traceId"]),
            quoted(call["spanId"]),
            quoted(call["correlationId"]),
            quoted(job.worker),
            job.attempt,
            iso_time(job.queued_at),
            iso_time(started_at),
            job.ended_at,
            job.duration_ms,
        )
    ).encode()


@dataclass(frozen=True, slots=True)
class Ended:
    """A call that has ended here, its result as JSON, and its failure if it has failed."""

    job: Job
    wire: bytes
    failure: ToolCallResult | None = None

    @property
    def row(self) -> tuple[Any, ...]:
        """What :meth:`Ledger.finish_many` takes."""
        job = self.job
        outcome = "ok" if self.failure is None else "error"
        kind = "plain" if self.failure is None and job.is_bare else ""
        return job.id, job.token, job.agent, "done", outcome, kind, self.wire, job.ended_at
