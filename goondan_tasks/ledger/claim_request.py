"""Requests for claims, and the claims that the ledger's scripts answer with."""

import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_config import serializer
from broker_config.process_identity import this_process
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError, CallNotPendingError
from goondan_tasks.contract.messages import ToolCall, redis_clock, wall_clock
from goondan_tasks.ledger.record import REPAIR, Claim, Verdict

logger = logging.getLogger(__name__)

_numbers = itertools.count()

#: answers of a script that leave nothing for its caller to settle
_NOTHING_TO_SETTLE = {b"kept", b"approved", b"marked"}

#: why a call cannot be completed or approved now
_STATES = {
    b"queued": "it is queued",
    b"scheduled": "its time has not come",
    b"running": "it is running",
    b"completion": "it waits for its completion, and needs no approval",
    b"approval": "it waits for an approval, and has not been run",
    b"event": "it is an event, which its agent answers",
}


def new_token() -> str:
    """Return a unique claim token; it begins with the id of this process, and nobody can guess it."""
    us = this_process()
    return f"{us.id}-{us.secret}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What the export declares about running a call again, about the time of one run, and its limits."""

    idempotent: bool = False
    max_attempts: int = 3
    #: ``None`` if the export has no limit of its own
    limit_seconds: float | None = None
    #: the limits that all its calls have, as text (``permits.lua``), and the scope of ``serial``, if any
    limits: tuple[str, str] | None = None

    @property
    def written(self) -> tuple[Any, ...]:
        """The terms as ``claim_on_reserve.lua`` reads them."""
        seconds = self.limit_seconds or 0
        written = str(int(self.idempotent)), self.max_attempts, round(seconds * 1000)
        return written if self.limits is None else (*written, *self.limits, seconds)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker's request to claim a call. The same request again gets the same answer."""

    call_id: str
    call: ToolCall
    worker: str
    terms: ClaimTerms
    token: str = field(default_factory=new_token)
    #: ``time.monotonic()`` before anything was sent: the lease began after it
    asked_at: float = field(default_factory=time.monotonic)
    #: whether the call was stored when it was queued: without a record it has ended, and is not claimed
    was_stored: bool = False
    #: whether a record of another call is an answer of its own, :attr:`Verdict.TAKEN`
    must_match: bool = False

    def claim(self, answer: Sequence[Any]) -> Claim:
        """Read the answer of ``claim.lua``.

        If the call is run again or was approved, the record's version of it counts, not the message's. A call
        without a revision of the bundle gets the revision whose terms the claim was made with.
        """
        verdict, attempt, queued_at, now, retried, approved_by, on_record, ref = (*answer, *[None] * 4)[:8]
        call = self.call if on_record is None else read_call(self.call_id, on_record)
        if call is not None and call.bundle_ref is None:
            call = _of_revision(call, self.call.bundle_ref if ref is None else ref.decode())
        run = Run(
            self.call_id,
            call or self.call,
            self.worker,
            attempt,
            queued_at,
            redis_clock(now),
            *read_retried(retried),
            approved_by=None if approved_by is None else approved_by.decode(errors="replace"),
            claimed_at=now,
        )
        # after a lease, a sweep of another version may be able to read the call
        decided = Verdict.HELD if call is None else Verdict(verdict.decode())
        return Claim(run, self.token, decided, self.asked_at)


def _of_revision(call: ToolCall, ref: str | None) -> ToolCall:
    return call if ref is None else call.model_copy(update={"bundle_ref": ref})


def read_call(call_id: str, on_record: bytes) -> ToolCall | None:
    """Return the call of a record; ``None`` if it cannot be read, which is logged."""
    try:
        return ToolCall.from_wire(serializer.decode(on_record))
    except ValueError as error:
        about = {"call_id": call_id}
        logger.error("call %r must be run, but its record cannot be read: %s", call_id, error, extra=about)
        return None


def read_retried(kept: bytes | None = None) -> tuple[int, float | None]:
    """Read what ``retry.lua`` has stored: the number of retries, and when the first run began.

    Damaged data counts as no retry: it must not keep the call from ending.
    """
    try:
        retries, begun_at = (kept or b"").split()
        return int(retries), float(begun_at)
    except ValueError:
        return 0, None


def ids_of(answer: Sequence[bytes]) -> set[str]:
    """Read an answer that is a list of calls."""
    return {call_id.decode() for call_id in answer}


def swept_claim(row: Sequence[Any], taker: str, token: str) -> Claim | None:
    """Read a row of ``sweep.lua``: the claim of a call to settle, ``None`` if its record cannot be read."""
    key, verdict, attempt, queued_at, call_json, *more = row
    call_id = key.decode(errors="replace")
    about = {"call_id": call_id, "worker": taker}
    if verdict == b"damaged":
        logger.error("call %r is lost: its record is damaged. %s", call_id, REPAIR, extra=about)
        return None
    suspended_at, completion, lost_by, lost_claim_at, has_result, own = (*more, *[None] * 6)[:6]
    try:
        call = ToolCall.from_wire(serializer.decode(call_json or b""))
    except ValueError as error:
        logger.error(
            "call %r must be settled, but its record cannot be read: %s", call_id, error, extra=about
        )
        return None
    run = Run(call_id, call, taker, attempt or 0, queued_at or 0, wall_clock)
    return Claim(
        run,
        own.decode(errors="replace") if own else token,
        Verdict(verdict.decode()),
        was_suspended=suspended_at is not None,
        completion=completion or b"",
        lost_by=(lost_by or b"").decode(errors="replace"),
        lost_claim_at=lost_claim_at,
        has_result=has_result is not None,
        is_held=own is not None,
        still_runs=bool(own),
    )


def settlement_claim(call_id: str, taker: str, token: str, answer: Sequence[Any]) -> Claim | None:
    """Read the answer of ``resolve.lua``, ``approve.lua`` or ``cancel.lua``: the claim to settle, if any.

    Raises:
        CallNotFoundError, CallClosedError, CallNotPendingError: see :meth:`Ledger.resolve`.
    """
    word, *row = answer
    if word in _NOTHING_TO_SETTLE:
        return None
    if word == b"closed":
        raise CallClosedError(f"Call {call_id} has its final result, or was completed before.")
    if word == b"other":
        raise CallNotPendingError(f"Call {call_id} is not waiting for this: {_STATES[row[0]]}.")
    claim = swept_claim([call_id.encode(), *row], taker, token) if row else None
    if claim is None:
        raise CallNotFoundError(
            f"No call {call_id!r}: it is unknown, expired, damaged or of a newer version."
        )
    return claim
