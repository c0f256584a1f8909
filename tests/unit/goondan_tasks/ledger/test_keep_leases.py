"""Leases of a process that runs, but whose interpreter is held."""

import time
from collections.abc import Callable

import pytest
from redis import Redis

from broker_config.process_identity import this_process
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Verdict
from tests.unit.goondan_tasks.ledger.calls import (
    a_call,
    an_event,
    record_of,
    submission,
)
from tests.unit.goondan_tasks.ledger.test_mailboxes import Post
from tests.waiting import wait_until

HELD = 20.0


@pytest.fixture
def hasty(redis: Redis) -> Ledger:
    return Ledger(redis, Settings(lease_seconds=1, call_timeout_seconds=60))


def started(ledger: Ledger, call: ToolCall, process: str = "held", terms: ClaimTerms | None = None) -> str:
    """Submit, claim and start a call in a process whose leases then end."""
    ledger.submit_all([submission(call)], "p1")
    claim = ledger.claim(
        ClaimRequest(identity_of(call), call, "w1", terms or ClaimTerms(), f"{process}-{call.tool_call_id}")
    ).run(ledger.redis)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    return identity_of(call)


def left_seconds(ledger: Ledger, call_id: str) -> float:
    return float(ledger.redis.zscore(ledger.keys.due, call_id)) / 1000 - time.time()  # type: ignore[arg-type]


def test_held_process_keeps_its_runs_and_nobody_elses(hasty: Ledger, redis: Redis) -> None:
    ours, theirs = started(hasty, a_call(tool_call_id="a")), started(hasty, a_call(tool_call_id="b"), "other")
    wait_until(lambda: left_seconds(hasty, theirs) < 0.5)

    assert hasty.keep_leases("held", HELD).run(redis) == 1

    assert left_seconds(hasty, ours) > 0.5 > left_seconds(hasty, theirs)


def test_held_process_keeps_no_unstarted_claim(hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    hasty.submit_all([submission(call)], "p1")
    hasty.claim(ClaimRequest(identity_of(call), call, "w1", ClaimTerms(), "held-0")).run(redis)

    assert hasty.keep_leases("held", HELD).run(redis) == 0

    wait_until(lambda: Reaper(hasty, "").sweep("sweeper"))
    assert record_of(hasty, call).status == "queued"


@pytest.mark.parametrize(
    ("of_export", "of_call"), [(HELD, None), (None, HELD), (HELD, 50.0), (50.0, HELD)], ids=str
)
def test_held_process_run_past_limit_times_out(
    hasty: Ledger, redis: Redis, of_export: float | None, of_call: float | None
) -> None:
    call, terms = a_call(timeout_seconds=of_call), ClaimTerms(idempotent=True, limit_seconds=of_export)
    call_id = started(hasty, call, terms=terms)

    assert hasty.keep_leases("held", HELD - 1).run(redis) == 1
    assert Reaper(hasty, "").sweep("sweeper") == 0
    assert hasty.keep_leases("held", HELD).run(redis) == 0
    assert Reaper(hasty, "").sweep("sweeper") == 1

    result = hasty.result(call_id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_TIMEOUT"


def test_run_without_own_limit_uses_settings_limit(hasty: Ledger, redis: Redis) -> None:
    started(hasty, a_call())

    assert hasty.keep_leases("held", 59).run(redis) == 1
    assert hasty.keep_leases("held", 60).run(redis) == 0


def test_event_past_limit_ends_as_handoff_timeout(hasty: Ledger, redis: Redis) -> None:
    event_id = started(hasty, an_event(1), terms=ClaimTerms(limit_seconds=HELD))

    hasty.keep_leases("held", HELD).run(redis)
    Reaper(hasty, "").sweep("sweeper")

    result = hasty.result(event_id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_HANDOFF_TIMEOUT"


def run_over(post: Post, claim: Claim) -> str:
    keep(post, HELD)
    return "E_HANDOFF_TIMEOUT"


def cancel(post: Post, claim: Claim) -> str:
    post.ledger.cancel(claim.run.id, "c").run(post.redis)
    keep(post, 1)
    return "E_TOOL_CANCELLED"


def keep(post: Post, held: float) -> int:
    return post.ledger.keep_leases(this_process().id, held).run(post.redis)


@pytest.mark.parametrize("end", [run_over, cancel])
def test_event_stuck_in_held_process_keeps_mailbox_until_end(
    redis: Redis, end: Callable[[Post, Claim], str]
) -> None:
    post, events = Post(redis, lease_seconds=1), [an_event(1), an_event(2)]
    post.put(*events)
    first = post.claim_event(events[0], ClaimTerms(limit_seconds=HELD))
    post.ledger.start([first.id_and_token]).run(redis)

    code = end(post, first)
    assert post.reaper.sweep("sweeper") == 1

    result = post.ledger.result(first.run.id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == code
    wait_until(lambda: left_seconds(post.ledger, first.run.id) < 0.5)
    assert keep(post, 2 * HELD) == 1
    assert post.reaper.sweep("sweeper") == 0
    assert post.claim_event(events[1]).verdict is Verdict.WAITING
    post.end(first)
    assert post.claim_event(events[1]).verdict is Verdict.RUN


def test_event_past_limit_frees_mailbox_when_held_process_dies(redis: Redis) -> None:
    post, events = Post(redis, lease_seconds=1), [an_event(1), an_event(2)]
    post.put(*events)
    first = post.claim_event(events[0], ClaimTerms(limit_seconds=HELD))
    post.ledger.start([first.id_and_token]).run(redis)
    run_over(post, first)
    assert post.reaper.sweep("sweeper") == 1
    assert post.claim_event(events[1]).verdict is Verdict.WAITING

    wait_until(lambda: post.reaper.sweep("sweeper"))

    assert post.claim_event(events[1]).verdict is Verdict.RUN


def test_run_past_limit_is_no_death_after_lost_sweep(hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = started(hasty, call, terms=ClaimTerms(idempotent=True, limit_seconds=HELD))
    hasty.keep_leases("held", HELD).run(redis)
    assert len(hasty.sweep("sweeper").run(redis)) == 1

    redis.zadd(hasty.keys.due, {call_id: 1})
    [claim] = hasty.sweep("another").run(redis)

    assert claim.verdict is Verdict.OVERRAN
    assert [run.ending for run in record_of(hasty, call).former] == ["overran"]


def test_cancelled_run_of_held_process_ends_immediately_without_death(
    hasty: Ledger, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    call_id = started(hasty, a_call())
    hasty.cancel(call_id, "c").run(redis)

    assert hasty.keep_leases("held", 1).run(redis) == 0
    assert Reaper(hasty, "").sweep("sweeper") == 1

    result = hasty.result(call_id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_CANCELLED"
    assert [run.ending for run in record_of(hasty, a_call()).former] == ["E_TOOL_CANCELLED"]
    assert "call.settled" in caplog.text
    assert "died" not in caplog.text


def test_process_renewing_again_has_no_run_past_limit(hasty: Ledger, redis: Redis) -> None:
    call = a_call()
    call_id = started(hasty, call)
    hasty.keep_leases("held", 60).run(redis)

    assert hasty.renew([(call_id, f"held-{call.tool_call_id}")]).run(redis) == set()
    wait_until(lambda: Reaper(hasty, "").sweep("sweeper"))

    result = hasty.result(call_id)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "E_TOOL_OUTCOME_UNKNOWN"


def test_damaged_record_stops_no_other_renewal(hasty: Ledger, redis: Redis) -> None:
    broken, sound = started(hasty, a_call(tool_call_id="a")), started(hasty, a_call(tool_call_id="b"))
    redis.hset(hasty.keys.call(broken), mapping={"call": "{", "limit": "soon"})
    redis.set(hasty.keys.call("not-ours"), "text")
    redis.zadd(hasty.keys.due, {"not-ours": 0})

    assert hasty.keep_leases("held", HELD).run(redis) == 2
    assert left_seconds(hasty, sound) > 0
