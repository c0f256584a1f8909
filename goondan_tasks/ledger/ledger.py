"""The ledger's verbs: submit, claim, start, renew, finish, release, cancel, sweep; and what it says of calls.

Every change is one script, so a process that dies leaves nothing half-done. Only Redis time decides
(DESIGN "Delivery"). Each verb returns a script call. Its ``run(ledger.redis)`` waits for
the answer and raises ``redis.exceptions.RedisError`` as it comes; a
:class:`broker_config.pipelined_writer.PipelinedWriter` or a :class:`broker_config.queue_reader.QueueReader`
sends it without waiting.
"""

import itertools
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import events_queue, wake_up_key
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall, ScriptConnection
from broker_config.settings import Settings
from goondan_tasks.calls import Run
from goondan_tasks.errors import (
    CallClosedError,
    ToolCancelledError,
)
from goondan_tasks.events import is_event, mailbox_of, queue_of
from goondan_tasks.ledger.claim_request import (
    ClaimRequest,
    ClaimTerms,
    answered,
    new_token,
    taken,
    taken_claim,
)
from goondan_tasks.ledger.record import (
    Admission,
    CallRecords,
    Claim,
    Finished,
    Outcome,
    Verdict,
    celery_record,
    notification,
)
from goondan_tasks.ledger.scripts import Scripts
from goondan_tasks.ledger.submission import Submission, batches, digest_of, trace_names
from goondan_tasks.messages import ToolCall, ToolCallResult, epoch_milliseconds, iso_time
from goondan_tasks.names import NO_CALLBACK, CallbackToken, callback_token

logger = logging.getLogger(__name__)

#: how many calls one sweep takes at most
SWEEP_BATCH = 50


def sweep_seconds(settings: Settings) -> float:
    """How often every worker sweeps: often enough to notice that renewals were impossible."""
    return min(5.0, settings.lease_seconds / 3)


class Ledger(CallRecords):
    """The calls of one Redis, under one namespace."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        super().__init__(redis, Keys(settings.namespace))
        self.settings = settings
        self._submissions = ScriptConnection(redis)
        self._scripts = Scripts.read()
        self._lease_ms = round(settings.lease_seconds * 1000)
        keys = self.keys
        self._finish_terms = (
            settings.result_ttl_seconds,
            keys.results(""),
            keys.running(""),
            keys.celery_result(""),
            keys.dead_letters(""),
        )
        self._longest_pause_ms = round(2 * sweep_seconds(settings) * 1000)
        self._queue_timeout_ms = round(settings.queue_timeout_seconds * 1000)
        self._result_ttl = settings.result_ttl_seconds
        # a record must outlive the longest wait and the longest run
        self._record_ttl = self._result_ttl + round(
            settings.queue_timeout_seconds + settings.call_timeout_seconds
        )

    @property
    def unawaited_scripts(self) -> tuple[Script, ...]:
        """Scripts whose answers are not waited for: of :meth:`start`, :meth:`progress`, :meth:`finish` and
        :meth:`release`.

        Redis must know them beforehand: sent again, the first two would come after the result, the result
        late, and calls that are given back out of their order.
        """
        scripts = self._scripts
        return scripts.start, scripts.progress, scripts.finish, scripts.finish_event, scripts.release

    def submit_all(self, submissions: Sequence[Submission], producer: str) -> list[Admission]:
        """Accept calls in one trip; say of each how it went. A known one stays as it is.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached, or refuses.
        """
        calls = [self.submit_batch(batch, producer) for batch in batches(submissions)]
        return list(itertools.chain.from_iterable(self._submissions.run(calls)))

    def submit(self, submission: Submission, producer: str) -> ScriptCall[Admission]:
        """Accept one call; the answer is its :class:`Admission`."""
        batch = self.submit_batch([submission], producer)
        return ScriptCall(batch.script, batch.keys, batch.arguments, Admission.of)

    def submit_batch(self, submissions: Sequence[Submission], producer: str) -> ScriptCall[list[Admission]]:
        """Accept at most ``BATCH_CALLS`` calls (``submit.lua``); the answer has an Admission for each."""
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
                # how long it may wait is counted by Redis, where that is known
                _deadline_of(one.call) if one.patience_ms is None else "",
                self._patience(one),
                one.message,
                "".join(self._indexes(one.id, one.call)),
                one.mailbox,
            )
        return ScriptCall(
            self._scripts.submit, keys, arguments, partial(Admission.of_batch, count=len(submissions))
        )

    def _patience(self, submission: Submission) -> int:
        return self._queue_timeout_ms if submission.patience_ms is None else submission.patience_ms

    def claim(self, request: ClaimRequest, *, with_call: bool = True) -> ScriptCall[Claim]:
        """Take a call for one run; :attr:`Claim.verdict` says what is to be done with it (``claim.lua``).

        Without the call's JSON only one is taken that is recorded.
        """
        call, keys = request.call, self.keys
        agent = call.agent_name
        arguments = [
            request.call_id,
            request.token,
            request.worker,
            self._lease_ms,
            self._record_ttl,
            int(request.terms.idempotent),
            request.terms.max_attempts,
        ]
        if with_call:
            wire = serializer.encode(call.to_wire())
            arguments += [
                wire,
                digest_of(call),
                _deadline_of(call),
                self._queue_timeout_ms,
                *self._indexes(request.call_id, call),
            ]
        return ScriptCall(
            self._scripts.claim,
            [keys.call(request.call_id), keys.due, keys.running(agent), keys.calls(agent)],
            arguments,
            request.claim,
        )

    def _indexes(self, call_id: str, call: ToolCall) -> tuple[str, ...]:
        """Return the indexes of the traces that a call belongs into, as one argument; or nothing."""
        names = trace_names(call_id, call)
        return (" ".join(self.keys.trace(name) for name in names),) if names else ()

    def claim_event(
        self, request: ClaimRequest, message: bytes, *, is_handled_here: bool
    ) -> ScriptCall[Claim]:
        """Take an event for one run, if it is the first in its mailbox (``claim_event.lua``)."""
        claim, call = self.claim(request), request.call
        queue = queue_of(call)
        unattended = int(not is_handled_here)
        return ScriptCall(
            self._scripts.claim_event,
            [*claim.keys, queue, wake_up_key(queue)],
            [*claim.arguments, self.keys.prefix, mailbox_of(call), message, unattended],
            request.claim,
        )

    def fetch(
        self, agent: str, mailbox: str, taker: str, *, terms: ClaimTerms, token: str
    ) -> ScriptCall[Claim | None]:
        """Take the next event of an agent whose events are not handled by workers (``fetch.lua``).

        It is of one mailbox, or of any. The answer is its claim, ``None`` if there is no event; asked again
        with the same token, it is the same event.
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
            [
                token,
                taker,
                self._lease_ms,
                self._record_ttl,
                int(terms.idempotent),
                terms.max_attempts,
                keys.prefix,
                agent,
                mailbox,
            ],
            parse,
        )

    def release_events(self, agent: str, mailboxes: Sequence[str]) -> ScriptCall[dict[str, bytes]]:
        """Push the messages that workers have parked of the first event of each (``release_events.lua``).

        The answer has by id the JSON of those that must be sent by other means.
        """
        queue = events_queue(agent)
        return ScriptCall(
            self._scripts.release_events,
            [queue, wake_up_key(queue)],
            [self.keys.prefix, *mailboxes],
            lambda found: {one.decode(): call for one, call in zip(found[::2], found[1::2], strict=True)},
        )

    def claim_on_reserve(
        self,
        worker: str,
        most: int,
        terms: Mapping[str, Mapping[str, ClaimTerms | None]],
        *,
        bundle_ref: str | None = None,
    ) -> ClaimOnReserve:
        """Return what claims calls and events while their messages are reserved (``claim_on_reserve.lua``).

        ``terms`` are by queue and tool. A tool without an entry is claimed as not idempotent, for ``most``
        attempts. One whose entry is ``None`` is left alone, and a call of another revision than
        ``bundle_ref``. In a queue of events they are by task, which is left alone without an entry, or if
        there is a ref.
        """
        argument = {
            "worker": worker,
            "lease": self._lease_ms,
            "ttl": self._record_ttl,
            "ns": self.keys.prefix,
            "most": most,
            "ref": bundle_ref or "",
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

    def start(self, claims: Sequence[tuple[str, str]]) -> ScriptCall[list[int]]:
        """Mark runs as started, each ``(id, token)``, just before their handlers (``start.lua``).

        Their leases are renewed. The answer has a :class:`Stored` for each: neither is done if the claim was
        lost or the call is cancelled.
        """
        keys = [self.keys.due, *(self.keys.call(call_id) for call_id, _ in claims)]
        return ScriptCall(self._scripts.start, keys, [self._lease_ms, *itertools.chain(*claims)])

    def renew(self, claims: Sequence[tuple[str, str]]) -> ScriptCall[set[str]]:
        """Renew leases, each claim ``(id, token)``; the answer has the ids of those lost (``renew.lua``)."""
        keys = [self.keys.due, *(self.keys.call(call_id) for call_id, _ in claims)]
        arguments = [self._lease_ms, self._record_ttl, *itertools.chain(*claims)]
        return ScriptCall(self._scripts.renew, keys, arguments, _ids)

    def finish(
        self,
        claim: Claim,
        result: ToolCallResult,
        answer: Submission | None = None,
        *,
        still_runs: bool = False,
    ) -> ScriptCall[Finished]:
        """Store a final result and notify all waiting clients (``finish.lua``, ``finish_event.lua``).

        ``answer`` goes to the agent that asked, if the call is an event; if it was pending, to its own. An
        event that ``still_runs`` keeps its claim, and the others of its mailbox waiting, until it is finished
        again. The answer is :class:`Finished`.
        """
        run = claim.run
        ended = self.ended(
            claim,
            serializer.encode(result.to_wire()),
            outcome=result.status,
            kind=_kind_of(result),
        )
        if not (is_event(run.call) or answer is not None):
            many = self.finish_many([ended])
            return ScriptCall(many.script, many.keys, many.arguments, Finished.of)
        return ScriptCall(
            self._scripts.finish_event,
            [self.keys.due, self.keys.call(run.id), *self._event_keys(run.call, answer)],
            [
                *self._finish_terms,
                *ended,
                self.keys.prefix,
                self._lease_ms if still_runs else "",
                new_token(),
                *self._answer(answer),
            ],
            Finished.of,
        )

    def ended(self, claim: Claim, result: bytes, *, outcome: str, kind: str) -> tuple[Any, ...]:
        """Write down how a run has ended, for :meth:`finish_many`."""
        run, is_dead = claim.run, claim.verdict is Verdict.POISONED
        return (
            run.id,
            claim.token,
            run.call.agent_name,
            "dead" if is_dead else "done",
            outcome,
            kind,
            result,
            iso_time(run.clock()),
        )

    def finish_many(self, ended: Sequence[tuple[Any, ...]]) -> ScriptCall[list[int]]:
        """Store final results of tool calls in one script (``finish.lua``), each ``(id, token, agent, done or
        dead, outcome, kind as finish_call takes it, result as JSON, time as ISO 8601)``."""
        keys = [self.keys.due, *(self.keys.call(one[0]) for one in ended)]
        return ScriptCall(self._scripts.finish, keys, [*self._finish_terms, *itertools.chain(*ended)])

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
        return [
            answer.message,
            answer.id,
            answer.call_json,
            answer.digest,
            self._patience(answer),
            self._record_ttl,
            answer.mailbox,
            *self._indexes(answer.id, answer.call),
        ]

    def release(
        self, claim: Claim, *, died: bool, message: bytes = b"", is_untouched: bool = False
    ) -> ScriptCall[bool]:
        """Queue a claimed call again, with ``message`` pushed if the broker has none (``release.lua``).

        ``died`` counts the death of its worker. A run that has not started then does not count. The answer is
        false if the claim was lost, the call is cancelled, or it has started and is not idempotent; one that
        ``is_untouched`` counts as not started.
        """
        run, keys = claim.run, self.keys
        queue = queue_of(run.call)
        return ScriptCall(
            self._scripts.release,
            [keys.call(run.id), keys.due, keys.running(run.call.agent_name), queue, wake_up_key(queue)],
            [run.id, claim.token, message, int(died), int(is_untouched)],
            bool,
        )

    def suspend(self, claim: Claim, result: ToolCallResult) -> ScriptCall[Any]:
        """Let a call wait for its completion, or for an approval (``suspend.lua``)."""
        run, keys, meta = claim.run, self.keys, result.meta
        agent, wire = run.call.agent_name, serializer.encode(result.to_wire())
        is_approval = meta.awaits == "approval"
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
                "" if is_approval else callback_token(claim.token),
                result.handle or "",
                int(is_approval),
                wire,
            ],
        )

    def _expiry(self, run: Run, result: ToolCallResult) -> int:
        """Return the ms at which a pending call expires; a middleware's result may not say."""
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

        The answer is a claim that the caller settles. It is ``None`` if the call still runs: the outcome is
        kept until its handler says that it is pending. ``callback`` is that by which it came.

        The answer raises CallNotFoundError (unknown, expired, or unreadable; or the callback is not that of
        its run), CallClosedError (it has its final result, or was completed before) and CallNotPendingError
        (it waits for something else).

        Raises:
            NotJsonError: the outcome has no JSON form.
        """
        token = uuid.uuid4().hex

        def parse(answer: Sequence[Any]) -> Claim | None:
            word, *row = answer
            return None if word == b"kept" else answered(call_id, word, row, completer, token)

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
            parse,
        )

    def approve(self, call_id: str, call: ToolCall, message: bytes, by: str) -> ScriptCall[Claim | None]:
        """Queue a call that waits for an approval, with ``message`` (``approve.lua``).

        If its time was over the answer is a claim that the caller settles, else ``None``; it raises as that
        of :meth:`resolve`. Without a message to push, one that is queued since an approval may be sent again.
        """
        keys, agent, queue = self.keys, call.agent_name, queue_of(call)
        token = uuid.uuid4().hex

        def parse(answer: Sequence[Any]) -> Claim | None:
            word, *row = answer
            return None if word == b"approved" else answered(call_id, word, row, by, token)

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
                _deadline_of(call),
                self._queue_timeout_ms,
                self._record_ttl,
                message,
            ],
            parse,
        )

    def cancel(self, call_id: str, canceller: str) -> ScriptCall[Claim | None]:
        """Cancel a call (``cancel.lua``); to cancel what is cancelled already does nothing.

        The answer is a claim that the caller settles, or ``None``: then the call's worker will. It raises
        CallNotFoundError (unknown, expired, or unreadable) and CallClosedError (it has its final result).
        """
        token = uuid.uuid4().hex

        def parse(answer: Sequence[Any]) -> Claim | None:
            word, *row = answer
            if word == b"closed":
                raise CallClosedError(f"Call {call_id} has its final result.")
            if word == b"marked":
                return None
            return taken(call_id, [b"cancelled", *row] if row else [], canceller, token)

        return ScriptCall(
            self._scripts.cancel,
            [self.keys.call(call_id), self.keys.due],
            [call_id, token, self._lease_ms, self._record_ttl],
            parse,
        )

    def cancelled_ids(self, call_ids: Sequence[str]) -> ScriptCall[set[str]]:
        """Find out which calls are cancelled; the answer has their ids (``cancelled_ids.lua``)."""
        keys = [self.keys.call(call_id) for call_id in call_ids]
        return ScriptCall(self._scripts.cancelled_ids, keys, call_ids, _ids)

    def progress(self, claim: Claim, report: bytes) -> ScriptCall[Any]:
        """Keep how far a run has come (``progress.lua``)."""
        return ScriptCall(self._scripts.progress, [self.keys.call(claim.run.id)], [claim.token, report])

    def retry(self, claim: Claim, *, pause_ms: int, begun_at: float) -> ScriptCall[int]:
        """Ask for one more run of a call whose run has failed (``retry.lua``)."""
        return ScriptCall(
            self._scripts.retry,
            [self.keys.call(claim.run.id)],
            [claim.token, pause_ms, f"{claim.run.retries + 1} {begun_at:.0f}"],
        )

    def replayed(self, call_id: str, by: str, number: int) -> ScriptCall[int]:
        """Note that a call was replayed (``replayed.lua``)."""
        return ScriptCall(self._scripts.replayed, [self.keys.call(call_id)], [by, number])

    def end_leases(self, process_id: str) -> ScriptCall[int]:
        """End the leases of a process (:mod:`broker_config.process_identity`) that is known to have ended.

        The answer is how many there were; the next sweep decides about these calls (``end_leases.lua``).

        Raises:
            ValueError: it is no process's id.
        """
        if not process_id:  # every token begins with it
            raise ValueError("a process has an id")
        arguments = [self._lease_ms, self.keys.call(""), process_id]
        return ScriptCall(self._scripts.end_leases, [self.keys.due], arguments)

    def sweep(self, sweeper: str) -> ScriptCall[list[Claim]]:
        """Take the calls that are past their deadline or their lease (``sweep.lua``).

        The answer has a claim for each, which the caller settles. One that cannot be read is left to a
        process that can: the next sweep after a lease.
        """
        token = uuid.uuid4().hex

        def parse(rows: Sequence[Any]) -> list[Claim]:
            claims = [taken_claim(row, sweeper, token) for row in rows]
            return [claim for claim in claims if claim is not None]

        return ScriptCall(
            self._scripts.sweep,
            [self.keys.due, self.keys.swept],
            [
                token,
                self._lease_ms,
                SWEEP_BATCH,
                self.keys.call(""),
                self._longest_pause_ms,
                self._record_ttl,
            ],
            parse,
        )


def _ids(answer: Sequence[bytes]) -> set[str]:
    return {call_id.decode() for call_id in answer}


def _deadline_of(call: ToolCall) -> int | str:
    return "" if call.deadline is None else epoch_milliseconds(call.deadline)


def _kind_of(result: ToolCallResult) -> str:
    is_cancelled = result.error is not None and result.error.code == ToolCancelledError.code
    return "cancelled" if is_cancelled else ""
