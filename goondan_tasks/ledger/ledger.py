"""The ledger's operations on calls: submit, claim, start, renew, finish, release, cancel, sweep.

Each operation is one Lua script, so a process that dies leaves nothing half-done. Only Redis time decides
(DESIGN "Delivery"). Each method returns a script call: ``run(ledger.redis)`` waits for the answer and may
raise ``redis.exceptions.RedisError``; a :class:`broker_config.pipelined_writer.PipelinedWriter` or a
:class:`broker_config.queue_reader.QueueReader` sends it without waiting.
"""

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import events_queue, wake_up_key
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall, ScriptConnection
from broker_config.settings import Settings
from goondan_tasks.contract.calls import Run, queue_element
from goondan_tasks.contract.errors import CallClosedError
from goondan_tasks.contract.events import is_event, mailbox_of, queue_of
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, epoch_milliseconds, iso_time
from goondan_tasks.contract.names import NO_CALLBACK, CallbackToken, callback_token
from goondan_tasks.ledger.claim_request import (
    ClaimRequest,
    ClaimTerms,
    ids_of,
    new_token,
    settlement_claim,
    swept_claim,
)
from goondan_tasks.ledger.endings import kind_of, stored_of
from goondan_tasks.ledger.former_runs import failure_of, former_ending
from goondan_tasks.ledger.record import (
    Admission,
    CallRecords,
    Claim,
    Outcome,
    Stored,
    Verdict,
    celery_record,
    notification,
)
from goondan_tasks.ledger.scripts import MOST_ENTRIES, Scripts
from goondan_tasks.ledger.submission import Submission, batches, deadline_of, digest_of, trace_names

#: how many of the first messages of a queue, and bytes of them, are searched for one, which takes about 1 ms
SEARCHED = (1_000, 4 * 1024 * 1024)

#: the maximum number of calls that one sweep script takes
SWEEP_BATCH = 50


def sweep_seconds(settings: Settings) -> float:
    """Return the interval between two sweeps of a worker.

    It is short enough for a sweep to notice that leases could not be renewed.
    """
    return min(5.0, settings.lease_seconds / 3)


class Ledger(CallRecords):
    """The calls in one Redis, under one namespace."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        super().__init__(redis, Keys(settings.namespace))
        self.settings = settings
        self._submissions = ScriptConnection(redis)
        self._scripts = Scripts.read(settings)
        self._lease_ms = round(settings.lease_seconds * 1000)
        keys = self.keys
        self._queue_timeout_ms = round(settings.queue_timeout_seconds * 1000)
        self._result_ttl = settings.result_ttl_seconds
        # a record must outlive the longest wait plus the longest run
        self._record_ttl = self._result_ttl + round(
            settings.queue_timeout_seconds + settings.call_timeout_seconds
        )
        pause_ms = round(sweep_seconds(settings) * 1000)
        self._longest_pause_ms = 2 * pause_ms
        #: what ``open_limits`` in ``permits.lua`` takes
        self.limit_terms = f"{self._lease_ms} {pause_ms} {round(self._record_ttl)} {keys.prefix}"
        families = (keys.results, keys.running, keys.celery_result, keys.dead_letters)
        prefixes = (family("") for family in families)
        self._finish_terms = (settings.result_ttl_seconds, *prefixes, self.limit_terms)

    @property
    def scripts(self) -> Scripts:
        """The scripts, for other parts of the ledger."""
        return self._scripts

    @property
    def unawaited_scripts(self) -> tuple[Script, ...]:
        """The scripts that are sent without waiting, so they must be loaded in advance.

        If Redis did not know one, it would be sent again later: a start or what a handler tells after the
        result, a result late, released calls out of order.
        """
        own = self._scripts
        return own.start, own.progress, own.emit, own.finish, own.finish_step, own.finish_event, own.release

    def submit_all(
        self,
        submissions: Sequence[Submission],
        producer: str,
        *after: ScriptCall[Any],
        meanwhile: Callable[[], object] | None = None,
    ) -> list[Admission]:
        """Accept new calls, and run scripts ``after`` that, in one trip; ``meanwhile`` before it is answered.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached, or refuses the command.
            NotConfirmedError: too few replicas have the calls; ``answers`` are the admissions of each batch,
                then those of ``after``.
        """
        calls = [self.submit_batch(batch, producer) for batch in batches(submissions)]
        answers = self._submissions.run([*calls, *after], meanwhile)[: len(calls)]
        return list(itertools.chain.from_iterable(answers))

    def submit(self, submission: Submission, producer: str) -> ScriptCall[Admission]:
        """Accept one call; the answer is its :class:`Admission`."""
        batch = self.submit_batch([submission], producer)
        return ScriptCall(batch.script, batch.keys, batch.arguments, Admission.of)

    def submit_batch(self, submissions: Sequence[Submission], producer: str) -> ScriptCall[list[Admission]]:
        """Accept at most ``BATCH_CALLS`` calls (``submit.lua``); the answer has an Admission for each one."""
        keys: list[str] = [self.keys.due]
        arguments: list[Any] = [self.keys.prefix, producer, self._record_ttl]
        numbers: dict[str, int] = {}
        for one in submissions:
            queue = queue_of(one.call)
            number = numbers.setdefault(queue, len(numbers))
            if 3 * number == len(keys) - 1:
                keys += (self.keys.calls(one.call.agent_name), queue, wake_up_key(queue))
            arguments += (
                one.id,
                one.call_json,
                one.digest,
                number,
                # with patience_ms, Redis computes the deadline
                deadline_of(one.call) if one.patience_ms is None else "",
                self._patience(one),
                one.message,
                "".join(self._indexes(one.id, one.call)),
                one.mailbox,
                one.not_before,
                one.keep,
            )
        parse = partial(Admission.of_batch, count=len(submissions))
        return ScriptCall(self._scripts.submit, keys, arguments, parse)

    def _patience(self, submission: Submission) -> int:
        return self._queue_timeout_ms if submission.patience_ms is None else submission.patience_ms

    def claim(self, request: ClaimRequest, *, with_call: bool = True) -> ScriptCall[Claim]:
        """Claim a call for one run; :attr:`Claim.verdict` says what to do with it (``claim.lua``).

        Unless ``with_call``, the call's JSON is not sent, and a call without a record is not claimed.
        """
        call, keys = request.call, self.keys
        agent = call.agent_name
        arguments = [request.call_id, *self._claim_terms(request.token, request.worker, request.terms)]
        if with_call:
            wire = serializer.encode(call.to_wire())
            arguments += [
                wire,
                digest_of(call),
                deadline_of(call),
                self._queue_timeout_ms,
                int(request.must_match),
                *self._indexes(request.call_id, call),
            ]
        return ScriptCall(
            self._scripts.claim,
            [keys.call(request.call_id), keys.due, keys.running(agent), keys.calls(agent)],
            arguments,
            request.claim,
        )

    def _claim_terms(self, token: str, worker: str, terms: ClaimTerms) -> list[Any]:
        return [token, worker, self._lease_ms, self._record_ttl, *terms.written[:3]]

    def _indexes(self, call_id: str, call: ToolCall) -> tuple[str, ...]:
        """Return the keys of a call's trace indexes as one script argument, or no argument."""
        names = trace_names(call_id, call)
        return (" ".join(self.keys.trace(name) for name in names),) if names else ()

    def claim_event(
        self, request: ClaimRequest, message: bytes, *, is_handled_here: bool
    ) -> ScriptCall[Claim]:
        """Claim an event for one run, if it is the first in its mailbox (``claim_event.lua``)."""
        claim, call = self.claim(request), request.call
        queue = queue_of(call)
        flags = int(not is_handled_here), int(request.was_stored)
        return ScriptCall(
            self._scripts.claim_event,
            [*claim.keys, queue, wake_up_key(queue)],
            [*claim.arguments, self.keys.prefix, mailbox_of(call), message, *flags],
            request.claim,
        )

    def fetch(
        self, agent: str, mailbox: str, taker: str, *, terms: ClaimTerms, token: str
    ) -> ScriptCall[Claim | None]:
        """Claim the next event of an agent whose events are not handled by workers (``fetch.lua``).

        An empty ``mailbox`` means any of the agent's. The answer is a claim, or ``None`` if no event waits.
        The same ``token`` gets the same event again.
        """
        keys, asked_at = self.keys, time.monotonic()

        def parse(found: Any) -> Claim | None:
            if found is None:
                return None
            call_id, call_json, answer = found
            call = ToolCall.from_wire(serializer.decode(call_json))
            return ClaimRequest(call_id.decode(), call, taker, terms, token, asked_at).claim(answer)

        return ScriptCall(
            self._scripts.fetch,
            [keys.due, keys.running(agent), keys.calls(agent), events_queue(agent)],
            [*self._claim_terms(token, taker, terms), keys.prefix, agent, mailbox],
            parse,
        )

    def release_events(self, agent: str, mailboxes: Sequence[str]) -> ScriptCall[None]:
        """Queue the first event of each mailbox again if a worker has parked it (``release_events.lua``)."""
        queue = events_queue(agent)
        return ScriptCall(
            self._scripts.release_events,
            [queue, wake_up_key(queue)],
            [self.keys.prefix, *mailboxes],
        )

    def claim_on_reserve(
        self,
        worker: str,
        most: int,
        terms: Mapping[str, Mapping[str, ClaimTerms | None]],
        *,
        bundle_ref: str | None = None,
    ) -> ClaimOnReserve:
        """Return the claim that is made while messages are reserved (``claim_on_reserve.lua``).

        ``terms`` are by queue and tool. A call of a tool without an entry is claimed as not idempotent, with
        ``most`` attempts. A call is not claimed if its tool's entry is ``None``, or if it belongs to another
        revision than ``bundle_ref``. Those of a queue of events are by task. An event without an entry is
        not claimed, and with a ``bundle_ref`` none is.
        """
        argument = {
            "worker": worker,
            "lease": self._lease_ms,
            "ttl": self._record_ttl,
            "ns": self.keys.prefix,
            "most": most,
            "ref": bundle_ref or "",
            "limits": self.limit_terms,
        }
        written = {
            queue: {name: one is not None and one.written for name, one in named.items()}
            for queue, named in terms.items()
        }
        return ClaimOnReserve(
            self._scripts.claim_on_reserve.text,
            serializer.encode(argument).decode(),
            {queue: serializer.encode(named).decode() for queue, named in written.items()},
        )

    def start(
        self, claims: Sequence[tuple[str, str]], own_keys: Iterable[str] = itertools.repeat("")
    ) -> ScriptCall[list[int]]:
        """Mark runs as started, just before their handlers, and renew their leases (``start.lua``).

        Each claim is ``(id, token)``; ``own_keys`` are the limits of their idempotencyKeys that are not asked
        for yet, as text. The answer has a :class:`Stored` for each. A run is not marked unless that is YES.
        """
        keys = [self.keys.due, *(self.keys.call(call_id) for call_id, _ in claims)]
        rows = ((*claim, own) for claim, own in zip(claims, own_keys, strict=False))
        return ScriptCall(
            self._scripts.start, keys, [self._lease_ms, self.limit_terms, *itertools.chain(*rows)]
        )

    def renew(self, claims: Sequence[tuple[str, str]]) -> ScriptCall[set[str]]:
        """Renew leases, each claim ``(id, token)`` (``renew.lua``); the answer has the ids of lost claims."""
        keys = [self.keys.due, *(self.keys.call(call_id) for call_id, _ in claims)]
        arguments = [self._lease_ms, self._record_ttl, *itertools.chain(*claims)]
        return ScriptCall(self._scripts.renew, keys, arguments, ids_of)

    def finish(
        self,
        claim: Claim,
        result: ToolCallResult,
        answer: Submission | None = None,
        *,
        still_runs: bool = False,
    ) -> ScriptCall[Stored]:
        """Store a final result and notify all waiting clients (``finish.lua``, ``finish_event.lua``).

        ``answer`` is sent to the agent that asked if the call is an event, and to the call's own agent if it
        was pending. An event that ``still_runs`` keeps its claim and its place in the mailbox until it is
        finished again.
        """
        ended = self.ended_with(claim, result)
        if is_event(claim.run.call) or answer is not None:
            return self.finish_event(claim.run, ended, answer, still_runs=still_runs)
        many = self.finish_many([ended])
        return ScriptCall(many.script, many.keys, many.arguments, stored_of)

    def finish_event(
        self, run: Run, ended: tuple[Any, ...], answer: Submission | None, *, still_runs: bool = False
    ) -> ScriptCall[Stored]:
        """Do the same for an event, or with an ``answer``; ``ended`` is as :meth:`finish_many` takes it."""
        return ScriptCall(
            self._scripts.finish_event,
            [self.keys.due, self.keys.call(run.id), *self._event_keys(run.call, answer)],
            [
                *self._finish_terms,
                *ended,
                self.keys.prefix,
                self._lease_ms if still_runs else "",
                new_token(),
                mailbox_of(run.call) if is_event(run.call) else "",
                *self._answer(answer),
            ],
            stored_of,
        )

    def ended_with(self, claim: Claim, result: ToolCallResult) -> tuple[Any, ...]:
        """Return the end of a run with its result, as :meth:`finish_many` takes it."""
        run, error, wire = claim.run, result.error, result.to_json()
        failure = b"" if error is None else failure_of(run.attempt, run.lines, error.traceback)
        return self.ended(claim, wire, outcome=result.status, kind=kind_of(error), failure=failure)

    def ended(
        self, claim: Claim, result: bytes, *, outcome: str, kind: str, failure: bytes = b""
    ) -> tuple[Any, ...]:
        """Return the end of a run as :meth:`finish_many` takes it."""
        run, status = claim.run, "dead" if claim.verdict is Verdict.POISONED else "done"
        done_at = iso_time(run.clock())
        return run.id, claim.token, run.call.agent_name, status, outcome, kind, result, done_at, failure

    def finish_many(self, ended: Sequence[tuple[Any, ...]]) -> ScriptCall[list[int]]:
        """Store the final results of tool calls in one script (``finish.lua``).

        Each is ``(id, token, agent, "done" or "dead", outcome, kind, result as JSON, ISO 8601 time,
        failure)``; ``finish_call`` in ``finishing.lua`` lists the kinds, and :func:`failure_of` returns the
        last.
        """
        keys = [self.keys.due, *(self.keys.call(one[0]) for one in ended)]
        arguments = [*self._finish_terms, *itertools.chain(*ended)]
        return ScriptCall(self._scripts.finish, keys, arguments)

    def _event_keys(self, call: ToolCall, answer: Submission | None) -> list[str]:
        queues = [queue_of(one) for one in (call, *([answer.call] if answer else []))]
        keys = [key for queue in queues for key in (queue, wake_up_key(queue))]
        if answer is not None and answer.mailbox:
            keys += [self.keys.call(answer.id), self.keys.calls(answer.call.agent_name)]
        return keys

    def _answer(self, answer: Submission | None) -> list[Any]:
        if answer is None:
            return []
        if not answer.mailbox:
            return [answer.message]
        event = answer.id, answer.call_json, answer.digest, self._patience(answer), self._record_ttl
        return [answer.message, *event, answer.mailbox, *self._indexes(answer.id, answer.call)]

    def release(
        self, claim: Claim, *, died: bool, message: bytes = b"", is_untouched: bool = False
    ) -> ScriptCall[bool]:
        """Queue a claimed call again, and push ``message`` if there is one (``release.lua``).

        With ``died``, the death of the call's worker is counted. Without it, a run that has not started does
        not count as an attempt. The answer is false if the claim was lost, the call is cancelled, or its run
        has started and it is not idempotent. With ``is_untouched``, the run counts as not started. The lines
        that the run has logged are kept with the call.
        """
        run, keys = claim.run, self.keys
        queue, failure = queue_of(run.call), failure_of(run.attempt, run.lines)
        return ScriptCall(
            self._scripts.release,
            [keys.call(run.id), keys.due, keys.running(run.call.agent_name), queue, wake_up_key(queue)],
            [run.id, claim.token, message, int(died), int(is_untouched), self.limit_terms, failure],
            bool,
        )

    def suspend(self, claim: Claim, result: ToolCallResult) -> ScriptCall[Any]:
        """Make a call wait for its completion or for an approval (``suspend.lua``)."""
        run, keys, is_approval = claim.run, self.keys, result.meta.awaits == "approval"
        agent, wire = run.call.agent_name, result.to_json()
        return ScriptCall(
            self._scripts.suspend,
            [
                keys.call(run.id),
                keys.due,
                keys.running(agent),
                keys.celery_result(run.id),
                keys.pending(agent),
                keys.approvals(agent),
            ],
            [
                run.id,
                claim.token,
                celery_record(run, wire),
                self._expiry(run, result),
                self._record_ttl,
                keys.results(""),
                notification(run, wire),
                "" if is_approval else callback_token(run.id, claim.token),
                result.handle or "",
                int(is_approval),
                wire,
                self.limit_terms,
            ],
        )

    def _expiry(self, run: Run, result: ToolCallResult) -> int:
        """Return when a pending call expires, in ms; the result of a middleware may not say."""
        if result.meta.expires_at is None:
            return round(run.clock() + self._result_ttl * 1000)
        return epoch_milliseconds(result.meta.expires_at)

    def resolve(
        self,
        call_id: str,
        outcome: Outcome,
        completer: str,
        *,
        is_decision: bool = False,
        callback: CallbackToken = NO_CALLBACK,
    ) -> ScriptCall[Claim | None]:
        """Complete a pending call, or decide one that waits for an approval (``resolve.lua``).

        The answer is a claim that the caller must settle. It is ``None`` if the call still runs: then the
        outcome is kept until the handler returns ``pending``. ``callback`` is given if the outcome came by
        the call's callback URL.

        Reading the answer raises CallNotFoundError (the call is unknown, expired or unreadable, or the
        callback belongs to another run), CallClosedError (it has its final result, or was completed before)
        or CallNotPendingError (it waits for something else).

        Raises:
            NotJsonError: the outcome has no JSON form.
        """
        token = uuid.uuid4().hex
        return ScriptCall(
            self._scripts.resolve,
            [self.keys.call(call_id), self.keys.due],
            [
                call_id,
                token,
                self._lease_ms,
                outcome.to_json(),
                int(is_decision),
                callback.text,
                callback.claim_token,
            ],
            partial(settlement_claim, call_id, completer, token),
        )

    def approve(self, call_id: str, call: ToolCall, by: str) -> ScriptCall[Claim | None]:
        """Approve a call that waits for it: the call is queued, with a message (``approve.lua``).

        The call of the record is replaced if a person has changed its arguments. The answer is ``None``, or,
        if the call had expired, a claim that the caller must settle. Reading it raises as for
        :meth:`resolve`.
        """
        keys, agent, queue = self.keys, call.agent_name, queue_of(call)
        token, wire = uuid.uuid4().hex, serializer.encode(call.to_wire())
        return ScriptCall(
            self._scripts.approve,
            [
                keys.call(call_id),
                keys.due,
                keys.pending(agent),
                keys.approvals(agent),
                keys.celery_result(call_id),
                queue,
                wake_up_key(queue),
            ],
            [
                call_id,
                token,
                self._lease_ms,
                by,
                deadline_of(call),
                self._queue_timeout_ms,
                self._record_ttl,
                queue_element(call_id, call, wire),
                wire if call.edited is not None else b"",
            ],
            partial(settlement_claim, call_id, by, token),
        )

    def cancel(self, call_id: str, canceller: str) -> ScriptCall[Claim | None]:
        """Cancel a call (``cancel.lua``); cancelling it again does nothing.

        The answer is a claim that the caller must settle, or ``None`` if the call's worker will. Reading it
        raises CallNotFoundError (the call is unknown, expired or unreadable) or CallClosedError (it has its
        final result).
        """
        token = uuid.uuid4().hex

        def parse(answer: Sequence[Any]) -> Claim | None:
            if answer[0] == b"closed":
                raise CallClosedError(f"Call {call_id} has its final result.")
            return settlement_claim(call_id, canceller, token, answer)

        return ScriptCall(
            self._scripts.cancel,
            [self.keys.call(call_id), self.keys.due],
            [call_id, token, self._lease_ms, self._record_ttl],
            parse,
        )

    def cancelled_ids(self, call_ids: Sequence[str]) -> ScriptCall[set[str]]:
        """Ask which calls are cancelled; the answer has their ids (``cancelled_ids.lua``)."""
        keys = [self.keys.call(call_id) for call_id in call_ids]
        return ScriptCall(self._scripts.cancelled_ids, keys, call_ids, ids_of)

    def progress(self, call_id: str, token: str, report: bytes) -> ScriptCall[Any]:
        """Store the latest progress report of a run, if its claim still has the token (``progress.lua``)."""
        return ScriptCall(self._scripts.progress, [self.keys.call(call_id)], [token, report])

    def emit(self, call_id: str, token: str, stream: str, events: bytes) -> ScriptCall[Any]:
        """Add output of a run to the stream of a call or Turn (``emit.lua``)."""
        keys = [self.keys.call(call_id), self.keys.call(stream), self.keys.turn_stream(stream)]
        return ScriptCall(self._scripts.emit, keys, [token, events, MOST_ENTRIES])

    def retry(
        self, claim: Claim, *, pause_ms: int, begun_at: float, code: str, message: bytes
    ) -> ScriptCall[int]:
        """Schedule another run of a call whose run has failed with ``code`` (``retry.lua``).

        ``message`` is queued after the pause. The lines that the run has logged are kept with the call.
        """
        run, keys = claim.run, self.keys
        retried, failure = f"{run.retries + 1} {begun_at:.0f}", failure_of(run.attempt, run.lines)
        next_run = [pause_ms, queue_of(run.call), message, retried]
        return ScriptCall(
            self._scripts.retry,
            [keys.call(run.id), keys.due, keys.running(run.call.agent_name)],
            [run.id, claim.token, *next_run, former_ending(code), self.limit_terms, failure],
        )

    def unqueue(self, call_id: str, call: ToolCall) -> ScriptCall[int]:
        """Remove an ended call's message from its queue, if it is among the first (``unqueue.lua``)."""
        return ScriptCall(self._scripts.unqueue, [queue_of(call)], [call_id, *SEARCHED])

    def replayed(self, call_id: str, by: str, number: int) -> ScriptCall[int]:
        """Record that the call ``by`` replays a call, the ``number``-th time (``replayed.lua``)."""
        return ScriptCall(self._scripts.replayed, [self.keys.call(call_id)], [by, number])

    def end_leases(self, process_id: str) -> ScriptCall[int]:
        """End the leases of a process that is known to have ended (``end_leases.lua``).

        ``process_id`` is of :mod:`broker_config.process_identity`. The next sweep decides about its calls.
        The answer is the number of leases.

        Raises:
            ValueError: the id is empty.
        """
        if not process_id:  # every token starts with ""
            raise ValueError("a process has an id")
        arguments = [self._lease_ms, self.keys.call(""), process_id]
        return ScriptCall(self._scripts.end_leases, [self.keys.due], arguments)

    def keep_leases(self, process_id: str, held_seconds: float) -> ScriptCall[int]:
        """Keep the leases of a process that runs and could not renew them for a while (``keep_leases.lua``).

        The answer is the number of leases.
        """
        limit_ms, held_ms = round(self.settings.call_timeout_seconds * 1000), round(held_seconds * 1000)
        arguments = [self._lease_ms, self._record_ttl, self.keys.prefix, process_id, limit_ms, held_ms]
        return ScriptCall(self._scripts.keep_leases, [self.keys.due], arguments)

    def sweep(self, sweeper: str) -> ScriptCall[list[Claim]]:
        """Take the calls that are past their deadline or their lease (``sweep.lua``).

        The answer has a claim for each call; the caller must settle it. A call that cannot be read is left
        out: after a lease, a sweep of another version may be able to read it.
        """
        token, prefix = uuid.uuid4().hex, self.keys.call("")

        def parse(rows: Sequence[Any]) -> list[Claim]:
            claims = (swept_claim(row, sweeper, token) for row in rows)
            return [claim for claim in claims if claim is not None]

        return ScriptCall(
            self._scripts.sweep,
            [self.keys.due, self.keys.swept],
            [token, self._lease_ms, SWEEP_BATCH, prefix, self._longest_pause_ms, self._record_ttl],
            parse,
        )
