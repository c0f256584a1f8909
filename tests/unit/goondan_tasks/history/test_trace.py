"""The trace of calls and handoffs: how it is read from the ledger, and the order of its tree."""

from typing import Any, Unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis

from broker_config.connections import redis_time
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import DELEGATE_TOOL
from goondan_tasks.history import trace as traces
from goondan_tasks.history.trace import (
    MESSAGE_CHARACTERS,
    Trace,
    TraceNode,
    TraceSummary,
    build_trace,
    read_trace,
    read_traces,
)
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from tests.unit.goondan_tasks.history.trace_nodes import node
from tests.unit.goondan_tasks.ledger.calls import ONCE, claimed, submit
from tests.waiting import wait_until


def drawn(trace: Trace) -> list[str]:
    """Return the ids, each behind as many dots as its depth."""
    return ["." * found.depth + found.id for found in trace.nodes]


def notes(trace: Trace) -> dict[str, str]:
    return {found.id: found.note for found in trace.nodes if found.note is not None}


def test_calls_follow_parent_with_siblings_by_time() -> None:
    calls = [
        node("d", "b", at=9),
        node("c", "a", at=3),
        node("a"),
        node("b", "a", at=1),
        node("e", "b", at=4),
    ]

    trace = build_trace("c-1", calls)

    assert drawn(trace) == ["a", ".b", "..e", "..d", ".c"]
    assert notes(trace) == {}


def test_trace_lists_roots_and_children_of_calls() -> None:
    trace = build_trace("c-1", [node("a"), node("b", "a", at=1), node("c", "b", at=2), node("z", at=5)])

    assert [root.id for root in trace.roots] == ["a", "z"]
    assert [child.id for child in trace.children("a")] == ["b"]
    assert [child.id for child in trace.children("b")] == ["c"]
    assert trace.children("c") == trace.children("unknown") == ()


def test_call_with_expired_parent_is_noted_below_root() -> None:
    trace = build_trace("c-1", [node("a"), node("c", "gone", at=2, root_id="a"), node("d", "c", at=3)])

    assert drawn(trace) == ["a", ".c", "..d"]
    assert notes(trace) == {"c": "caused by gone, which is unknown or has expired"}


def test_call_with_expired_chain_is_noted_at_top() -> None:
    trace = build_trace("c-1", [node("a"), node("c", "gone", at=2, root_id="gone too")])

    assert drawn(trace) == ["a", "c"]
    assert notes(trace) == {"c": "caused by gone, which is unknown or has expired"}


def test_calls_causing_each_other_all_appear_once() -> None:
    calls = [
        node("a"),
        node("x", "z", at=1),
        node("y", "x", at=2),
        node("z", "y", at=3),
        node("w", "y", at=0.5),
    ]

    trace = build_trace("c-1", calls)

    assert drawn(trace) == ["a", "y", ".w", ".z", "..x"]
    assert notes(trace) == {"y": "the calls that caused it form a circle"}


def test_call_that_caused_itself_stands_at_top() -> None:
    assert drawn(build_trace("c-1", [node("a", "a")])) == ["a"]


def test_calls_naming_each_other_as_root_both_appear() -> None:
    calls = [node("a", "gone", root_id="b"), node("b", "gone", at=1, root_id="a")]

    assert sorted(found.id for found in build_trace("c-1", calls).nodes) == ["a", "b"]


def test_chain_of_ten_thousand_calls_is_not_problem() -> None:
    calls = [node("0", at=0), *(node(str(n), str(n - 1), at=n) for n in range(1, 10_000))]

    trace = build_trace("c-1", reversed(calls))

    assert [found.depth for found in trace.nodes] == list(range(10_000))


@given(
    st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 15), st.none() | st.integers(0, 15)))
)
def test_trace_has_each_call_exactly_once(links: list[tuple[int, int | None, int | None]]) -> None:
    calls: dict[str, TraceNode] = {
        str(name): node(str(name), None if parent is None else str(parent), at=name, root_id=str(root))
        for name, parent, root in links
    }

    trace = build_trace("c-1", calls.values())

    assert sorted(found.id for found in trace.nodes) == sorted(calls)
    depths = [found.depth for found in trace.nodes]
    assert all(after <= before + 1 for before, after in zip([-1, *depths], depths, strict=False))


LONE = "a1" * 16


def call(name: str, tool: str = "bash__exec", **fields: Any) -> ToolCall:
    args = fields.pop("args", {"command": "ls"})
    return new_call("coder", tool, args, {"tool_call_id": name, "trace_id": LONE, **fields})


def traced(ledger: Ledger, name: str) -> Trace:
    """Read a trace that there is."""
    trace = read_trace(ledger, name, lambda: ["coder"])
    assert trace is not None
    return trace


def only_node(ledger: Ledger, name: str) -> TraceNode:
    [node] = traced(ledger, name).nodes
    return node


def index(redis: Redis) -> list[str]:
    """Return the keys of all indexes."""
    return sorted(key.decode() for key in redis.scan_iter("goondan:trace:*"))


def test_lone_call_is_found_without_index(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, call("one"))

    assert index(redis) == []
    assert [only_node(ledger, name).id for name in (LONE, call_id)] == [call_id, call_id]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["order-7"]),
        ({"parent_id": "p"}, [LONE]),
        ({"parent_id": "p", "tool": DELEGATE_TOOL}, [LONE, "order-7"]),
        ({"tool": DELEGATE_TOOL}, [LONE, "order-7"]),
        ({"replay_of": "p"}, [LONE, "order-7"]),
        ({"parent_span_id": "b2" * 8}, [LONE, "order-7"]),
    ],
    ids=lambda value: "+".join(value),
)
def test_related_call_is_indexed_while_recorded(
    ledger: Ledger, redis: Redis, fields: dict[str, Any], names: list[str]
) -> None:
    call_id = submit(ledger, call("one", correlation_id="order-7", **fields))

    assert index(redis) == [f"goondan:trace:{name}" for name in names]
    assert all(0 < redis.ttl(f"goondan:call:{call_id}") <= redis.ttl(key) for key in index(redis))
    assert [node.id for node in traced(ledger, "order-7").nodes] == [call_id]


@pytest.mark.parametrize("fields", [{"parent_id": "p"}, {"tool": DELEGATE_TOOL}, {"replay_of": "p"}], ids=str)
def test_trace_without_correlation_id_is_indexed_by_trace_id(
    ledger: Ledger, redis: Redis, fields: dict[str, Any]
) -> None:
    submit(ledger, call("one", **fields))

    assert index(redis) == [f"goondan:trace:{LONE}"]


def test_plain_celery_call_is_indexed_when_claimed(ledger: Ledger, redis: Redis) -> None:
    plain = call("one", correlation_id="order-7")

    ledger.claim(ClaimRequest("plain-id", plain, "w1", ONCE)).run(ledger.redis)

    assert [node.id for node in traced(ledger, "order-7").nodes] == ["plain-id"]
    assert 0 < redis.ttl("goondan:call:plain-id") <= redis.ttl("goondan:trace:order-7")


@pytest.mark.parametrize("correlation_id", ["주문 7", "a" * 5000, "a:b*?[", "line\nbreak", " "], ids=len)
def test_short_key_finds_odd_or_long_correlation_id(
    ledger: Ledger, redis: Redis, correlation_id: str
) -> None:
    call_id = submit(ledger, call("one", correlation_id=correlation_id))

    [key] = index(redis)
    assert len(key) < 100
    assert only_node(ledger, correlation_id).id == call_id


def test_root_call_is_found_by_its_descendants(ledger: Ledger) -> None:
    root = submit(ledger, call("root"))
    child = submit(ledger, call("child", parent_id=root, root_id=root))
    submit(ledger, call("grandchild", parent_id=child, root_id=root))

    for name in (LONE, root, child):
        assert [(node.depth, node.parent_id) for node in traced(ledger, name).nodes] == [
            (0, None),
            (1, root),
            (2, child),
        ]


def test_request_chain_is_one_trace_by_any_correlation_id(ledger: Ledger) -> None:
    def request(name: str, parent: ToolCall | None) -> ToolCall:
        parent_id = None if parent is None else identity_of(parent)
        made = call(name, DELEGATE_TOOL, parent_id=parent_id, args={})
        made = made.model_copy(update={"correlation_id": identity_of(made)})
        submit(ledger, made)
        return made

    first = request("first", None)
    second = request("second", first)
    third = request("third", second)
    submit(ledger, call("tool", parent_id=identity_of(third), correlation_id=third.correlation_id))

    for one in (first, second, third):
        trace = traced(ledger, one.correlation_id)
        assert trace.correlation_id == one.correlation_id
        assert [(node.depth, node.kind) for node in trace.nodes] == [
            (0, "request"),
            (1, "request"),
            (2, "request"),
            (3, "call"),
        ]
    assert traced(ledger, LONE).correlation_id == first.correlation_id


def test_calls_sharing_correlation_id_include_their_descendants(ledger: Ledger) -> None:
    for number in range(2):
        trace_id = f"{number}f" * 16
        root = submit(ledger, call(f"root-{number}", trace_id=trace_id, correlation_id="order-7"))
        child = call(f"child-{number}", trace_id=trace_id, parent_id=root, correlation_id=root)
        submit(ledger, child)

    assert [node.depth for node in traced(ledger, "order-7").nodes] == [0, 1, 0, 1]


def test_replay_brings_call_that_it_replays(ledger: Ledger) -> None:
    old = submit(ledger, call("one"))
    submit(ledger, call("one", turn_id="replay", replay_of=old))

    assert [node.replay_of for node in traced(ledger, LONE).nodes] == [None, old]


def test_unknown_trace_is_none(ledger: Ledger) -> None:
    submit(ledger, call("one"))

    assert [read_trace(ledger, name, lambda: ["coder"]) for name in ("x", "", "\ud800", "a" * 100_000)] == [
        None
    ] * 4


def test_expired_calls_are_counted(ledger: Ledger, redis: Redis) -> None:
    ids = [submit(ledger, call(name, correlation_id="order-7")) for name in ("one", "two", "three")]
    redis.delete(f"goondan:call:{ids[0]}", f"goondan:call:{ids[1]}")

    trace = traced(ledger, "order-7")

    assert ([node.id for node in trace.nodes], trace.expired) == ([ids[2]], 2)


def test_calls_beyond_one_trip_are_all_read(ledger: Ledger) -> None:
    root = submit(ledger, call("root"))
    for number in range(120):
        submit(ledger, call(f"child-{number}", parent_id=root, root_id=root))

    assert len(traced(ledger, LONE).children(root)) == 120


def test_queued_call_waits_until_now(ledger: Ledger) -> None:
    submit(ledger, call("one"))

    node = only_node(ledger, LONE)

    assert (node.state, node.kind, node.tool, node.worker) == ("queued", "call", "bash__exec", None)
    assert (node.running_seconds, node.started_at, node.finished_at) == (None, None, None)
    assert 0 <= node.waiting_seconds < 60


def test_call_that_waits_for_limit_says_for_which(ledger: Ledger, redis: Redis) -> None:
    call_id = submit(ledger, call("one"))
    redis.hset(f"goondan:call:{call_id}", "waiting", "rate-limit:bash__exec")

    assert (only_node(ledger, LONE).state, only_node(ledger, LONE).waiting_for) == (
        "waiting",
        "rate-limit:bash__exec",
    )


def test_running_call_runs_from_its_claim_on(ledger: Ledger) -> None:
    one = call("one")
    submit(ledger, one)
    claim = claimed(ledger, one)
    assert only_node(ledger, LONE).running_seconds is None

    ledger.start([claim.id_and_token]).run(ledger.redis)

    node = only_node(ledger, LONE)
    assert (node.state, node.worker, node.attempt) == ("running", "w1", 1)
    assert node.running_seconds is not None
    assert node.finished_at is None


def test_failed_call_has_times_code_and_shortened_message(ledger: Ledger) -> None:
    one = call("one")
    submit(ledger, one)
    claim = claimed(ledger, one)
    ledger.start([claim.id_and_token]).run(ledger.redis)
    error = describe(ToolError("x" * 900, code="E_ODD"), help_url="https://help/")
    started = claim.run.clock()
    ledger.finish(claim, claim.run.failed(error, started)).run(ledger.redis)

    node = only_node(ledger, LONE)

    assert node.error is not None
    assert (node.state, node.error.code, node.error.message) == ("error", "E_ODD", "x" * MESSAGE_CHARACTERS)
    assert node.running_seconds is not None
    assert node.queued_at <= (node.started_at or "") <= (node.finished_at or "")


def test_call_with_unreadable_result_keeps_recorded_state(ledger: Ledger, redis: Redis) -> None:
    one = call("one")
    submit(ledger, one)
    claim = claimed(ledger, one)
    ledger.finish(claim, claim.run.ok(1, None)).run(ledger.redis)
    redis.hset(ledger.keys.call(identity_of(one)), "result", b"{")

    assert only_node(ledger, LONE).state == "ok"


@pytest.mark.parametrize(
    ("args", "event_type"),
    [({"payload": {"type": "user.input"}}, "user.input"), ({"payload": 1}, None), ({}, None)],
    ids=str,
)
def test_handoff_is_request_of_its_events_type(ledger: Ledger, args: Any, event_type: str | None) -> None:
    submit(ledger, call("one", DELEGATE_TOOL, args=args))

    node = only_node(ledger, LONE)

    assert (node.kind, node.event_type) == ("request", event_type)


def listed(ledger: Ledger, limit: int = 20, **times: Unpack[CallFilter]) -> list[TraceSummary]:
    return read_traces(ledger, ["coder"], limit, **times)


def wait_until_later(ledger: Ledger) -> None:
    """Let the next call have another time than the last one."""
    now = redis_time(ledger.redis)
    wait_until(lambda: redis_time(ledger.redis) >= now + 1)


def test_lone_calls_are_separate_traces_newest_first(ledger: Ledger) -> None:
    for number in range(3):
        submit(ledger, call(f"call-{number}", trace_id=str(number) * 32))
        wait_until_later(ledger)

    assert [(one.trace_id[0], one.agent, one.calls, one.state) for one in listed(ledger)] == [
        ("2", "coder", 1, "queued"),
        ("1", "coder", 1, "queued"),
        ("0", "coder", 1, "queued"),
    ]
    assert [one.trace_id[0] for one in listed(ledger, 2)] == ["2", "1"]


def test_trace_is_named_after_its_root_call(ledger: Ledger) -> None:
    root = submit(ledger, call("root", "plan__outline"))
    child = submit(ledger, call("child", parent_id=root, root_id=root))
    submit(ledger, call("grandchild", parent_id=child, root_id=root))

    [one] = listed(ledger)

    assert (one.id, one.tool, one.kind, one.calls) == (root, "plan__outline", "call", 3)


def test_trace_counts_old_calls_and_reads_root(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    root = submit(ledger, call("root", "plan__outline"))
    for number in range(5):
        wait_until_later(ledger)
        submit(ledger, call(f"child-{number}", parent_id=root, root_id=root))
    monkeypatch.setattr(traces, "SEARCHED", 2)

    [one] = listed(ledger)

    assert (one.id, one.calls) == (root, 6)


def test_trace_has_state_of_open_call_else_of_root(ledger: Ledger) -> None:
    root = call("root")
    root_id = submit(ledger, root)
    child = call("child", parent_id=root_id, root_id=root_id)
    submit(ledger, child)
    states = [listed(ledger)[0].state]
    for one in (child, root):
        claim = claimed(ledger, one)
        states.append(listed(ledger)[0].state)
        failed = claim.run.failed(describe(ToolError("no"), help_url=""), None)
        ledger.finish(claim, failed if one is child else claim.run.ok(1, None)).run(ledger.redis)
        states.append(listed(ledger)[0].state)

    assert states == ["queued", "running", "queued", "running", "ok"]


def test_only_traces_with_calls_of_time_are_listed(ledger: Ledger) -> None:
    submit(ledger, call("one"))

    assert len(listed(ledger, newer_than=3600)) == 1
    assert listed(ledger, older_than=3600) == []


def test_trace_with_expired_root_shows_next_call(ledger: Ledger) -> None:
    child = submit(ledger, call("child", parent_id="gone", root_id="gone"))

    [one] = listed(ledger)

    assert (one.id, one.calls) == (child, 1)
