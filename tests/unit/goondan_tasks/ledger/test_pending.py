"""Pending calls in the ledger: suspended, and completed once, whoever dies on the way."""

import json
from dataclasses import replace
from typing import cast

import pytest
from redis import Redis

from goondan_tasks.client.submitter import replay_of
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    ToolCancelledError,
)
from goondan_tasks.contract.events import completed_event, mailbox_of
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.contract.names import CallbackToken, callback_token
from goondan_tasks.contract.output import Pending
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.completions import Completions, is_same_json
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Outcome, Verdict
from goondan_tasks.ledger.timer import Timer
from tests.unit.goondan_tasks.ledger.calls import (
    AGAIN,
    ONCE,
    a_call,
    claimed,
    record_of,
    reserved,
    submission,
    submit,
    swept,
)

HOUR = 3_600.0


@pytest.fixture
def reaper(ledger: Ledger) -> Reaper:
    return Reaper(ledger, "https://help/")


@pytest.fixture
def completions(ledger: Ledger, reaper: Reaper) -> Completions:
    return Completions(ledger, reaper)


def begun(ledger: Ledger, call: ToolCall, *, idempotent: bool = False) -> Claim:
    """Submit and claim a call, whose handler has started."""
    submit(ledger, call)
    claim = claimed(ledger, call, AGAIN if idempotent else ONCE)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    return claim


def suspend(ledger: Ledger, claim: Claim, *, seconds: float = HOUR, is_approval: bool = False) -> object:
    pending = Pending("job-1", {"n": 1}, is_approval=is_approval)
    result = claim.run.pending(pending, 5.0, expires_at=claim.run.clock() + seconds * 1000)
    return ledger.suspend(claim, result).run(ledger.redis)


def suspended(ledger: Ledger, *, seconds: float = HOUR, is_approval: bool = False) -> str:
    """Return the id of a call that is pending now."""
    assert suspend(ledger, begun(ledger, a_call()), seconds=seconds, is_approval=is_approval)
    return identity_of(a_call())


def stored(ledger: Ledger, call_id: str) -> ToolCallResult:
    result = ledger.result(call_id)
    assert result is not None
    return result


def test_suspended_call_has_no_worker_and_awaits_completion(ledger: Ledger, redis: Redis) -> None:
    call_id = suspended(ledger)
    record = record_of(ledger, a_call())
    assert (record.status, record.handle, record.awaits) == ("pending", "job-1", "completion")
    assert record.expires_at is not None
    assert record.expires_at > (record.suspended_at or 0)
    assert redis.zcard(ledger.keys.running("coder")) == 0
    assert redis.zcard(ledger.keys.pending("coder")) == 1
    assert claimed(ledger, a_call()).verdict is Verdict.DONE
    assert stored(ledger, call_id).status == "pending"


def test_completion_leaves_only_event_in_mailbox(
    ledger: Ledger, redis: Redis, completions: Completions
) -> None:
    call_id = suspended(ledger)
    completions.complete(call_id, Outcome({"x": 1}), "me")
    assert stored(ledger, call_id).output == {"x": 1}
    assert redis.zcard(ledger.keys.pending("coder")) == 0
    assert redis.llen(ledger.keys.mailbox(mailbox_of(a_call()))) == 1
    lasting = [key for key in redis.scan_iter("goondan:*") if redis.ttl(key) < 0]
    assert lasting == []


def test_completion_whose_completer_dies_is_stored_by_sweep(
    ledger: Ledger, hasty: Ledger, completions: Completions, reaper: Reaper
) -> None:
    call_id = suspended(ledger)
    assert hasty.resolve(call_id, Outcome("first"), "dies").run(hasty.redis) is not None
    with pytest.raises(CallClosedError):
        completions.complete(call_id, Outcome("second"), "late")
    with pytest.raises(CallClosedError):
        reaper.cancel(call_id, "late")
    taken = swept(ledger)
    assert taken.verdict is Verdict.COMPLETED
    reaper.settle(taken)
    assert (stored(ledger, call_id).status, stored(ledger, call_id).output) == ("ok", "first")


def test_pending_call_whose_sweeper_dies_still_expires(
    ledger: Ledger, hasty: Ledger, reaper: Reaper, completions: Completions
) -> None:
    call_id = suspended(ledger, seconds=-1)
    assert swept(hasty).verdict is Verdict.UNRESOLVED
    taken = swept(ledger)
    assert taken.verdict is Verdict.UNRESOLVED
    with pytest.raises(CallClosedError):
        completions.complete(call_id, Outcome("too late"), "me")
    reaper.settle(taken)
    result = stored(ledger, call_id)
    assert result.error is not None
    assert (result.error.code, result.handle) == ("E_TOOL_EXPIRED", "job-1")


def test_late_completion_ends_call_as_expired(ledger: Ledger, completions: Completions) -> None:
    call_id = suspended(ledger, seconds=-1)
    with pytest.raises(CallClosedError):
        completions.complete(call_id, Outcome("too late"), "me")
    result = stored(ledger, call_id)
    assert result.error is not None
    assert result.error.code == "E_TOOL_EXPIRED"


def test_completion_repeated_with_same_token_is_same(ledger: Ledger) -> None:
    call_id = suspended(ledger)
    script_call = ledger.resolve(call_id, Outcome(output=1), "somebody")
    first, again = (script_call.run(ledger.redis) for _ in range(2))
    assert first is not None
    assert first == again
    with pytest.raises(CallClosedError):
        ledger.resolve(call_id, Outcome(output=1), "somebody").run(ledger.redis)


def test_completion_that_came_first_is_handed_to_run(ledger: Ledger, completions: Completions) -> None:
    claim = begun(ledger, a_call())
    completions.complete(claim.run.id, Outcome("quick"), "me")
    assert record_of(ledger, a_call()).status == "running"
    completion = suspend(ledger, claim)
    assert isinstance(completion, bytes)
    assert Outcome.of(completion) == Outcome("quick")


def test_unawaited_completion_does_not_stay_in_record(
    ledger: Ledger, redis: Redis, completions: Completions
) -> None:
    claim = begun(ledger, a_call())
    completions.complete(claim.run.id, Outcome("x" * 1000), "me")
    ledger.finish(claim, claim.run.ok("its own", None)).run(ledger.redis)
    assert stored(ledger, claim.run.id).output == "its own"
    assert not redis.hexists(ledger.keys.call(claim.run.id), "completion")


@pytest.mark.parametrize(("idempotent", "verdict"), [(False, Verdict.COMPLETED), (True, Verdict.REQUEUE)])
def test_completed_begun_call_survives_worker_death(
    ledger: Ledger, hasty: Ledger, completions: Completions, idempotent: bool, verdict: Verdict
) -> None:
    claim = begun(hasty, a_call(), idempotent=idempotent)
    completions.complete(claim.run.id, Outcome("quick"), "me")
    assert swept(ledger).verdict is verdict


def test_run_with_lost_claim_cannot_suspend_call(ledger: Ledger) -> None:
    claim = begun(ledger, a_call())
    assert suspend(ledger, replace(claim, token="another")) == 0
    assert record_of(ledger, a_call()).status == "running"


def test_cancelled_run_cannot_suspend_call(ledger: Ledger) -> None:
    claim = begun(ledger, a_call())
    ledger.cancel(claim.run.id, "me").run(ledger.redis)
    assert suspend(ledger, claim) == -1


def test_canceller_that_dies_leaves_pending_call_cancelled(ledger: Ledger, hasty: Ledger) -> None:
    call_id = suspended(ledger)
    hasty.cancel(call_id, "dies").run(hasty.redis)
    taken = swept(ledger)
    assert (taken.verdict, taken.was_suspended) == (Verdict.CANCELLED, True)


def test_held_call_is_queued_again_by_its_approval(
    ledger: Ledger, redis: Redis, completions: Completions
) -> None:
    call_id = suspended(ledger, is_approval=True)
    [waiting] = completions.approvals(["coder"])
    assert (waiting.id, waiting.attempt) == (call_id, 0)
    assert completions.approval_count(["coder", "nobody"]) == 1
    redis.delete("agent.coder")
    completions.approve(waiting, "ann")
    with pytest.raises(CallNotPendingError, match="it is queued"):
        completions.approve(waiting, "bob")
    with pytest.raises(CallNotPendingError, match="it is queued"):
        completions.complete(call_id, Outcome(1), "me", is_decision=True)
    assert redis.llen("agent.coder") == 1
    assert completions.approvals(["coder"]) == []
    assert completions.approval_count(["coder"]) == 0
    assert ledger.result(call_id) is None
    claim = claimed(ledger, a_call())
    assert (claim.verdict, claim.run.attempt, claim.run.approved_by) == (Verdict.RUN, 1, "ann")
    assert claim.was_pending


def test_completion_before_hold_is_no_approval(
    ledger: Ledger, completions: Completions, reaper: Reaper
) -> None:
    claim = begun(ledger, a_call())
    completions.complete(claim.run.id, Outcome("forged"), "me")
    assert suspend(ledger, claim, seconds=-1, is_approval=True)
    reaper.settle(swept(ledger))
    result = stored(ledger, claim.run.id)
    assert result.error is not None
    assert result.error.message.startswith("The call was not approved in time")


def test_completion_before_hold_does_not_prevent_approval(ledger: Ledger, completions: Completions) -> None:
    claim = begun(ledger, a_call())
    completions.complete(claim.run.id, Outcome("forged"), "me")
    suspend(ledger, claim, is_approval=True)
    completions.approve(record_of(ledger, a_call()), "ann")
    assert claimed(ledger, a_call()).run.approved_by == "ann"


def test_approval_whose_answer_was_lost_is_answered_same(ledger: Ledger) -> None:
    call_id = suspended(ledger, is_approval=True)
    script_call = ledger.approve(call_id, a_call(), "ann")
    assert [script_call.run(ledger.redis) for _ in range(2)] == [None] * 2
    with pytest.raises(CallNotPendingError, match="it is queued"):
        ledger.approve(call_id, a_call(), "ann").run(ledger.redis)


def test_second_message_of_approved_call_runs_approved_arguments(
    ledger: Ledger, completions: Completions
) -> None:
    call_id = suspended(ledger, is_approval=True)
    completions.approve(record_of(ledger, a_call()), "ann")
    forged = a_call().model_copy(update={"args": {"command": "rm -rf /"}})
    request = ClaimRequest(call_id, forged, "w1", ONCE)
    first, again = ledger.claim(request).run(ledger.redis), ledger.claim(request).run(ledger.redis)
    assert (first.verdict, first.run.call.args) == (Verdict.RUN, a_call().args)
    assert again.run.call.args == a_call().args


@pytest.mark.parametrize("call_json", [b"{", b'{"v":2}'])
def test_unreadable_approved_call_is_not_run(
    ledger: Ledger, redis: Redis, completions: Completions, call_json: bytes
) -> None:
    call_id = suspended(ledger, is_approval=True)
    completions.approve(record_of(ledger, a_call()), "ann")
    redis.hset(ledger.keys.call(call_id), "call", call_json)
    assert claimed(ledger, a_call()).verdict is Verdict.HELD


def test_approval_that_comes_too_late_ends_call(ledger: Ledger, completions: Completions) -> None:
    call_id = suspended(ledger, seconds=-1, is_approval=True)
    record = record_of(ledger, a_call())
    with pytest.raises(CallClosedError):
        completions.approve(record, "ann")
    result = stored(ledger, call_id)
    assert result.error is not None
    assert result.error.message.startswith("The call was not approved in time")


def test_callback_token_fits_one_run_errors_reveal_nothing(ledger: Ledger, completions: Completions) -> None:
    claim = begun(ledger, a_call())
    for token in ("", claim.token, "\ud800"):
        with pytest.raises(CallNotFoundError):
            completions.complete_with_token(claim.run.id, token, Outcome("mine"))


def test_earlier_checked_token_cannot_complete_next_run(ledger: Ledger) -> None:
    first = begun(ledger, a_call(), idempotent=True)
    checked = CallbackToken(callback_token(first.run.id, first.token), first.token)
    ledger.release(first, died=True, message=b"").run(ledger.redis)
    claimed(ledger, a_call(), AGAIN)
    with pytest.raises(CallNotFoundError):
        ledger.resolve(first.run.id, Outcome("of the first run"), "late", callback=checked).run(ledger.redis)


def test_retried_run_ends_token_and_next_gets_own(ledger: Ledger, completions: Completions) -> None:
    first = begun(ledger, a_call(), idempotent=True)
    call_id, old = first.run.id, callback_token(first.run.id, first.token)
    completions.complete_with_token(call_id, old, Outcome("of the run that fails"))
    ledger.retry(first, pause_ms=1, begun_at=1.0, code="E_TOOL", message=b"again").run(ledger.redis)
    with pytest.raises(CallNotFoundError):
        completions.complete_with_token(call_id, old, Outcome("in the pause"))
    Timer(ledger).run_now(call_id).run(ledger.redis)
    second = claimed(ledger, a_call(), AGAIN)
    with pytest.raises(CallNotFoundError):
        completions.complete_with_token(call_id, old, Outcome("of the run that has failed"))
    completions.complete_with_token(call_id, callback_token(call_id, second.token), Outcome("good"))
    completion = suspend(ledger, second)
    assert isinstance(completion, bytes)
    assert Outcome.of(completion) == Outcome("good")


def test_call_waiting_for_retry_cannot_be_completed(ledger: Ledger, completions: Completions) -> None:
    first = begun(ledger, a_call(), idempotent=True)
    ledger.retry(first, pause_ms=1, begun_at=1.0, code="E_TOOL", message=b"again").run(ledger.redis)

    with pytest.raises(CallNotPendingError, match="its time has not come"):
        completions.complete(first.run.id, Outcome("in the pause"), "me")


def test_only_approved_runs_callback_completes_held_call(ledger: Ledger, completions: Completions) -> None:
    holding = begun(ledger, a_call())
    suspend(ledger, holding, is_approval=True)
    completions.approve(record_of(ledger, a_call()), "ann")
    claim = claimed(ledger, a_call())
    with pytest.raises(CallNotFoundError):
        completions.complete_with_token(
            claim.run.id, callback_token(claim.run.id, holding.token), Outcome("forged")
        )
    completions.complete_with_token(claim.run.id, callback_token(claim.run.id, claim.token), Outcome("good"))
    completion = suspend(ledger, claim)
    assert isinstance(completion, bytes)
    assert Outcome.of(completion) == Outcome("good")


@pytest.mark.parametrize("call_json", [b"{", b'{"v":2}'])
def test_unreadable_pending_call_is_not_found(
    ledger: Ledger, redis: Redis, completions: Completions, call_json: bytes
) -> None:
    call_id = suspended(ledger)
    redis.hset(ledger.keys.call(call_id), "call", call_json)
    with pytest.raises(CallNotFoundError):
        completions.complete(call_id, Outcome(1), "me")


def test_event_is_answered_by_its_agent_alone(ledger: Ledger, completions: Completions) -> None:
    call_id = suspended(ledger)
    completions.complete(call_id, Outcome(1), "me")
    event_id = identity_of(completed_event(a_call(), stored(ledger, call_id)))
    with pytest.raises(CallNotPendingError, match="it is an event"):
        completions.complete(event_id, Outcome(2), "me")


def test_call_held_during_damaged_deadlines_is_approved(
    ledger: Ledger, redis: Redis, completions: Completions
) -> None:
    redis.hset(ledger.keys.agents, "coder", "{}")
    claim = begun(ledger, a_call())
    redis.set(ledger.keys.due, "overwritten")
    call_id = identity_of(a_call())
    assert suspend(ledger, claim, is_approval=True)
    ledger.sweep("s").run(redis)
    deadline = redis.hget(ledger.keys.call(call_id), "deadline")
    assert deadline is not None
    assert redis.zscore(ledger.keys.due, call_id) == float(deadline)
    completions.approve(record_of(ledger, a_call()), "ann")
    assert record_of(ledger, a_call()).status == "queued"


EDITED: JsonObject = {"command": "ls -l"}


def edited(ledger: Ledger, completions: Completions, *, by: str = "ann") -> str:
    """Return the id of a call that was approved with other arguments."""
    call_id = suspended(ledger, is_approval=True)
    completions.approve(record_of(ledger, a_call()), by, EDITED)
    return call_id


def test_edited_arguments_replace_record_and_message_arguments(
    ledger: Ledger, redis: Redis, completions: Completions
) -> None:
    redis.delete("agent.coder")
    edited(ledger, completions)
    record = record_of(ledger, a_call())
    assert (record.call.args, record.approved_by) == (EDITED, "ann")
    assert record.call.edited is not None
    assert (record.call.edited.by, record.call.edited.asked) == ("ann", a_call().args)
    [message] = [json.loads(one) for one in cast("list[bytes]", redis.lrange("agent.coder", 0, 0))]
    assert json.loads(message["body"])[1]["call"]["args"] == EDITED


@pytest.mark.parametrize("claim_on_reserve", [False, True])
def test_each_run_of_edited_call_has_edited_arguments(
    ledger: Ledger, hasty: Ledger, completions: Completions, reaper: Reaper, claim_on_reserve: bool
) -> None:
    call_id = edited(ledger, completions)
    if claim_on_reserve:
        on_reserve = hasty.claim_on_reserve("w1", 3, {"agent.coder": {"bash__exec": AGAIN}})
        job = reserved(hasty.redis, on_reserve, a_call())
        assert job is not None
        claim = job.claim
    else:  # with the message of the call as it was asked for
        claim = claimed(hasty, a_call(), AGAIN)
    assert claim.run.call.args == EDITED
    hasty.start([claim.id_and_token]).run(hasty.redis)
    reaper.settle(swept(ledger))  # its worker has died
    again = claimed(ledger, a_call(), AGAIN)
    assert (again.run.attempt, again.run.call.args, again.run.approved_by) == (2, EDITED, "ann")
    assert (again.run.id, again.run.call.edited) == (call_id, claim.run.call.edited)


def test_same_arguments_are_no_edit(ledger: Ledger, completions: Completions) -> None:
    suspended(ledger, is_approval=True)
    completions.approve(record_of(ledger, a_call()), "ann", dict(a_call().args))
    assert record_of(ledger, a_call()).call.edited is None


@pytest.mark.parametrize("other", [{"n": True}, {"n": 1.0}, {"n": 1, "m": None}])
def test_json_that_only_looks_same_is_edit(other: JsonObject) -> None:
    assert not is_same_json({"n": 1}, other)
    assert is_same_json({"a": 1, **other}, {**other, "a": 1})


def test_edited_call_resubmitted_as_asked_is_same(ledger: Ledger, completions: Completions) -> None:
    edited(ledger, completions)
    [admission] = ledger.submit_all([submission(a_call())], "p1")
    assert (admission.is_new, admission.is_conflict) == (False, False)
    assert record_of(ledger, a_call()).call.args == EDITED


def test_agent_learns_of_edit_however_call_ends(
    ledger: Ledger, hasty: Ledger, completions: Completions, reaper: Reaper
) -> None:
    edited(ledger, completions)
    claim = claimed(hasty, a_call())
    hasty.start([claim.id_and_token]).run(hasty.redis)
    taken = swept(ledger)
    assert taken.verdict is Verdict.UNKNOWN
    result = reaper.failure(taken, ToolCancelledError())
    assert result.meta.edited is not None
    assert (result.meta.edited.by, result.meta.edited.args) == ("ann", EDITED)
    told = completed_event(taken.run.call, result).args["payload"]["input"]["edited"]
    assert (told["args"], told["by"]) == (EDITED, "ann")
    assert "not of the arguments that were asked for" in told["note"]


def test_late_edit_changes_nothing(ledger: Ledger, completions: Completions) -> None:
    call_id = suspended(ledger, seconds=-1, is_approval=True)
    with pytest.raises(CallClosedError):
        completions.approve(record_of(ledger, a_call()), "ann", EDITED)
    assert record_of(ledger, a_call()).call.args == a_call().args
    error = stored(ledger, call_id).error
    assert error is not None
    assert error.code == "E_TOOL_EXPIRED"


def test_of_two_edits_first_counts(ledger: Ledger, completions: Completions) -> None:
    suspended(ledger, is_approval=True)
    waiting = record_of(ledger, a_call())
    completions.approve(waiting, "ann", EDITED)
    with pytest.raises(CallNotPendingError, match="it is queued"):
        completions.approve(waiting, "bob", {"command": "rm"})
    record = record_of(ledger, a_call())
    assert (record.call.args, record.approved_by) == (EDITED, "ann")


def test_replay_of_edited_call_uses_edited_arguments(ledger: Ledger, completions: Completions) -> None:
    edited(ledger, completions)
    again = replay_of(record_of(ledger, a_call()))
    assert (again.args, again.edited) == (EDITED, None)


def test_approver_sees_whether_call_may_run_again(ledger: Ledger) -> None:
    suspend(ledger, begun(ledger, a_call(), idempotent=True), is_approval=True)
    assert record_of(ledger, a_call()).is_idempotent is True
