"""Claims, and the revision of the bundle whose terms they were made with."""

from typing import Any

import pytest
from redis import Redis

from broker_config import serializer
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.submission import call_json
from tests.unit.goondan_tasks.ledger.calls import AGAIN, reserved, submit

OLD, NEW = f"git:{'1' * 40}", f"git:{'2' * 40}"
TAG = "token-1"


def a_call(args: Any = None, *, ref: str | None = None, **fields: object) -> ToolCall:
    call = new_call("coder", "bash__exec", args or {}, {"tool_call_id": "call_1", **fields})
    return call.model_copy(update={"bundle_ref": ref})


def claimed_on_reserve(
    redis: Redis,
    ledger: Ledger,
    call: ToolCall,
    active: str | None,
    *,
    is_served: bool = True,
    is_of_client: bool = False,
) -> Claim | None:
    """Let a worker of the active revision reserve a call's message; return the claim that comes with it."""
    submit(ledger, call)
    claim_on_reserve = ledger.claim_on_reserve(
        "w1", 3, {"agent.coder": {}} if is_served else {}, bundle_ref=active
    )
    message = None
    if is_of_client:
        message = queue_element(identity_of(call), call, call_json(call, serializer.encode(call.args)))
    job = reserved(redis, claim_on_reserve, call, message)
    return None if job is None else job.claim


def test_unknown_limits_prevent_early_claim(redis: Redis, ledger: Ledger) -> None:
    assert claimed_on_reserve(redis, ledger, a_call(), None, is_served=False) is None


@pytest.mark.parametrize(
    "call",
    [
        a_call({"bundleRef": NEW}, ref=OLD),
        a_call({"bundleRef": OLD}, ref=NEW),
        a_call(ref=OLD),
        a_call(step_id="s1"),
        a_call({"bundleRef": NEW}, step_id="s1"),
        a_call({"callChain": [], "bundleRef": NEW}, step_id="s1"),
        a_call(ref=OLD, step_id="s1"),
    ],
)
@pytest.mark.parametrize("is_of_client", [True, False])
def test_uncertain_revision_prevents_early_claim(
    redis: Redis, ledger: Ledger, call: ToolCall, is_of_client: bool
) -> None:
    assert claimed_on_reserve(redis, ledger, call, NEW, is_of_client=is_of_client) is None


def test_step_call_naming_revision_is_claimed_early(redis: Redis, ledger: Ledger) -> None:
    call = a_call({"bundleRef": NEW}, ref=NEW, step_id="s1")
    claim = claimed_on_reserve(redis, ledger, call, NEW, is_of_client=True)
    assert claim is not None
    assert (claim.verdict, claim.run.call.bundle_ref) == (Verdict.RUN, NEW)


def test_early_claimed_call_runs_with_terms_revision(redis: Redis, ledger: Ledger) -> None:
    claim = claimed_on_reserve(redis, ledger, a_call(), NEW)
    assert claim is not None
    assert (claim.verdict, claim.run.call.bundle_ref) == (Verdict.RUN, NEW)


def test_early_claim_fixes_no_revision_unless_followed(redis: Redis, ledger: Ledger) -> None:
    claim = claimed_on_reserve(redis, ledger, a_call(), None)
    assert claim is not None
    assert (claim.verdict, claim.run.call.bundle_ref) == (Verdict.RUN, None)


def test_rerun_call_has_revision_of_new_claim(ledger: Ledger) -> None:
    call = a_call()
    call_id = submit(ledger, call)
    for ref in (OLD, NEW):
        claim = ledger.claim(ClaimRequest(call_id, a_call(ref=ref), "w1", AGAIN)).run(ledger.redis)
        assert claim.run.call.bundle_ref == ref
        ledger.release(claim, died=True).run(ledger.redis)
    assert claim.run.attempt == 2
