"""Calls for the tests of the ledger."""

from broker_config import serializer
from goondan_tasks.calls import identity_of, new_call
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord, Claim
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.messages import ToolCall
from tests.waiting import wait_until

ONCE = ClaimTerms(idempotent=False, max_attempts=3)
AGAIN = ClaimTerms(idempotent=True, max_attempts=3)


def a_call(**fields: object) -> ToolCall:
    return new_call("coder", "bash__exec", {"command": "ls"}, {"tool_call_id": "call_1", **fields})


def submission(call: ToolCall) -> Submission:
    digest = digest_of(call, serializer.encode(call.args))
    return Submission(identity_of(call), call, serializer.encode(call.to_wire()), digest, b"message")


def submit(ledger: Ledger, call: ToolCall, producer: str = "p1") -> str:
    ledger.submit_all([submission(call)], producer)
    return identity_of(call)


def claimed(ledger: Ledger, call: ToolCall, terms: ClaimTerms = ONCE) -> Claim:
    """Claim a call that was submitted."""
    return ledger.claim(ClaimRequest(identity_of(call), call, "w1", terms)).run(ledger.redis)


def swept(ledger: Ledger) -> Claim:
    """Sweep until one call is taken."""
    claims: list[Claim] = []

    def take() -> bool:
        claims.extend(ledger.sweep("sweeper").run(ledger.redis))
        return bool(claims)

    wait_until(take)
    return claims[0]


def record_of(ledger: Ledger, call: ToolCall) -> CallRecord:
    """Return the record of a call that has one."""
    record = ledger.record(identity_of(call))
    assert record is not None
    return record
