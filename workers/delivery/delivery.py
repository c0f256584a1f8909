"""The claims of calls: taken, held while their runs last, marked, given back, refused.

Acknowledgements of the broker decide nothing here; the ledger's claim does (DESIGN "Delivery"). Commands to
the ledger go through the pipelined writer. While Redis is away they wait, and no call is dropped or reported
as failed.
"""

import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import structlog
from redis.exceptions import RedisError, ResponseError

from broker_config.pipelined_writer import PAUSE_SECONDS, PipelinedWriter, Receiver
from broker_config.queues import agent_of, call_queue, events_queue
from broker_config.refusals import refusal_text
from broker_config.scripts import ClaimOnReserve, ScriptCall
from goondan_tasks.authoring.handoff import check_call_chain
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.calls import draft_call
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    GoondanError,
    ToolCallConflictError,
    ToolCancelledError,
    ToolOutcomeUnknownError,
)
from goondan_tasks.contract.events import TOOL_OF_TASK, handling_agent, is_event, queue_of
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.contract.names import NO_CALL_TOOL, STEP_TOOL
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored, Verdict, damaged
from workers.cancellation import Cancellation, TimedOut, Watch, timed_out
from workers.concurrency.watchdog import CallOff, Watchdog
from workers.delivery.cancel_watch import CancelWatch
from workers.delivery.incoming import Incoming
from workers.delivery.limiter import CallLimiter, MessageTurn
from workers.delivery.result_writer import ResultWriter
from workers.delivery.spans import NoSpans, RunSpans
from workers.job import Job
from workers.reporters import OutputEmitter, ProgressReporter
from workers.tools.dynamic_tools import turn_of
from workers.tools.registry import Registry

logger = structlog.get_logger(__name__)

_NO_TURN: MessageTurn = nullcontext()

#: how many characters of a message are kept in its dead letter
LONGEST_SHOWN = 2_000


class RevisionTools(Protocol):
    """A revision of the bundle: :class:`workers.revisions.revision.Revision`."""

    @property
    def ref(self) -> str | None: ...
    @property
    def registry(self) -> Registry: ...


class RevisionsOfCalls(Protocol):
    """The revisions that the process has loaded: :class:`workers.revisions.revisions.Revisions`."""

    @property
    def active(self) -> RevisionTools: ...

    def fixed(self, call: ToolCall) -> ToolCall:
        """Return a call with its revision filled in."""

    def registry(self, ref: str | None) -> Registry:
        """Return the tools of a revision, loading it if necessary: this may block; raises a GoondanError."""


@dataclass(eq=False)
class Delivery:
    """Holds the claims of one worker process."""

    ledger: Ledger
    writer: PipelinedWriter
    reaper: Reaper
    limiter: CallLimiter
    revisions: RevisionsOfCalls
    leases: LeaseKeeper
    watchdog: Watchdog
    cancels: CancelWatch
    result_writer: ResultWriter
    spans: RunSpans
    #: whether runs have spans
    has_spans: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_spans = not isinstance(self.spans, NoSpans)

    def claim(self, incoming: Incoming, worker: str, turn: MessageTurn = _NO_TURN) -> Claim:
        """Claim the call of a message; its limits are asked in its ``turn``.

        This waits while Redis is away or a revision of the bundle is being loaded.

        Raises:
            GoondanError: the message holds no call that can be run; :meth:`refuse` answers it.
        """
        call = self.revisions.fixed(self.call_of(incoming))
        tools = self.revisions.registry(call.bundle_ref)
        terms = self._terms(tools.known(call.agent_name, call.tool_name, turn_of(call)))
        is_plain = not incoming.was_stored
        request = ClaimRequest(
            incoming.id, call, worker, terms, was_stored=incoming.was_stored, must_match=is_plain
        )
        try:
            if is_event(call):
                return self._claim_event(request)
            return self.limiter.claim(request, self._claim, turn)
        except ResponseError as error:
            raise damaged(incoming.id, refusal_text(error)) from error

    def call_of(self, incoming: Incoming) -> ToolCall:
        """Read the call of a message and check whether it may be run.

        Raises:
            GoondanError: the message holds no such call, or an agent would wait for itself.
        """
        call = incoming.call(self.ledger.settings.max_args_bytes)
        if is_event(call):
            check_call_chain(call, most_hops=self.ledger.settings.max_handoff_depth)
        return call

    def claim_on_reserve(self, worker: str, agents: Iterable[str]) -> ClaimOnReserve:
        """Return the terms on which the agents' calls are claimed as their messages are reserved."""
        default, active = self._terms(None), self.revisions.active
        terms: dict[str, dict[str, ClaimTerms | None]] = {}
        for agent in agents:
            tools = active.registry
            if tools.handles_events(agent):
                terms[events_queue(agent)] = {
                    task: self._early_terms(tools, agent, tool) for task, tool in TOOL_OF_TASK.items()
                }
            named = {tool: self._early_terms(tools, agent, tool) for tool in tools.all_known(agent)}
            for own in tools.dynamic.of_turns(agent):
                its = self._terms(own.registered.bound)
                if named.setdefault(own.item.name, its) != its:  # only the call says which tool is meant
                    named[own.item.name] = None
            named |= dict.fromkeys(self.limiter.paused.tools(agent))
            if active.ref is not None:
                named[STEP_TOOL] = None  # it reaches a Safe Point before it is claimed
            terms[call_queue(agent)] = {tool: one for tool, one in named.items() if one != default}
        return self.ledger.claim_on_reserve(worker, default.max_attempts, terms, bundle_ref=active.ref)

    def release(self, job: Job) -> tuple[ScriptCall[Any], Receiver] | None:
        """Return the script call that releases the claim of a call that has not begun, and its receiver.

        The script queues the call again, with a new message: the old one went when the call was claimed. A
        call that is cancelled ends instead. One that cannot be read is left to a sweep, and nothing is
        returned. The receiver takes the answer, or the error that came in its place.
        """
        try:
            claim = job.claim
        except ValueError as error:
            logger.error("call.not_given_back", **job.log_fields.known(), reason=str(error))
            return None

        def on_answer(answer: Any) -> None:
            if isinstance(answer, RedisError):
                self.writer.send(script_call, on_answer)
            elif not answer:
                self.result_writer.store(job, self.reaper.failure(claim, ToolCancelledError()))
                self.flush()

        message = self.reaper.message(job.id, job.original)
        # even if it is marked as started, no worker has begun it
        script_call = self.ledger.release(claim, died=False, message=message, is_untouched=True)
        return script_call, on_answer

    def give_back(self, job: Job) -> None:
        """Release the claim of a call that has not begun, through the writer; see :meth:`release`."""
        release = self.release(job)
        if release is not None:
            self.writer.send(*release)

    def hold(self, job: Job, answer: Callable[[ToolCallResult], bool]) -> Watch:
        """Renew the lease of a run from now on and watch for its cancellation.

        ``answer`` takes the result of a handler that is cancelled and does not end, while it still runs; it
        returns whether the call had none yet. Return the function that sets a time limit, which the job has
        from now on.
        """
        claim, cancellation = job.claim, job.ensure_cancellation()

        def abandon() -> None:
            error = cancellation.error or ToolCancelledError()
            if answer(self.reaper.failure(claim, error, job.started_at)):
                logger.warning("call.abandoned", **claim.run.log_fields, reason=error.message)
                self.flush()

        def watch(limit: float, error: TimedOut = timed_out, /, *, patience: float = 0.0) -> CallOff:
            def expire() -> None:
                cancellation.set(error(limit, agent=handling_agent(claim.run.call)))
                abandon()

            if patience <= 0:  # a handler that can be interrupted is given time to end by the CancelWatch
                cancellation.on_cancel(abandon)
            return self.watchdog.watch(limit + patience, expire)

        job.watch = watch
        self.leases.hold(claim)
        self.cancels.hold(claim, abandon, cancellation)
        return watch

    def reporter(self, job: Job) -> ProgressReporter[ScriptCall[Any]]:
        """Make the ``progress`` of a run, which waits until it begins."""
        written = partial(self.ledger.progress, job.id, job.token)
        return ProgressReporter(written, self.writer.send, self.watchdog.watch, waits=True)

    def emitter(self, job: Job, stream: str) -> OutputEmitter[ScriptCall[Any]]:
        """Make the ``emit`` of a run whose call or Turn has a stream; it waits until it begins."""
        written = partial(self.ledger.emit, job.id, job.token, stream)
        return OutputEmitter(
            {"toolCallId": job.shown_id, "callId": job.id, "tool": job.tool_name, "attempt": job.attempt},
            written,
            self.writer.send,
            self.watchdog.watch,
            waits=True,
        )

    def start(self, claim: Claim, cancellation: Cancellation, *, has_begun: bool = False) -> float:
        """Mark the run as started, just before code around it begins.

        That begins only after Redis has confirmed the mark. A mark that was only sent is lost if this
        process dies with unread answers: the kernel then resets the connection, and Redis drops the commands
        that it has not read. A run that ``has_begun`` is marked again: its process may have been frozen.

        Return until when the mark is fresh, by ``time.monotonic()``: it must be set again before code that
        begins later.

        Raises:
            ToolCancelledError, ToolOutcomeUnknownError: the run must not begin, or not go on.
        """
        is_first = True
        if not has_begun:
            self.result_writer.unstarted.add(claim.token)
        try:
            while (fresh_until := self._confirmed_mark(claim, is_first=is_first)) <= time.monotonic():
                cancellation.require_wanted()
                is_first = False
        except GoondanError:
            self.result_writer.take_unstarted(claim)
            raise
        if not (has_begun or self.result_writer.take_unstarted(claim)):
            raise ToolCancelledError("The worker stops, and has given the call back.")
        return fresh_until

    def flush(self) -> None:
        """Send what was put off for a common packet."""
        self.writer.flush()

    def settle(self, claim: Claim) -> None:
        """Act on a claim whose verdict is not to run the call; if Redis is away, a sweep will."""
        try:
            if claim.verdict is Verdict.TAKEN:
                self._bury_conflict(claim)
            elif claim.is_ours:
                self.reaper.settle(claim)
        except (RedisError, BrokerUnreachableError) as error:
            logger.warning("call.not_settled", **claim.run.log_fields, reason=str(error))
        if not claim.is_ours:
            logger.info("call.not_run", **claim.run.log_fields, verdict=str(claim.verdict))

    def _bury_conflict(self, claim: Claim) -> None:
        """Make a dead letter of a plain Celery message whose task id belongs to another call or event."""
        call = claim.run.call
        reason = (
            f"{ToolCallConflictError.code}: its task id {claim.run.id} was used before with other content. "
            f"{ToolCallConflictError.suggestion}"
        )
        self.bury(queue_of(call), claim.run.worker, reason, repr(call.to_wire())[:LONGEST_SHOWN])

    def refuse(self, incoming: Incoming, worker: str, error: GoondanError, token: str | None = None) -> None:
        """Answer a message that holds no call that can be run; ``token`` is that of its claim, if any."""
        fields = incoming.log_fields(worker)
        logger.warning("call.refused", **fields, code=error.code, reason=error.message)
        request = ClaimRequest(incoming.id, incoming.placeholder(), worker, ClaimTerms())
        if token is not None:
            request = replace(request, token=token)  # a claim is repeated by its token

        def on_answer(claim: Claim) -> None:
            if claim.is_ours:
                self._end(claim, self.reaper.failure(claim, error), incoming.queue)

        def on_refusal(refusal: ResponseError) -> None:
            reason = damaged(incoming.id, refusal_text(refusal)).message
            self.bury(incoming.queue, worker, reason, repr(incoming.wire)[:LONGEST_SHOWN])

        self.writer.send(self.ledger.claim(request), on_answer, refused=on_refusal)

    def bury(self, queue: str, worker: str, reason: str, message: str) -> None:
        """Make a dead letter of a message in an agent's queue that holds no call; no client waits for it.

        A message that is redelivered after a worker's death makes the same letter again.
        """
        logger.error("message.buried", queue=queue, reason=reason)
        agent = agent_of(queue)
        if agent is None:
            return
        call_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"goondan:message:{queue}:{message}"))
        args = {"queue": queue, "message": message, "reason": reason}
        names = {"agentName": agent, "toolName": NO_CALL_TOOL, "toolCallId": call_id, "turnId": call_id}
        request = ClaimRequest(call_id, draft_call({**names, "args": args}).call, worker, ClaimTerms())

        def on_answer(claim: Claim) -> None:
            if claim.is_ours:
                self._end(*self.reaper.dead_letter(claim), queue)

        self.writer.send(self.ledger.claim(request), on_answer)

    def _end(self, claim: Claim, result: ToolCallResult, queue: str) -> None:
        """End a call that is not run."""
        job = Job.of_claim(claim, queue)
        job.is_told = True
        self.result_writer.store(job, result)
        self.flush()

    def _claim(self, request: ClaimRequest) -> Claim:
        """Claim the call; one that a plain Celery producer queued has no record and is sent as a whole.

        If any other has no record, it has ended and its record has expired since, as that of a call that was
        cancelled while no worker ran.
        """
        return self.writer.ask(self.ledger.claim(request, with_call=not request.was_stored))

    def _claim_event(self, request: ClaimRequest) -> Claim:
        """Claim an event, if it is the first of its mailbox."""
        call = request.call
        script_call = self.ledger.claim_event(
            request,
            self.reaper.message(request.call_id, call),
            is_handled_here=self.revisions.registry(call.bundle_ref).handles_events(call.agent_name),
        )
        return self.writer.ask(script_call)

    def _confirmed_mark(self, claim: Claim, *, is_first: bool) -> float:
        """Ask Redis to confirm the mark; return until when it is fresh, in the past if it is to be repeated.

        If the process was frozen or Redis was slow, too little is left of the lease that the mark renews.

        Raises:
            ToolCancelledError, ToolOutcomeUnknownError: the run must not begin.
        """
        asked_at = time.monotonic()
        try:
            [answer] = self.ledger.start([claim.id_and_token]).run(self.ledger.redis)
        except RedisError as error:
            if is_first:  # once, not twice a second
                logger.warning("call.waits_to_start", **claim.run.log_fields, reason=refusal_text(error))
            time.sleep(PAUSE_SECONDS)
            return asked_at
        if answer == Stored.CANCELLED:
            raise ToolCancelledError()
        if answer in (Stored.LOST, Stored.DAMAGED):
            raise ToolOutcomeUnknownError("The claim was lost before the handler started.")
        return asked_at + self.ledger.settings.lease_seconds * 3 / 4

    def _early_terms(self, tools: Registry, agent: str, tool: str) -> ClaimTerms | None:
        limits, terms = tools.limits(agent, tool), self._terms(tools.known(agent, tool))
        if limits is None or limits.is_empty:
            return terms
        # a call without a Step of a tool that the agent does not declare is refused, and takes no permit
        is_declared = tools.limits(agent, tool, in_step=False) is not None
        return replace(terms, limits=limits.terms) if is_declared else None

    def _terms(self, bound: BoundTool | None) -> ClaimTerms:
        if bound is None:
            return ClaimTerms(max_attempts=self.ledger.settings.max_attempts)
        export = bound.export
        return ClaimTerms(
            idempotent=bool(export.idempotent),
            max_attempts=export.max_attempts or self.ledger.settings.max_attempts,
            limit_seconds=export.timeout_seconds,
        )
