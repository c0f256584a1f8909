"""Asking the ledger for a call, and what it may be run on."""

import itertools
import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_config import serializer
from goondan_tasks.calls import Run
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import ToolCall, redis_clock

logger = logging.getLogger(__name__)


class _Tokens:
    """Makes unique tokens, without asking the system for randomness each time; a forked child begins anew."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._process = uuid.uuid4().hex
        self._numbers = itertools.count()

    def new(self) -> str:
        return f"{self._process}-{next(self._numbers)}"


_TOKENS = _Tokens()


def new_token() -> str:
    """Return a token that no other claim has."""
    return _TOKENS.new()


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What the export says about running a call again."""

    idempotent: bool = False
    max_attempts: int = 3


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker asks for a call. The same request again gets the same answer."""

    call_id: str
    call: ToolCall
    worker: str
    terms: ClaimTerms
    token: str = field(default_factory=new_token)
    #: ``time.monotonic()`` before anything was sent: the lease is not older than this
    asked_at: float = field(default_factory=time.monotonic)

    def claim(self, answer: Sequence[Any]) -> Claim:
        """Read what ``claim.lua`` answered.

        A call that is run again, or was approved, is the one on record, whatever the message said. If that
        names no revision of the bundle, it is the one whose terms the claim was made with.
        """
        verdict, attempt, queued_at, now, retried, approved_by, on_record, ref = (*answer, *[None] * 4)[:8]
        call = self.call if on_record is None else _read_call(self.call_id, on_record)
        if call is not None and call.bundle_ref is None:
            call = _of_revision(call, self.call.bundle_ref if ref is None else ref.decode())
        run = Run(
            self.call_id,
            call or self.call,
            self.worker,
            attempt,
            queued_at,
            redis_clock(now),
            *_read_retried(retried),
            approved_by=None if approved_by is None else approved_by.decode(),
        )
        # a call that cannot be read is left to a process that can: the next sweep after a lease
        judged = Verdict.HELD if call is None else Verdict(verdict.decode())
        return Claim(run, self.token, judged, self.asked_at)


def _of_revision(call: ToolCall, ref: str | None) -> ToolCall:
    return call if ref is None else call.model_copy(update={"bundle_ref": ref})


def _read_call(call_id: str, on_record: bytes) -> ToolCall | None:
    try:
        return ToolCall.from_wire(serializer.decode(on_record))
    except ValueError as error:
        logger.error("call %r must be run, but its record cannot be read: %s", call_id, error)
        return None


def _read_retried(kept: bytes | None = None) -> tuple[int, float | None]:
    """Read what ``retry.lua`` has kept: how many retries there were, and when the first run began."""
    if kept is None:
        return 0, None
    retries, begun_at = kept.split()
    return int(retries), float(begun_at)
