"""Ending what waits for an agent's workers."""

from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config.keys import Keys
from broker_config.queues import call_queue
from broker_config.settings import Settings
from goondan_tasks.agents.handoff import event_submission
from goondan_tasks.dispatch import RedisDispatch
from goondan_tasks.errors import AgentUnavailableError, ToolOutcomeUnknownError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.names import DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.new_call import identity_of
from goondan_tasks.orchestrator.queued_calls import QueuedCalls
from goondan_tasks.orchestrator.queued_messages import QueuedMessages
from goondan_tasks.orchestrator.successes import Successes
from goondan_tasks.roster import AgentRecord
from tests.unit.goondan_tasks.ledger.calls import a_call, claimed, record_of, submit

CODER = AgentRecord(name="coder", swarm="s", workspace="w", has_entry=True)
OUTSIDER = AgentRecord(name="coder", swarm="s", workspace="w", has_entry=False)
ERROR = AgentUnavailableError("no luck")


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings())


@pytest.fixture
def queued(ledger: Ledger) -> QueuedCalls:
    return QueuedCalls(ledger, Settlement(ledger, RedisDispatch(), ""), "orchestrator")


def code_of(ledger: Ledger, call_id: str) -> str | None:
    result = ledger.result(call_id)
    return result.error.code if result and result.error else None


def test_calls_that_wait_end_with_the_error_and_one_that_runs_goes_on(
    ledger: Ledger, queued: QueuedCalls
) -> None:
    running, waiting = a_call(), a_call(tool_call_id="call_2")
    submit(ledger, running)
    claimed(ledger, running)
    submit(ledger, waiting)

    assert queued.ids("coder") == [identity_of(waiting)]
    assert queued.end(CODER, ERROR) == 1
    assert code_of(ledger, identity_of(waiting)) == "E_AGENT_UNAVAILABLE"
    assert record_of(ledger, running).status == "running"
    assert queued.end(CODER, ERROR) == 0


def test_a_cancelled_call_ends_as_cancelled(ledger: Ledger, queued: QueuedCalls) -> None:
    call = a_call()
    submit(ledger, call)
    ledger.cancel(identity_of(call), "somebody")

    assert queued.end(CODER, ERROR) == 0


@pytest.mark.parametrize(
    ("agent", "tool", "ended"),
    [(CODER, DELEGATE_TOOL, 1), (CODER, EVENT_TOOL, 0), (OUTSIDER, DELEGATE_TOOL, 0)],
)
def test_a_request_ends_unless_its_brain_is_elsewhere_and_an_event_stays(
    ledger: Ledger, queued: QueuedCalls, agent: AgentRecord, tool: str, ended: int
) -> None:
    call = a_call().model_copy(update={"tool_name": tool})
    submit(ledger, call)

    assert [queued.end(agent, ERROR) for _ in range(2)] == [ended, 0]


@pytest.mark.parametrize(("agent", "is_needed"), [(CODER, True), (OUTSIDER, False)])
def test_an_event_needs_no_worker_if_its_brain_is_elsewhere(
    ledger: Ledger, queued: QueuedCalls, agent: AgentRecord, is_needed: bool
) -> None:
    event = a_call().model_copy(update={"tool_name": EVENT_TOOL, "args": {"from": "client", "payload": {}}})
    ledger.submit_all([event_submission(RedisDispatch(), event)], "p1")

    assert queued.has_any(agent) is is_needed
    submit(ledger, a_call(tool_call_id="call_2"))
    assert queued.has_any(agent)


def test_no_worker_is_praised_for_a_call_that_was_ended_so(ledger: Ledger, queued: QueuedCalls) -> None:
    submit(ledger, a_call())
    queued.end(CODER, ERROR)

    assert not Successes(ledger).has_any("coder", 0)


def test_a_finished_run_is_seen_whatever_came_of_it(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.finish(claim, claim.run.ok("done", claim.run.clock()), None)

    finished_at = record_of(ledger, a_call()).finished_at or 0
    assert Successes(ledger).has_any("coder", finished_at)
    assert not Successes(ledger).has_any("coder", finished_at + 1)


def test_a_finished_run_is_seen_behind_all_that_still_waits(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.finish(claim, claim.run.ok("done", claim.run.clock()), None)
    for number in range(2, 62):
        submit(ledger, a_call(tool_call_id=f"call_{number}"))

    assert Successes(ledger).has_any("coder", 0)


def test_no_worker_is_praised_for_a_call_that_its_death_has_ended(ledger: Ledger) -> None:
    submit(ledger, a_call())
    claim = claimed(ledger, a_call())
    ledger.start(claim)
    Settlement(ledger, RedisDispatch(), "").fail(claim, ToolOutcomeUnknownError("its worker died"))

    assert not Successes(ledger).has_any("coder", 0)


def test_only_the_messages_of_ended_calls_are_removed(
    ledger: Ledger, queued: QueuedCalls, redis: Redis
) -> None:
    dispatch, waiting = RedisDispatch(), a_call(tool_call_id="call_2")
    submit(ledger, a_call())
    queued.end(CODER, ERROR)
    submit(ledger, waiting)
    redis.delete(call_queue("coder"))
    for call in (a_call(), waiting):
        redis.lpush(call_queue("coder"), dispatch.inline(identity_of(call), call, b"{}"))
    redis.lpush(call_queue("coder"), "no message at all")

    QueuedMessages(ledger).tidy("coder")

    left = redis.lrange(call_queue("coder"), 0, -1)
    assert [identity_of(waiting).encode() in message for message in left] == [False, True]


def test_every_key_has_a_time_to_live(ledger: Ledger, queued: QueuedCalls, redis: Redis) -> None:
    submit(ledger, a_call())
    queued.end(CODER, ERROR)

    ours = list(redis.scan_iter(f"{Keys().namespace}:*"))
    assert ours
    assert all(redis.ttl(key) > 0 for key in ours)
