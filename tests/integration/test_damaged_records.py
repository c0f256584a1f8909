"""Another program overwrites the record of one call in Redis: that call is lost, and no other."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.in_flight import InFlight
from broker_config.queues import IN_FLIGHT, events_queue
from broker_config.settings import Settings
from goondan_tasks.client import PendingCall
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew
from tests.integration.goondan_process import environment, goondan, goondan_program
from tests.unit.goondan_tasks.ledger.calls import an_event, submission
from tests.waiting import wait_until

DAMAGED_RECORDS_BUNDLE = Path(__file__).parent.parent / "bundles" / "damaged-records"
PATIENCE = 60


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with LocalStack(
        DAMAGED_RECORDS_BUNDLE,
        workers=0,
        environment={"GOONDAN_LEASE_SECONDS": "3", "GOONDAN_GRACE_SECONDS": "30"},
    ) as stack:
        yield Crew(stack)


@pytest.fixture
def stack(crew: Crew) -> LocalStack:
    crew.muster()
    return crew.stack


def redis_of(stack: LocalStack) -> Redis:
    return stack.client._redis


#: how often calls are submitted until one is claimed and has not begun when its record is overwritten
MOST_TRIES = 10


def submit(stack: LocalStack, *tools: str, victims: tuple[str, ...] = ()) -> list[PendingCall]:
    """Submit one call of each tool, named after its place, in one Turn; each overwrites the victims."""
    turn = uuid.uuid4().hex
    args: dict[str, Any] = {"toolCallIds": list(victims), "until": f"open-{turn}"}
    return stack.client.submit_many(
        [
            {
                "agentName": "nurse",
                "toolName": f"ward__{tool}",
                "args": args if tool != "echo" else {},
                "turnId": turn,
                "toolCallId": f"call_{number}",
            }
            for number, tool in enumerate(tools)
        ]
    )


def open_gate(stack: LocalStack, call: PendingCall) -> None:
    record = stack.client.record(call.id)
    redis_of(stack).set(str(record.call.args["until"]), "1")


def require_lost(stack: LocalStack, call: PendingCall) -> None:
    """Check that the client says what happened, and the worker names the call in its log."""
    with pytest.raises(CallNotFoundError, match="damaged") as raised:
        call.result(timeout=PATIENCE)
    assert "remove what another program has written there" in str(raised.value.suggestion)
    wait_until(lambda: call.id in "".join(map(stack.log, stack.workers)))


def require_healthy(crew: Crew) -> None:
    """Check that the worker waits for nothing any more: it drains as soon as it is asked to."""
    [worker] = crew.stack.workers
    crew.stack.stop_worker(worker)
    assert worker.returncode == 0


@pytest.mark.parametrize("tool", ["damage", "damage-on-the-loop"])
def test_overwritten_short_call_costs_others_no_result(crew: Crew, stack: LocalStack, tool: str) -> None:
    broken, *others = submit(stack, tool, "echo", "echo", victims=("call_0",))
    assert [call.result(timeout=PATIENCE).status for call in others] == ["ok", "ok"]
    require_lost(stack, broken)
    require_healthy(crew)


def test_damaged_call_claimed_ahead_does_not_stop_worker(crew: Crew, stack: LocalStack) -> None:
    for _ in range(MOST_TRIES):
        first, broken, last = submit(stack, "damage", "echo", "echo", victims=("call_1",))
        assert [call.result(timeout=PATIENCE).status for call in (first, last)] == ["ok", "ok"]
        if is_lost(broken):
            break
    require_lost(stack, broken)
    require_healthy(crew)


def is_lost(call: PendingCall) -> bool:
    """Return whether a call was damaged before it ran: beside a slow neighbour, another thread takes it."""
    try:
        return call.result(timeout=PATIENCE).status != "ok"
    except CallNotFoundError:
        return True


def test_queued_call_with_damaged_record_becomes_dead_letter(crew: Crew) -> None:
    crew.muster(0)
    broken, good = submit(crew.stack, "echo", "echo")
    redis_of(crew.stack).set(f"goondan:call:{broken.id}", "overwritten")
    crew.muster()
    assert good.result(timeout=PATIENCE).status == "ok"
    require_lost(crew.stack, broken)
    wait_until(
        lambda: any(broken.id in str(one.call.args) for one in crew.stack.client.dead_letters("nurse"))
    )
    crew.stack.client.act_on_all("drop", "nurse", newer_than=PATIENCE)


def test_damaged_running_call_spares_others_leases_cancels_and_waits(crew: Crew, stack: LocalStack) -> None:
    redis, keys = redis_of(stack), stack.client._ledger.keys
    broken, kept, cancelled = submit(stack, "hold", "hold", "hold", victims=("call_0",))
    [gate] = [str(stack.client.record(kept.id).call.args["until"])]
    wait_until(lambda: redis.sismember("held", gate) and redis.exists(keys.call(broken.id)) == 1)
    wait_until(lambda: redis.type(keys.call(broken.id)) == b"string")

    renewals: set[Any] = set()

    def is_renewed_often() -> bool:
        renewals.add(redis.zscore(keys.due, kept.id))
        return len(renewals) > 3

    wait_until(is_renewed_often, PATIENCE)
    cancelled.cancel()
    error = cancelled.result(timeout=60).error
    assert error is not None
    assert error.code == "E_TOOL_CANCELLED"
    require_lost(stack, broken)
    open_gate(stack, kept)
    assert kept.result(timeout=PATIENCE).status == "ok"
    require_healthy(crew)
    assert redis.zscore(keys.running("nurse"), broken.id) is None


@pytest.mark.parametrize(
    "command",
    [["calls"], ["queues"], ["agents"], ["dead-letters", "list"], ["approvals", "list"], ["traces"]],
)
def test_listing_command_leaves_out_damaged_record(stack: LocalStack, command: list[str]) -> None:
    broken, good = submit(stack, "echo", "echo")
    assert [call.result(timeout=PATIENCE).status for call in (broken, good)] == ["ok", "ok"]
    redis_of(stack).delete(f"goondan:call:{broken.id}")
    redis_of(stack).set(f"goondan:call:{broken.id}", "overwritten")
    done = goondan_program(*command, env=environment(redis_url=stack.redis_url))
    assert (done.exit_code, "Traceback" in done.stderr) == (0, False), done.stderr
    if command == ["calls"]:
        assert good.id in done.stdout


@pytest.mark.parametrize("command", ["show", "result", "cancel"])
def test_command_on_damaged_record_reports_damage(stack: LocalStack, command: str) -> None:
    [broken] = submit(stack, "echo")
    assert broken.result(timeout=PATIENCE).status == "ok"
    redis_of(stack).delete(f"goondan:call:{broken.id}")
    redis_of(stack).set(f"goondan:call:{broken.id}", "overwritten")
    done = goondan(command, broken.id, env=environment(redis_url=stack.redis_url))
    assert done.exit_code == 2
    assert "damaged" in done.stdout + done.stderr


def test_submission_with_damaged_record_spares_other_calls(stack: LocalStack) -> None:
    calls: list[dict[str, Any]] = [
        {"agentName": "nurse", "toolName": "ward__echo", "args": {}, "turnId": "again", "toolCallId": name}
        for name in ("one", "two", "three")
    ]
    [known] = stack.client.submit_many(calls[1:2])
    assert known.result(timeout=PATIENCE).status == "ok"
    redis_of(stack).delete(f"goondan:call:{known.id}")
    redis_of(stack).set(f"goondan:call:{known.id}", "overwritten")
    first, broken, last = stack.client.submit_many(calls)
    assert [call.result(timeout=PATIENCE).status for call in (first, last)] == ["ok", "ok"]
    with pytest.raises(CallNotFoundError, match="damaged"):
        broken.result(timeout=PATIENCE)


def test_redis_refusal_is_not_mistaken_for_damage() -> None:
    with EmbeddedRedis() as server, connect(server.url) as redis:
        ledger = Ledger(redis, Settings.load())
        redis.hset(IN_FLIGHT, "tag", f"{events_queue('coder')}\nmessage")
        redis.replicaof("127.0.0.1", 9)

        in_flight = InFlight(lambda call: call.run(redis))
        with pytest.raises(RedisError, match="read only replica"):
            ledger.submit_all([submission(an_event(1))], "p1")
        with pytest.raises(RedisError, match="read only replica"):
            in_flight.give_back(["tag"])
        redis.replicaof("NO", "ONE")

        assert ledger.submit_all([submission(an_event(1))], "p1")[0].is_new
        assert in_flight.give_back(["tag"]) == 1
