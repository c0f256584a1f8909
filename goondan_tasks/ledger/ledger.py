"""The ledger's verbs: submit, claim, start, renew, finish, release, cancel, sweep, read.

Every change is one script, so a process that dies leaves nothing half-done. Only Redis time decides
(DESIGN "Delivery"). Methods wait for the answer and raise ``redis.exceptions.RedisError`` as it comes;
workers send the errands of the hot path by :class:`broker_config.courier.Courier` instead.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from redis import Redis

from broker_config import serializer
from broker_config.scripts import ScriptConnection, run_errand
from broker_config.settings import Settings
from goondan_tasks.calls import Run
from goondan_tasks.errors import CallClosedError, CallNotFoundError, CallNotPendingError
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.errands import BATCH_BYTES, BATCH_CALLS, Errands
from goondan_tasks.ledger.outcome import Outcome
from goondan_tasks.ledger.record import Admission, CallRecord, Claim, Finished, Stored, Verdict
from goondan_tasks.ledger.submission import Submission
from goondan_tasks.messages import ToolCall, ToolCallResult, wall_clock
from goondan_tasks.names import NO_CALLBACK, CallbackToken

logger = logging.getLogger(__name__)

#: how many mailboxes one script looks at, so that it holds up nobody
MAILBOX_BATCH = 200

#: how a call stands that cannot be completed, or approved, now
_STANDING = {
    b"queued": "it is queued",
    b"running": "it is running",
    b"completion": "it waits for its completion, and needs no approval",
    b"approval": "it waits for an approval, and has not been run",
    b"event": "it is an event, which its agent answers",
}


class Ledger:
    """The calls' records in one Redis, under one namespace."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.settings = settings
        self._submissions = ScriptConnection(redis)
        self.errands = Errands(settings)
        self.keys = self.errands.keys

    def submit_all(self, submissions: Sequence[Submission], producer: str) -> list[Admission]:
        """Accept calls in one trip; say of each how it went. A known one stays as it is."""
        batches = list(_batches(submissions))
        errands = [self.errands.submit_batch(batch, producer) for batch in batches]
        answers = self._submissions.run(errands)
        return [
            admission
            for batch, answer in zip(batches, answers, strict=True)
            for admission in Admission.of_batch(answer, len(batch))
        ]

    def claim(self, request: ClaimRequest) -> Claim:
        """Take a call for one run; :attr:`Claim.verdict` says what is to be done with it."""
        return request.claim(run_errand(self.redis, self.errands.claim(request)))

    def start(self, claim: Claim) -> Stored:
        """Mark the run as started, just before its handler, and renew its lease.

        Neither is done if the claim was lost or the call is cancelled.
        """
        return Stored(run_errand(self.redis, self.errands.start([claim.id_and_token]))[0])

    def renew(self, claims: Sequence[tuple[str, str]]) -> set[str]:
        """Renew the leases of claims, each ``(id, token)``; return the ids of those that are lost."""
        if not claims:
            return set()
        return {call_id.decode() for call_id in run_errand(self.redis, self.errands.renew(claims))}

    def finish(
        self,
        claim: Claim,
        result: ToolCallResult,
        answer: Submission | None = None,
        *,
        still_runs: bool = False,
    ) -> Finished:
        """Store the final result and tell everybody who waits; see :meth:`Errands.finish`."""
        errand = self.errands.finish(claim, result, answer, still_runs=still_runs)
        return Finished.of(run_errand(self.redis, errand))

    def fetch(self, agent: str, mailbox: str, taker: str, *, terms: ClaimTerms, token: str) -> Claim | None:
        """Take the next event of an agent whose events are not handled by workers, if there is one.

        Asked again with the same token, it gives the same event.
        """
        asked_at = time.monotonic()
        errand = self.errands.fetch(agent, mailbox, taker, terms=terms, token=token)
        found = run_errand(self.redis, errand)
        if found is None:
            return None
        call_id, call_json, answer = found
        call = ToolCall.from_wire(serializer.decode(call_json))
        return ClaimRequest(call_id.decode(), call, taker, terms, token, asked_at).claim(answer)

    def let_events_come(self, agent: str) -> dict[str, bytes]:
        """Push the message of each event that is the next of its mailbox, if it was parked.

        Returns by id the JSON of those that must be sent by other means.
        """
        boxes = cast("list[bytes]", self.redis.zrange(self.keys.mailboxes(agent), 0, -1))
        unsent: dict[str, bytes] = {}
        for start in range(0, len(boxes), MAILBOX_BATCH):
            errand = self.errands.let_events_come(
                agent, [box.decode() for box in boxes[start : start + MAILBOX_BATCH]]
            )
            found = run_errand(self.redis, errand)
            unsent |= {call_id.decode(): call for call_id, call in zip(found[::2], found[1::2], strict=True)}
        return unsent

    def release(self, claim: Claim, *, died: bool, message: bytes = b"", is_untouched: bool = False) -> bool:
        """Queue the call again, with ``message`` pushed onto its queue if the broker has none.

        ``died`` counts the death of its worker. A run that has not started then does not count. False if
        the claim was lost, the call is cancelled, or it has started and is not idempotent; one that
        ``is_untouched`` counts as not started.
        """
        errand = self.errands.release(claim, died=died, message=message, is_untouched=is_untouched)
        return bool(run_errand(self.redis, errand))

    def cancel(self, call_id: str, canceller: str) -> Claim | None:
        """Cancel a call. The caller settles the claim that it gets; without one, the call's worker will.

        Cancelling what is cancelled already does nothing.

        Raises:
            CallNotFoundError: unknown, expired, or unreadable.
            CallClosedError: it has its final result.
        """
        token = uuid.uuid4().hex
        word, *row = run_errand(self.redis, self.errands.cancel(call_id, token))
        if word == b"closed":
            raise CallClosedError(f"Call {call_id} has its final result.")
        if word == b"marked":
            return None
        return self._taken(call_id, [b"cancelled", *row] if row else [], canceller, token)

    def resolve(
        self,
        call_id: str,
        outcome: Outcome,
        completer: str,
        *,
        is_decision: bool = False,
        callback: CallbackToken = NO_CALLBACK,
    ) -> Claim | None:
        """Complete a pending call, or decide one that waits for an approval.

        The caller settles the claim that it gets. Without one the call still runs, and the outcome is kept
        until its handler says that it is pending. ``callback`` is that by which it came.

        Raises:
            NotJsonError: the outcome has no JSON form.
            CallNotFoundError: unknown, expired, or unreadable; or the callback is not that of its run.
            CallClosedError: it has its final result, or was completed before.
            CallNotPendingError: it waits for something else.
        """
        token = uuid.uuid4().hex
        errand = self.errands.resolve(
            call_id, token, outcome.to_json(), is_decision=is_decision, callback=callback
        )
        word, *row = run_errand(self.redis, errand)
        return None if word == b"kept" else self._answered(call_id, word, row, completer, token)

    def approve(self, call_id: str, call: ToolCall, message: bytes, by: str) -> Claim | None:
        """Queue a call that waits for an approval, with ``message``; raises as :meth:`resolve` does.

        If its time was over the caller settles the claim that it gets. Without a message to push, one that
        is queued since an approval may be sent again.
        """
        token = uuid.uuid4().hex
        errand = self.errands.approve(call_id, call, token, by=by, message=message)
        word, *row = run_errand(self.redis, errand)
        return None if word == b"approved" else self._answered(call_id, word, row, by, token)

    def _answered(self, call_id: str, word: bytes, row: Sequence[Any], taker: str, token: str) -> Claim:
        if word == b"closed":
            raise CallClosedError(f"Call {call_id} has its final result, or was completed before.")
        if word == b"other":
            raise CallNotPendingError(f"Call {call_id} does not wait for this: {_STANDING[row[0]]}.")
        return self._taken(call_id, row, taker, token)

    def _taken(self, call_id: str, row: Sequence[Any], taker: str, token: str) -> Claim:
        claim = _taken_claim([call_id.encode(), *row], taker, token) if row else None
        if claim is None:
            raise CallNotFoundError(f"No call {call_id!r}: it is unknown, expired or cannot be read.")
        return claim

    def marked(self, call_ids: Sequence[str]) -> set[str]:
        """Return the ids of those calls that are cancelled."""
        return {call_id.decode() for call_id in run_errand(self.redis, self.errands.marked(call_ids))}

    def sweep(self, sweeper: str) -> list[Claim]:
        """Take the calls that are past their deadline or their lease; the caller settles each.

        One that cannot be read is left to a process that can: the next sweep after a lease.
        """
        token = uuid.uuid4().hex
        rows = run_errand(self.redis, self.errands.sweep(token))
        claims = [_taken_claim(row, sweeper, token) for row in rows]
        return [claim for claim in claims if claim is not None]

    def record(self, call_id: str) -> CallRecord | None:
        """Read one call's record."""
        return self.records([call_id])[0]

    def records(self, call_ids: Sequence[str]) -> list[CallRecord | None]:
        """Read calls' records in one trip, in the order of ``call_ids``.

        ``None`` stands for one that is unknown or expired, and for one that cannot be read.
        """
        with self.redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.hgetall(self.keys.call(call_id))
            rows = pipe.execute()
        return [_readable_record(call_id, row) for call_id, row in zip(call_ids, rows, strict=True)]

    def recent(self, agents: Iterable[str], limit: int) -> list[CallRecord]:
        """Return the most recent calls of ``agents``, the newest first."""
        names = list(agents)
        with self.redis.pipeline(transaction=False) as pipe:
            for agent in names:
                pipe.zrevrange(self.keys.calls(agent), 0, limit - 1)
            ids = [call_id.decode() for row in pipe.execute() for call_id in row]
        found = [record for record in self.records(ids) if record is not None]
        return sorted(found, key=lambda record: record.queued_at, reverse=True)[:limit]

    def forget(self, call_id: str, agent: str) -> None:
        """Remove what is kept of a call that has ended: record, result, and place among recent calls."""
        with self.redis.pipeline() as pipe:
            pipe.delete(self.keys.call(call_id), self.keys.celery_result(call_id))
            pipe.zrem(self.keys.calls(agent), call_id)
            pipe.execute()

    def result(self, call_id: str) -> ToolCallResult | None:
        """Read a call's result, if there is one.

        Raises:
            ValueError: what is stored cannot be read, or is of a newer version.
        """
        stored = cast("bytes | None", self.redis.hget(self.keys.call(call_id), "result"))
        return None if stored is None else ToolCallResult.from_json(stored)


def _batches(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Cut submissions into what one script each may take."""
    begin = size = 0
    for end, one in enumerate(submissions):
        size += len(one.call_json) + len(one.message)
        if end > begin and (end - begin == BATCH_CALLS or size > BATCH_BYTES):
            yield submissions[begin:end]
            begin, size = end, len(one.call_json) + len(one.message)
    if begin < len(submissions):
        yield submissions[begin:]


def _taken_claim(row: Sequence[Any], taker: str, token: str) -> Claim | None:
    call_id, verdict, attempt, queued_at, call_json, suspended_at, completion = (*row, None, None)[:7]
    try:
        call = ToolCall.from_wire(serializer.decode(call_json or b""))
    except ValueError as error:
        logger.error("call %r must be settled, but its record cannot be read: %s", call_id, error)
        return None
    run = Run(call_id.decode(), call, taker, attempt or 0, queued_at or 0, wall_clock)
    return Claim(
        run,
        token,
        Verdict(verdict.decode()),
        was_suspended=suspended_at is not None,
        completion=completion or b"",
    )


def _readable_record(call_id: str, row: Mapping[bytes, bytes]) -> CallRecord | None:
    try:
        return CallRecord.from_redis(call_id, row) if row else None
    except ValueError as error:
        logger.error("the record of call %r cannot be read: %s", call_id, error)
        return None
