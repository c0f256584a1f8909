"""What workers count of their calls, with bounded sets of names."""

from collections.abc import Iterator

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.contract.calls import Run, new_call, with_meta
from goondan_tasks.contract.messages import ToolCallError, wall_clock
from goondan_tasks.contract.names import DELEGATE_TOOL
from goondan_tasks.fleet.call_counts import (
    BUCKETS,
    KEPT_SECONDS,
    MOST_CODES,
    MOST_NAMES,
    OTHER,
    REQUEUED,
    UNKNOWN,
    CallCounts,
    CountedCall,
    CountStore,
    Settlement,
    ToolCounts,
)


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


def test_calls_are_counted_by_tool_and_code_with_their_times() -> None:
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


def test_names_that_models_make_up_count_as_one_and_those_of_known_tools_by_themselves() -> None:
    counted = counts("a__b")
    counted.add(ended(f"made__up{n}", "E_TOOL_NOT_FOUND", None) for n in range(2 * MOST_NAMES))
    counted.add([ended("a__b", "E_TOOL_CANCELLED", None), ended("turn__tool")])
    assert {tool: one.ended for tool, one in tools(counted).items()} == {
        UNKNOWN: {"E_TOOL_NOT_FOUND": 2 * MOST_NAMES},
        "a__b": {"E_TOOL_CANCELLED": 1},
        "turn__tool": {"ok": 1},
    }


def test_names_and_codes_beyond_the_bound_count_together() -> None:
    counted = counts()
    counted.add(ended(f"t__{n}") for n in range(MOST_NAMES + 7))
    counted.add(ended("t__0", f"E_{n}") for n in range(MOST_CODES + 7))
    by_tool = tools(counted)
    assert len(by_tool) == MOST_NAMES + 1
    assert by_tool[OTHER].ended == {"ok": 7}
    assert len(by_tool["t__0"].ended) == MOST_CODES + 1
    assert by_tool["t__0"].ended[OTHER] == 8


def test_a_first_run_has_waited_and_a_call_that_was_not_run_has_no_times() -> None:
    call = new_call("coder", "a__b", {}, {})
    first, second = (Run("id", call, "w", attempt, 1_000, lambda: 4_500.0) for attempt in (1, 2))
    assert CountedCall.of(first.ok(1, 3_000)) == ("coder", "a__b", "ok", 2.0, 1.5, None)
    assert CountedCall.of(second.ok(1, 3_000)) == ("coder", "a__b", "ok", None, 1.5, None)
    error = ToolCallError(code="E_LIMIT", name="LimitError", message="")
    failed = Run("id", call, "w", 0, 1_000, wall_clock).failed(error, None)
    assert CountedCall.of(failed) == ("coder", "a__b", "E_LIMIT", None, None, None)


def test_tokens_are_counted_of_requests_to_models_and_not_again_of_their_turns() -> None:
    counted, usage = counts(), {"input": 100, "output": 20, "cached": 60, "more": 9}
    for tool in ("goondan__model-large", DELEGATE_TOOL):
        run = Run("id", new_call("coder", tool, {}, {}), "w", 1, 1_000, lambda: 4_500.0)
        result = with_meta(run.ok(1, 3_000), usage=usage)
        counted.add([CountedCall.of(result)] * 2)
    tokens = {tool: one.tokens for tool, one in tools(counted).items()}
    asked = {"input": 200, "cached": 120, "output": 40, "reasoning": 0}
    assert tokens == {"goondan__model-large": asked, DELEGATE_TOOL: {}}


def test_totals_stay_for_a_while_and_writing_them_twice_changes_nothing(store: CountStore) -> None:
    counted = counts()
    counted.add([ended()])
    totals = counted.totals("w1", "p1")
    store.publish(totals)
    store.publish(totals)
    store.publish(counts().totals("w1", "p2"))
    assert store.workers() == [totals, counts().totals("w1", "p2")]
    assert 0 < store._redis.ttl(Keys().counts("p1")) <= KEPT_SECONDS


def test_settled_calls_are_counted_by_agent_and_code_and_lost_ones_kept(store: CountStore) -> None:
    assert store.totals() == ([], {}, {})
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


def test_a_damaged_count_in_redis_hides_no_other(store: CountStore) -> None:
    store.add_settled(Settlement("c1", "coder", "E_TOOL", "w1"))
    store._redis.hset(Keys().settled_calls, mapping={"no-code": 1, "coder E_X": "\x00"})
    store._redis.hset(Keys().lost_calls, "clerk", "many")
    store._redis.zadd(Keys().recent_losses, {"?": 9e15})

    assert (store.lost(), store.settled()) == ({"coder": 1}, {("coder", "E_TOOL"): 1})
    assert [loss.call_id for loss in store.recent_losses(60)] == ["c1"]
