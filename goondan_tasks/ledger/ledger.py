"""The ledger's verbs: submit, claim, start, renew, finish, release, sweep, read.

Every change is one script, so a process that dies leaves nothing half-done. Only Redis time decides
(DESIGN "Delivery"). Methods raise ``redis.exceptions.RedisError`` as it comes.
"""

import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import bell, call_queue
from broker_config.settings import Settings
from broker_config.trips import Trips
from goondan_tasks.errors import ToolCallConflictError
from goondan_tasks.ledger.record import CallRecord, Claim, Verdict, result_of
from goondan_tasks.ledger.scripts import Scripts
from goondan_tasks.messages import ToolCall, ToolCallResult, epoch_milliseconds, iso_time
from goondan_tasks.run import Clock, Run

#: a notification beyond this carries the id alone, and the waiter reads the result itself
INLINE_RESULT_BYTES = 16_384

#: how many calls one sweep takes at most
SWEEP_BATCH = 50


@dataclass(frozen=True, slots=True)
class Submission:
    """A call ready to be accepted: its identity, its JSON, and its message unless sent otherwise."""

    id: str
    call: ToolCall
    call_json: bytes
    message: bytes = b""

    @property
    def digest(self) -> str:
        """What must not differ when the same identity is submitted again."""
        return digest_of(self.call)


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What the export says about running a call again."""

    idempotent: bool = False
    max_attempts: int = 3


class Ledger:
    """The calls' records in one Redis, under one namespace."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.keys = Keys(settings.namespace)
        self._scripts = Scripts.read()
        self._trips = Trips(redis)
        self._lease_ms = round(settings.lease_seconds * 1000)
        self._queue_timeout_ms = round(settings.queue_timeout_seconds * 1000)
        self._result_ttl = settings.result_ttl_seconds
        # a record must outlive the longest wait and the longest run
        self._record_ttl = self._result_ttl + round(
            settings.queue_timeout_seconds + settings.call_timeout_seconds
        )

    def submit_all(self, submissions: Sequence[Submission], producer: str) -> list[bool]:
        """Accept calls in one trip; say of each whether it is new. A known one stays as it is.

        Raises:
            ToolCallConflictError: a known call was submitted with other arguments; the calls beside
                it are accepted.
        """
        answers = self._trips.run_all(
            self._scripts.submit, [self._submission(submission, producer) for submission in submissions]
        )
        for submission, answer in zip(submissions, answers, strict=True):
            if answer[0] == b"conflict":
                raise ToolCallConflictError(
                    f"Call {submission.id} (toolCallId {submission.call.tool_call_id!r}, turn "
                    f"{submission.call.turn_id!r}) was submitted before with other arguments."
                )
        return [answer[0] == b"queued" for answer in answers]

    def _submission(self, submission: Submission, producer: str) -> tuple[list[Any], list[Any]]:
        agent = submission.call.agent_name
        keys, queue = self.keys, call_queue(agent)
        return (
            [keys.call(submission.id), keys.due, keys.calls(agent), queue, bell(queue)],
            [
                submission.id,
                submission.call_json,
                submission.digest,
                producer,
                _deadline_of(submission.call),
                self._queue_timeout_ms,
                self._record_ttl,
                submission.message,
            ],
        )

    def claim(self, call_id: str, call: ToolCall, worker: str, terms: ClaimTerms) -> Claim:
        """Take a call for one run; :attr:`Claim.verdict` says what is to be done with it."""
        token = uuid.uuid4().hex
        keys = self.keys
        verdict, attempt, queued_at, now = self._trips.run(
            self._scripts.claim,
            [
                keys.call(call_id),
                keys.due,
                keys.running(call.agent_name),
                keys.calls(call.agent_name),
            ],
            [
                call_id,
                token,
                worker,
                self._lease_ms,
                self._record_ttl,
                int(terms.idempotent),
                terms.max_attempts,
                serializer.encode(call.to_wire()),
                digest_of(call),
                _deadline_of(call),
                self._queue_timeout_ms,
            ],
        )
        run = Run(call_id, call, worker, attempt, queued_at, redis_clock(now))
        return Claim(run, token, Verdict(verdict.decode()))

    def start(self, claim: Claim) -> bool:
        """Mark the run as started, just before its handler; false if the claim was lost."""
        return bool(self._trips.run(self._scripts.start, [self.keys.call(claim.run.id)], [claim.token]))

    def renew(self, claims: Sequence[Claim]) -> set[str]:
        """Renew the leases of ``claims`` and return the ids of those that are lost."""
        if not claims:
            return set()
        calls = [self.keys.call(claim.run.id) for claim in claims]
        tokens = [part for claim in claims for part in (claim.run.id, claim.token)]
        lost = self._trips.run(
            self._scripts.renew, [self.keys.due, *calls], [self._lease_ms, self._record_ttl, *tokens]
        )
        return {call_id.decode() for call_id in lost}

    def finish(self, claim: Claim, result: ToolCallResult) -> bool:
        """Store the final result and tell everybody who waits; false if the claim was lost."""
        run = claim.run
        keys = self.keys
        status = "dead" if claim.verdict is Verdict.POISONED else "done"
        wire = serializer.encode(result.to_wire())
        is_small = len(wire) <= INLINE_RESULT_BYTES
        stored = self._trips.run(
            self._scripts.finish,
            [
                keys.call(run.id),
                keys.due,
                keys.running(run.call.agent_name),
                keys.celery_result(run.id),
            ],
            [
                run.id,
                claim.token,
                status,
                result.status,
                _celery_record(run, wire),
                self._result_ttl,
                keys.results(""),
                run.id.encode() + (b" " + wire if is_small else b""),
            ],
        )
        return bool(stored)

    def release(self, claim: Claim, *, died: bool, message: bytes = b"") -> bool:
        """Queue the call again, with ``message`` pushed onto its queue if the broker has none.

        The attempt counts only if a worker's death ended it. False if the claim was lost.
        """
        run = claim.run
        keys = self.keys
        queue = call_queue(run.call.agent_name)
        released = self._trips.run(
            self._scripts.release,
            [keys.call(run.id), keys.due, keys.running(run.call.agent_name), queue, bell(queue)],
            [run.id, claim.token, message, "" if died else "1"],
        )
        return bool(released)

    def sweep(self, sweeper: str) -> list[Claim]:
        """Take the calls that are past their deadline or their lease; the caller settles each."""
        token = uuid.uuid4().hex
        taken = self._trips.run(
            self._scripts.sweep, [self.keys.due], [token, self._lease_ms, SWEEP_BATCH, self.keys.call("")]
        )
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
            for call_id, verdict, attempt, queued_at, call in taken
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


def digest_of(call: ToolCall) -> str:
    """Return a short digest of what a call asks for: tool and arguments."""
    return hashlib.sha256(serializer.encode([call.tool_name, call.args])).hexdigest()[:32]


def _deadline_of(call: ToolCall) -> int | str:
    return "" if call.deadline is None else epoch_milliseconds(call.deadline)


def wall_clock() -> float:
    """Return this machine's time in milliseconds; for what decides nothing."""
    return time.time() * 1000


def redis_clock(now: int) -> Clock:
    """Return a clock that goes on from ``now``, a time in ms that Redis has just given."""
    offset = now - time.monotonic() * 1000
    return lambda: offset + time.monotonic() * 1000


def _celery_record(run: Run, wire: bytes) -> bytes:
    """Write what ``AsyncResult.get()`` reads (celery/backends/base.py ``_get_result_meta``)."""
    date_done = iso_time(run.clock())
    return (
        b'{"task_id":"%b","status":"SUCCESS","traceback":null,"children":[],"date_done":"%b","result":%b}'
        % (run.id.encode(), date_done.encode(), wire)
    )
