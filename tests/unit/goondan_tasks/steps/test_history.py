"""What has come of a Turn: its latest part, in commands that keep nobody waiting."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.clocks import wall_clock
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.new_call import identity_of, new_call
from goondan_tasks.run import Run
from goondan_tasks.steps import history as module
from goondan_tasks.steps.history import TurnHistory
from goondan_tasks.steps.record import StepRecord
from goondan_tasks.steps.store import StepStore

KEYS = Keys()
STEP = StepRecord(
    id="s", agent_name="coder", instance_key="k", turn_id="t", trace_id="0" * 32, index=0, catalog="x"
)


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def call(call_id: str) -> ToolCall:
    fields = {"turn_id": "t", "instance_key": "k", "tool_call_id": call_id}
    return new_call("coder", "calc.add", {"a": 1}, fields)


def ok(one: ToolCall, output: str) -> JsonObject:
    run = Run(identity_of(one), one, "w1", 1, wall_clock(), wall_clock)
    return run.ok(output, None).to_wire()


def keep(redis: fakeredis.FakeRedis, *calls: ToolCall) -> None:
    for one in calls:
        redis.hset(KEYS.call(identity_of(one)), "call", serializer.encode(one.to_wire()))
    StepStore(redis, KEYS, 60).note_calls(STEP, [identity_of(one) for one in calls])


def test_a_turn_that_nobody_knows_has_no_history(redis: fakeredis.FakeRedis) -> None:
    assert StepStore(redis, KEYS, 60).history(call("a")) == TurnHistory([], {})


def test_calls_without_a_result_and_calls_that_are_gone_do_no_harm(redis: fakeredis.FakeRedis) -> None:
    here, gone = call("a"), call("b")
    keep(redis, here, gone)
    redis.delete(KEYS.call(identity_of(gone)))

    history = StepStore(redis, KEYS, 60).history(here)

    assert [entry.call_ids for entry in history.entries] == [(identity_of(here), identity_of(gone))]
    assert [(past.call, past.result) for past in history.calls.values()] == [(here, None)]


def test_no_more_than_the_latest_calls_are_read(
    redis: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 2)
    calls = [call(name) for name in "abc"]
    keep(redis, calls[0])
    keep(redis, *calls[1:])

    history = StepStore(redis, KEYS, 60).history(calls[0])

    assert {past.call.tool_call_id for past in history.calls.values()} == {"b", "c"}


def test_large_outputs_are_read_up_to_a_limit_the_latest_first(redis: fakeredis.FakeRedis) -> None:
    calls = [call(name) for name in "abc"]
    keep(redis, *calls)
    for one in calls:
        output = ok(one, "x" * (module.MOST_BYTES * 2 // 5))
        redis.set(
            KEYS.celery_result(identity_of(one)), serializer.encode({"status": "SUCCESS", "result": output})
        )

    history = StepStore(redis, KEYS, 60).history(calls[0])

    assert {past.call.tool_call_id for past in history.calls.values()} == {"b", "c"}
    assert all(past.result is not None for past in history.calls.values())


def test_a_long_record_is_read_from_its_end_in_order(
    redis: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [call(str(number)) for number in range(80)]
    for one in calls:
        keep(redis, one)
    ids = [identity_of(one) for one in calls]

    whole = StepStore(redis, KEYS, 60).history(calls[0])
    monkeypatch.setattr(module, "MOST_BYTES", 1_000)
    lately = StepStore(redis, KEYS, 60).history(calls[0])

    assert [call_id for entry in whole.entries for call_id in entry.call_ids] == ids
    assert [call_id for entry in lately.entries for call_id in entry.call_ids] == ids[-module.AT_ONCE :]
    assert len(whole.calls) == 80


def test_no_script_holds_redis_up(redis: fakeredis.FakeRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a script")

    keep(redis, call("a"))
    monkeypatch.setattr(redis, "evalsha", refuse)
    monkeypatch.setattr(redis, "eval", refuse)
    assert len(StepStore(redis, KEYS, 60).history(call("a")).calls) == 1
