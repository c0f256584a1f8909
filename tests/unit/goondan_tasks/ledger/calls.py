"""Calls for the tests of the ledger."""

from redis import Redis

from broker_config import serializer
from broker_config.scripts import ClaimOnReserve
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.events import queue_of
from goondan_tasks.contract.messages import JsonObject, ToolCall, wall_clock
from goondan_tasks.contract.names import DELEGATE_TOOL
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms, new_token
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord, Claim
from goondan_tasks.ledger.submission import Submission, digest_of
from tests.waiting import wait_until
from workers.job import Job

ONCE = ClaimTerms(idempotent=False, max_attempts=3)
AGAIN = ClaimTerms(idempotent=True, max_attempts=3)


def a_call(**fields: object) -> ToolCall:
    return new_call("coder", "bash__exec", {"command": "ls"}, {"tool_call_id": "call_1", **fields})


def an_event(
    number: int,
    instance: str = "i",
    *,
    tool: str = DELEGATE_TOOL,
    asker: str = "client",
    awaited: bool = True,
    payload: JsonObject | None = None,
) -> ToolCall:
    return ToolCall(
        tool_call_id=f"e{number}",
        tool_name=tool,
        agent_name="coder",
        instance_key=instance,
        turn_id=f"turn-e{number}",
        trace_id="0" * 32,
        span_id="0" * 16,
        correlation_id=f"c{number}",
        args={
            "from": asker,
            "fromInstanceKey": "j",
            "payload": {"id": f"e{number}", **(payload or {})},
            "awaited": awaited,
        },
    )


def submission(call: ToolCall) -> Submission:
    digest = digest_of(call, serializer.encode(call.args))
    return Submission(identity_of(call), call, serializer.encode(call.to_wire()), digest, b"message")


def submit(ledger: Ledger, call: ToolCall, producer: str = "p1") -> str:
    ledger.submit_all([submission(call)], producer)
    return identity_of(call)


def claimed(ledger: Ledger, call: ToolCall, terms: ClaimTerms = ONCE) -> Claim:
    """Claim a call that was submitted."""
    return ledger.claim(ClaimRequest(identity_of(call), call, "w1", terms)).run(ledger.redis)


def reserved(
    redis: Redis, claim_on_reserve: ClaimOnReserve, call: ToolCall, message: bytes | None = None
) -> Job | None:
    """Reserve a call's message, as ``reserve.lua`` does; return the job if it was claimed at once."""
    if message is None:
        message = queue_element(identity_of(call), call, serializer.encode(call.to_wire()))
    queue, token = queue_of(call), new_token()
    claim = "local claim = claim_on_reserve(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])"
    lua = f"{claim_on_reserve.lua}\n{claim}\nend_claims()\nreturn claim"
    terms = claim_on_reserve.terms.get(queue, "")
    answer = redis.eval(lua, 0, queue, message, token, claim_on_reserve.argument, terms)
    return answer and Job(queue, token, answer, asked_at=0, clock=wall_clock, worker="w1")


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
