"""What the ledger's scripts are given: keys and arguments of each verb."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import bell, events_queue
from broker_config.scripts import Companion, Errand, Script
from broker_config.settings import Settings
from goondan_tasks.calls import Run
from goondan_tasks.errors import ToolCancelledError
from goondan_tasks.events import is_event, mailbox_of, queue_of
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms, new_token
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.scripts import Scripts
from goondan_tasks.ledger.stored_result import celery_record, notification
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.ledger.trace_names import trace_names
from goondan_tasks.messages import ToolCall, ToolCallResult, epoch_milliseconds, iso_time
from goondan_tasks.names import NO_CALLBACK, CallbackToken, callback_token

#: how many calls one sweep takes at most
SWEEP_BATCH = 50

#: how many calls one script accepts at most, and about how many bytes: others wait for Redis meanwhile
BATCH_CALLS = 200
BATCH_BYTES = 4 * 2**20


def sweep_seconds(settings: Settings) -> float:
    """How often every worker sweeps: often enough to notice that renewals were impossible."""
    return min(5.0, settings.lease_seconds / 3)


class Errands:
    """Makes the errands of one namespace."""

    def __init__(self, settings: Settings) -> None:
        self.keys = Keys(settings.namespace)
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
        """The scripts whose answers nobody waits for: of :meth:`start`, :meth:`progress`, :meth:`finish` and
        :meth:`release`.

        Redis must know them beforehand: sent once more, the first two would come after the result, the result
        late, and calls that are given back out of their order.
        """
        scripts = self._scripts
        return scripts.start, scripts.progress, scripts.finish, scripts.finish_event, scripts.release

    def submit(self, submission: Submission, producer: str) -> Errand:
        """Accept one call; its answer is read by :meth:`Admission.of`."""
        return self.submit_batch([submission], producer)

    def submit_batch(self, submissions: Sequence[Submission], producer: str) -> Errand:
        """Accept at most :data:`BATCH_CALLS` calls (``submit.lua``)."""
        keys: list[str] = [self.keys.due]
        arguments: list[Any] = [self.keys.prefix, producer, self._record_ttl]
        numbers: dict[str, int] = {}
        for one in submissions:
            queue = queue_of(one.call)
            number = numbers.setdefault(queue, len(numbers))
            if 3 * number == len(keys) - 1:
                keys += (self.keys.calls(one.call.agent_name), queue, bell(queue))
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
        return Errand(self._scripts.submit, keys, arguments)

    def _patience(self, submission: Submission) -> int:
        return self._queue_timeout_ms if submission.patience_ms is None else submission.patience_ms

    def claim(self, request: ClaimRequest, *, with_call: bool = True) -> Errand:
        """Take a call for one run (``claim.lua``); without the call's JSON, only one that is recorded."""
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
        return Errand(
            self._scripts.claim,
            [keys.call(request.call_id), keys.due, keys.running(agent), keys.calls(agent)],
            arguments,
        )

    def _indexes(self, call_id: str, call: ToolCall) -> tuple[str, ...]:
        """Return the indexes of the traces that a call belongs into, as one argument; or nothing."""
        names = trace_names(call_id, call)
        return (" ".join(self.keys.trace(name) for name in names),) if names else ()

    def meet(self, request: ClaimRequest, message: bytes, *, is_handled_here: bool) -> Errand:
        """Take an event for one run, if it is the first in its mailbox (``meet.lua``)."""
        claim, call = self.claim(request), request.call
        queue = queue_of(call)
        unattended = int(not is_handled_here)
        return Errand(
            self._scripts.meet,
            [*claim.keys, queue, bell(queue)],
            [*claim.arguments, self.keys.prefix, mailbox_of(call), message, unattended],
        )

    def fetch(self, agent: str, mailbox: str, taker: str, *, terms: ClaimTerms, token: str) -> Errand:
        """Take the next event of an agent, of one mailbox or of any (``fetch.lua``)."""
        keys = self.keys
        return Errand(
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
        )

    def let_events_come(self, agent: str, mailboxes: Sequence[str]) -> Errand:
        """Push the messages that workers have parked of the first event of each (``let_events_come.lua``)."""
        queue = events_queue(agent)
        return Errand(self._scripts.let_events_come, [queue, bell(queue)], [self.keys.prefix, *mailboxes])

    def companion(
        self,
        worker: str,
        most: int,
        terms: Mapping[str, Mapping[str, ClaimTerms | None]],
        *,
        bundle_ref: str | None = None,
    ) -> Companion:
        """Return what claims calls while their messages are reserved (``claim_on_reserve.lua``).

        ``terms`` are by agent and tool; a tool without an entry is claimed as not idempotent, for ``most``
        attempts; one whose entry is ``None`` is left alone. So are calls of another revision of the bundle
        than ``bundle_ref``, whose terms may be others.
        """
        argument = {
            "worker": worker,
            "lease": self._lease_ms,
            "ttl": self._record_ttl,
            "call": self.keys.call(""),
            "due": self.keys.due,
            "running": self.keys.running(""),
            "calls": self.keys.calls(""),
            "most": most,
            "ref": bundle_ref or "",
            "terms": {
                agent: {
                    tool: one is not None and [str(int(one.idempotent)), one.max_attempts]
                    for tool, one in tools.items()
                }
                for agent, tools in terms.items()
            },
        }
        return Companion(self._scripts.claim_on_reserve.text, serializer.encode(argument).decode())

    def start(self, claims: Sequence[tuple[str, str]]) -> Errand:
        """Mark runs as started, each ``(id, token)``, and renew their leases (``start.lua``)."""
        keys = [self.keys.due, *(self.keys.call(call_id) for call_id, _ in claims)]
        return Errand(self._scripts.start, keys, [self._lease_ms, *itertools.chain(*claims)])

    def renew(self, claims: Sequence[tuple[str, str]]) -> Errand:
        """Renew leases, each claim ``(id, token)`` (``renew.lua``)."""
        keys = [self.keys.due, *(self.keys.call(call_id) for call_id, _ in claims)]
        arguments = [self._lease_ms, self._record_ttl, *itertools.chain(*claims)]
        return Errand(self._scripts.renew, keys, arguments)

    def finish(
        self,
        claim: Claim,
        result: ToolCallResult,
        answer: Submission | None = None,
        *,
        still_runs: bool = False,
    ) -> Errand:
        """Store a final result and tell everybody who waits (``finish.lua``, ``finish_event.lua``).

        ``answer`` goes to the agent that asked, if the call is an event; if it was pending, to its own. An
        event that ``still_runs`` keeps its claim, and the others of its mailbox waiting, until it is finished
        again.
        """
        run = claim.run
        ended = self.ended(
            claim,
            serializer.encode(result.to_wire()),
            outcome=result.status,
            kind=_kind_of(result),
        )
        if not (is_event(run.call) or answer is not None):
            return self.finish_many([ended])
        return Errand(
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

    def finish_many(self, ended: Sequence[tuple[Any, ...]]) -> Errand:
        """Store final results of tool calls in one script (``finish.lua``), each ``(id, token, agent, done or
        dead, outcome, kind as finish_call takes it, result as JSON, time as ISO 8601)``."""
        keys = [self.keys.due, *(self.keys.call(one[0]) for one in ended)]
        return Errand(self._scripts.finish, keys, [*self._finish_terms, *itertools.chain(*ended)])

    def _event_keys(self, call: ToolCall, answer: Submission | None) -> list[str]:
        queues = [queue_of(one) for one in (call, *([answer.call] if answer else []))]
        keys = [key for queue in queues for key in (queue, bell(queue))]
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

    def release(self, claim: Claim, *, died: bool, message: bytes, is_untouched: bool = False) -> Errand:
        """Queue a claimed call again (``release.lua``)."""
        run, keys = claim.run, self.keys
        queue = queue_of(run.call)
        return Errand(
            self._scripts.release,
            [keys.call(run.id), keys.due, keys.running(run.call.agent_name), queue, bell(queue)],
            [run.id, claim.token, message, int(died), int(is_untouched)],
        )

    def suspend(self, claim: Claim, result: ToolCallResult) -> Errand:
        """Let a call wait for its completion, or for an approval (``suspend.lua``)."""
        run, keys, meta = claim.run, self.keys, result.meta
        agent, wire = run.call.agent_name, serializer.encode(result.to_wire())
        is_approval = meta.awaits == "approval"
        return Errand(
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
        token: str,
        outcome: bytes,
        *,
        is_decision: bool = False,
        callback: CallbackToken = NO_CALLBACK,
    ) -> Errand:
        """Complete a call (``resolve.lua``)."""
        return Errand(
            self._scripts.resolve,
            [self.keys.call(call_id), self.keys.due],
            [call_id, token, self._lease_ms, outcome, int(is_decision), callback.text, callback.claim_token],
        )

    def approve(self, call_id: str, call: ToolCall, token: str, *, by: str, message: bytes) -> Errand:
        """Let a call that waits for an approval be run (``approve.lua``)."""
        keys, agent, queue = self.keys, call.agent_name, queue_of(call)
        return Errand(
            self._scripts.approve,
            [
                keys.call(call_id),
                keys.due,
                keys.pending(agent),
                keys.approvals(agent),
                keys.celery_result(call_id),
                queue,
                bell(queue),
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
        )

    def cancel(self, call_id: str, token: str) -> Errand:
        """Cancel a call (``cancel.lua``)."""
        return Errand(
            self._scripts.cancel,
            [self.keys.call(call_id), self.keys.due],
            [call_id, token, self._lease_ms, self._record_ttl],
        )

    def marked(self, call_ids: Sequence[str]) -> Errand:
        """Find out which calls are cancelled (``marked.lua``)."""
        return Errand(self._scripts.marked, [self.keys.call(call_id) for call_id in call_ids], call_ids)

    def progress(self, claim: Claim, report: bytes) -> Errand:
        """Keep how far a run has come (``progress.lua``)."""
        return Errand(self._scripts.progress, [self.keys.call(claim.run.id)], [claim.token, report])

    def retry(self, claim: Claim, *, pause_ms: int, begun_at: float) -> Errand:
        """Ask for one more run of a call whose run has failed (``retry.lua``)."""
        return Errand(
            self._scripts.retry,
            [self.keys.call(claim.run.id)],
            [claim.token, pause_ms, f"{claim.run.retries + 1} {begun_at:.0f}"],
        )

    def replayed(self, call_id: str, by: str, number: int) -> Errand:
        """Note that a call was replayed (``replayed.lua``)."""
        return Errand(self._scripts.replayed, [self.keys.call(call_id)], [by, number])

    def sweep(self, token: str) -> Errand:
        """Take the calls about which something must be decided (``sweep.lua``)."""
        return Errand(
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
        )


def _deadline_of(call: ToolCall) -> int | str:
    return "" if call.deadline is None else epoch_milliseconds(call.deadline)


def _kind_of(result: ToolCallResult) -> str:
    is_cancelled = result.error is not None and result.error.code == ToolCancelledError.code
    return "cancelled" if is_cancelled else ""
