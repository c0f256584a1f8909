"""What workers count of their calls, with bounded sets of names."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config.connections import redis_time
from broker_config.keys import Keys
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.fleet.call_counts import (
    BUCKETS,
    KEPT_SECONDS,
    MOST_CODES,
    MOST_MINUTES,
    MOST_NAMES,
    REQUEUED,
    UNKNOWN,
    CallCounts,
    CountedCall,
    CountStore,
    Settlement,
    ToolCounts,
)
from goondan_tasks.fleet.usage import OTHER


@pytest.fixture
def store() -> Iterator[CountStore]:
    with fakeredis.FakeRedis() as redis:
        yield CountStore(redis, Keys())


def counts(*known: str) -> CallCounts:
    """Count the calls of a worker whose agents have these tools."""
    return CallCounts(lambda agent, tool: tool in known)


def ended(tool: str = "a__b", code: str = "ok", run: float | None = 0.02) -> CountedCall:
    return CountedCall("coder", tool, code, None if run is None else 0.001, run)


def tools(counted: CallCounts) -> dict[str, ToolCounts]:
    return {one.tool: one for one in counted.totals("w1", "p1").tools}


def test_calls_are_timed_and_counted_by_tool_and_code() -> None:
    counted = counts()
    counted.add([ended(), ended(run=2_000), ended(code="E_TOOL"), ended("a__c")])
    counted.add_retry("coder", "a__b", "E_TOOL")
    counted.add_limit_wait("coder", "a__b")
    one = tools(counted)["a__b"]
    assert (one.ended, one.retried, one.limit_waits) == ({"ok": 2, "E_TOOL": 1}, {"E_TOOL": 1}, 1)
    assert one.runs.counts == (0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert one.runs.total == pytest.approx(2_000.04)
    assert one.waits.counts[0] == 3
    assert len(one.runs.counts) == len(BUCKETS) + 1
    assert tools(counted)["a__c"].ended == {"ok": 1}


def test_unknown_tools_count_together_known_tools_separately() -> None:
    counted = counts("a__b")
    counted.add(ended(f"made__up{n}", "E_TOOL_NOT_FOUND", None) for n in range(2 * MOST_NAMES))
    counted.add([ended("a__b", "E_TOOL_CANCELLED", None), ended("turn__tool")])
    assert {tool: one.ended for tool, one in tools(counted).items()} == {
        UNKNOWN: {"E_TOOL_NOT_FOUND": 2 * MOST_NAMES},
        "a__b": {"E_TOOL_CANCELLED": 1},
        "turn__tool": {"ok": 1},
    }


def test_names_and_codes_beyond_bound_count_together() -> None:
    counted = counts()
    counted.add(ended(f"t__{n}") for n in range(MOST_NAMES + 7))
    counted.add(ended("t__0", f"E_{n}") for n in range(MOST_CODES + 7))
    by_tool = tools(counted)
    assert len(by_tool) == MOST_NAMES + 1
    assert by_tool[OTHER].ended == {"ok": 7}
    assert len(by_tool["t__0"].ended) == MOST_CODES + 1
    assert by_tool["t__0"].ended[OTHER] == 8


def test_tokens_are_counted_by_kind_and_minute(store: CountStore) -> None:
    counted, tokens = counts(), {"input": 100, "output": 20, "cached": 60, "more": 9}
    now = redis_time(store._redis)
    for age in range(2 * MOST_MINUTES):
        at = iso_time(now - age * 60_000)
        counted.add([CountedCall("coder", "goondan__model-large", "ok", None, 1.0, tokens, at)])
    store.publish(counted, "w1", "p1", usage_days=90)

    asked = {kind: count * 2 * MOST_MINUTES for kind, count in tokens.items() if kind != "more"}
    assert tools(counted)["goondan__model-large"].tokens == asked | {"reasoning": 0}
    totals = store.totals()
    assert totals.tokens_per_minute == 120
    assert set(totals.workers[0].minutes) == {
        iso_time(now - age * 60_000)[:16] for age in range(MOST_MINUTES)
    }


def test_totals_written_twice_count_once_and_expire(store: CountStore) -> None:
    counted = counts()
    counted.add([ended()])
    for _ in range(2):
        store.publish(counted, "w1", "p1", usage_days=90)
    store.publish(counts(), "w1", "p2", usage_days=90)
    assert store.workers() == [counted.totals("w1", "p1"), counts().totals("w1", "p2")]
    assert 0 < store._redis.ttl(Keys().counts("p1")) <= KEPT_SECONDS


def test_settlements_count_by_agent_and_code_and_losses_stay(store: CountStore) -> None:
    assert store.totals()[:3] == ([], {}, {})
    lost = [Settlement("c1", "coder", REQUEUED, "w1@host"), Settlement("c2", "coder", "E_TOOL", "w1@host")]
    for settled in (*lost, Settlement("c3", "clerk", "E_TOOL_EXPIRED")):
        store.add_settled(settled)

    assert store.lost() == {"coder": 2}
    assert store.settled() == {
        ("coder", REQUEUED): 1,
        ("coder", "E_TOOL"): 1,
        ("clerk", "E_TOOL_EXPIRED"): 1,
    }
    assert store.recent_losses(60) == lost


def test_damaged_count_in_redis_hides_no_other(store: CountStore) -> None:
    store.add_settled(Settlement("c1", "coder", "E_TOOL", "w1"))
    store._redis.hset(Keys().settled_calls, mapping={"no-code": 1, "coder E_X": "\x00"})
    store._redis.hset(Keys().lost_calls, "clerk", "many")
    store._redis.zadd(Keys().recent_losses, {"?": 9e15})

    assert (store.lost(), store.settled()) == ({"coder": 1}, {("coder", "E_TOOL"): 1})
    assert [loss.call_id for loss in store.recent_losses(60)] == ["c1"]
