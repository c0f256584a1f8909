"""The ledger's verbs: submit, claim, start, renew, finish, release, sweep, read.

Every change is one script, so a process that dies leaves nothing half-done. Only Redis time decides
(DESIGN "Delivery"). Methods wait for the answer and raise ``redis.exceptions.RedisError`` as it comes;
workers send the errands of the hot path by :class:`broker_config.courier.Courier` instead.
"""

import uuid
from collections.abc import Iterable, Sequence

from redis import Redis

from broker_config import serializer
from broker_config.scripts import run_errand, run_errands
from broker_config.settings import Settings
from goondan_tasks.errors import ToolCallConflictError
from goondan_tasks.ledger.errands import ClaimRequest, Errands, Submission, wall_clock
from goondan_tasks.ledger.record import CallRecord, Claim, Verdict, result_of
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.run import Run


class Ledger:
    """The calls' records in one Redis, under one namespace."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.errands = Errands(settings)
        self.keys = self.errands.keys

    def submit_all(self, submissions: Sequence[Submission], producer: str) -> list[bool]:
        """Accept calls in one trip; say of each whether it is new. A known one stays as it is.

        Raises:
            ToolCallConflictError: a known call was submitted with other arguments; the calls beside
                it are accepted.
        """
        errands = [self.errands.submit(submission, producer) for submission in submissions]
        answers = run_errands(self.redis, errands)
        for submission, answer in zip(submissions, answers, strict=True):
            if answer[0] == b"conflict":
                raise ToolCallConflictError(
                    f"Call {submission.id} (toolCallId {submission.call.tool_call_id!r}, turn "
                    f"{submission.call.turn_id!r}) was submitted before with other arguments."
                )
        return [answer[0] == b"queued" for answer in answers]

    def claim(self, request: ClaimRequest) -> Claim:
        """Take a call for one run; :attr:`Claim.verdict` says what is to be done with it."""
        return request.claim(run_errand(self.redis, self.errands.claim(request)))

    def start(self, claim: Claim) -> bool:
        """Mark the run as started, just before its handler; false if the claim was lost."""
        return bool(run_errand(self.redis, self.errands.start(claim)))

    def renew(self, claims: Sequence[Claim]) -> set[str]:
        """Renew the leases of ``claims`` and return the ids of those that are lost."""
        if not claims:
            return set()
        return {call_id.decode() for call_id in run_errand(self.redis, self.errands.renew(claims))}

    def finish(self, claim: Claim, result: ToolCallResult) -> bool:
        """Store the final result and tell everybody who waits; false if the claim was lost."""
        return bool(run_errand(self.redis, self.errands.finish(claim, result)))

    def release(self, claim: Claim, *, died: bool, message: bytes = b"") -> bool:
        """Queue the call again, with ``message`` pushed onto its queue if the broker has none.

        The attempt counts only if a worker's death ended it. False if the claim was lost.
        """
        return bool(run_errand(self.redis, self.errands.release(claim, died=died, message=message)))

    def sweep(self, sweeper: str) -> list[Claim]:
        """Take the calls that are past their deadline or their lease; the caller settles each."""
        token = uuid.uuid4().hex
        return [
            Claim(
                Run(
                    call_id.decode(),
                    ToolCall.from_wire(serializer.decode(call)),
                    sweeper,
                    attempt or 0,
                    queued_at,
                    wall_clock,
                ),
                token,
                Verdict(verdict.decode()),
            )
            for call_id, verdict, attempt, queued_at, call in run_errand(
                self.redis, self.errands.sweep(token)
            )
        ]

    def record(self, call_id: str) -> CallRecord | None:
        """Read one call's record."""
        return self.records([call_id])[0]

    def records(self, call_ids: Sequence[str]) -> list[CallRecord | None]:
        """Read calls' records in one trip, in the order of ``call_ids``."""
        with self.redis.pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.hgetall(self.keys.call(call_id))
            rows = pipe.execute()
        return [
            CallRecord.from_redis(call_id, row) if row else None
            for call_id, row in zip(call_ids, rows, strict=True)
        ]

    def recent(self, agents: Iterable[str], limit: int) -> list[CallRecord]:
        """Return the most recent calls of ``agents``, the newest first."""
        names = list(agents)
        with self.redis.pipeline(transaction=False) as pipe:
            for agent in names:
                pipe.zrevrange(self.keys.calls(agent), 0, limit - 1)
            ids = [call_id.decode() for row in pipe.execute() for call_id in row]
        found = [record for record in self.records(ids) if record is not None]
        return sorted(found, key=lambda record: record.queued_at, reverse=True)[:limit]

    def result(self, call_id: str) -> ToolCallResult | None:
        """Read a call's result, if there is one."""
        stored = self.redis.get(self.keys.celery_result(call_id))
        return None if stored is None else result_of(stored)
