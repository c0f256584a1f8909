"""Calls whose workers are dead: no heartbeat, and a lease that runs out."""

import pytest
from redis import Redis

from broker_config.settings import Settings
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.losses import find_losses, losses_of_agents, with_losses
from tests.unit.goondan_tasks.cli.fake_client import worker
from tests.unit.goondan_tasks.ledger.calls import a_call, claimed, record_of, submit

#: of the ledger that the tests get, in ms
LEASE = 60_000


def end_lease(ledger: Ledger, call_id: str, *, renewed: int) -> int:
    """Let a claim have been renewed so many ms ago; return when."""
    seconds, microseconds = ledger.redis.time()
    at = seconds * 1000 + microseconds // 1000 - renewed
    ledger.redis.zadd(ledger.keys.due, {call_id: at + LEASE})
    return at


def test_call_is_lost_when_heartbeat_and_lease_end(ledger: Ledger) -> None:
    submit(ledger, a_call())
    call_id = claimed(ledger, a_call()).run.id
    claimed_at = record_of(ledger, a_call()).claimed_at
    assert find_losses(ledger, [call_id]) == {}  # its lease is fresh: it may drain

    end_lease(ledger, call_id, renewed=45_000)

    [record] = with_losses(ledger, [record_of(ledger, a_call())])
    # heard of when it claimed the call, which is later than what the lease says here
    assert (record.state, record.lost_at) == ("lost", claimed_at)
    AgentRegistry(ledger.redis, ledger.keys).publish_worker(worker("w1"), 60)
    [record] = with_losses(ledger, [record_of(ledger, a_call())])
    assert (record.state, record.lost_at) == ("running", None)


def test_loss_dates_from_last_renewal_despite_sweep(ledger: Ledger, redis: Redis) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    call_id = claim.run.id
    redis.hset(ledger.keys.call(call_id), "claimedAt", 0)
    renewed = end_lease(ledger, call_id, renewed=50_000)
    assert find_losses(ledger, [call_id])[call_id].at == renewed

    redis.delete(ledger.keys.swept)
    assert ledger.sweep("sweeper").run(redis) == []  # spares it, since there were no sweeps

    loss = find_losses(ledger, [call_id])[call_id]
    assert (loss.worker, loss.at) == ("w1", renewed)
    assert loss.seconds >= 50
    ledger.renew([claim.id_and_token]).run(redis)
    assert find_losses(ledger, [call_id]) == {}
    assert not redis.hexists(ledger.keys.call(call_id), "renewedAt")


def test_queued_and_workerless_calls_are_not_lost(ledger: Ledger, redis: Redis) -> None:
    queued = submit(ledger, a_call())
    end_lease(ledger, queued, renewed=LEASE)
    other = a_call(turn_id="other")
    submit(ledger, other)
    taken = claimed(ledger, other).run.id
    end_lease(ledger, taken, renewed=LEASE)
    redis.hdel(ledger.keys.call(taken), "worker")

    assert find_losses(ledger, [queued, taken, "unknown"]) == {}
    assert find_losses(ledger, []) == {}


def test_lost_calls_are_counted_for_each_agent(ledger: Ledger) -> None:
    submit(ledger, a_call())
    call_id = claimed(ledger, a_call()).run.id
    end_lease(ledger, call_id, renewed=45_000)

    found = losses_of_agents(ledger, ["coder", "planner"])

    assert [loss.worker for loss in found["coder"]] == ["w1"]
    assert found["planner"] == []
    assert losses_of_agents(ledger, []) == {}


@pytest.mark.parametrize("seconds", [1, 60])
def test_live_workers_shorter_lease_loses_no_call(redis: Redis, seconds: float) -> None:
    theirs = Ledger(redis, Settings(lease_seconds=seconds, queue_timeout_seconds=60))
    submit(theirs, a_call())
    call_id = claimed(theirs, a_call()).run.id
    AgentRegistry(redis, theirs.keys).publish_worker(worker("w1"), 60)

    assert find_losses(Ledger(redis, Settings(lease_seconds=600)), [call_id]) == {}
