"""The search for calls: its pages have what the filter selects, once each, in the order of the index."""

import itertools
from typing import Any, cast

import pytest
from redis import Redis

from broker_config import serializer
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import ToolCall, ToolCallError
from goondan_tasks.history.failures import read_failures
from goondan_tasks.history.trace import read_trace
from goondan_tasks.ledger import call_search
from goondan_tasks.ledger.call_filter import CallFilter, is_wanted, open_calls, scheduled_calls
from goondan_tasks.ledger.call_search import CallPage, CallSearch
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord
from tests.unit.goondan_tasks.ledger.calls import claimed, submit
from tests.unit.goondan_tasks.ledger.test_finished_records import finish_plainly

AGENTS = ("archivist", "coder", "writer")
TOOLS = ("bash__exec", "bash__read", 'od"d\\__t\u00f6\u00f6l', "wait__now")
INSTANCES = ("default", 'k\u00fcche "1"', "a/b")
MESSAGES = ("No file 12", "Timed OUT after 3 s", 'Kein "Schl\u00fcssel"', "")
CODES = ("E_TOOL", "E_TOOL_TIMEOUT")


@pytest.fixture
def filled(ledger: Ledger) -> dict[str, CallRecord]:
    """Calls that were ended plainly, with an error, with auth, or not yet, of all agents and tools."""
    for number, (agent, tool, key) in enumerate(itertools.product(AGENTS, TOOLS, INSTANCES)):
        auth = {"subjects": {"user": f"U{number % 4}", "tenant": "T\u00e9a"}} if number % 2 else None
        call = new_call(agent, tool, {"n": number}, {"instanceKey": key, "auth": auth})
        submit(ledger, call)
        _move_on(ledger, call, number)
    ids = [one for agent in AGENTS for one in members(ledger, ledger.keys.calls(agent))]
    return {one.id: one for one in ledger.records(ids) if one is not None}


def members(ledger: Ledger, key: str) -> list[str]:
    return [one.decode() for one in cast("list[bytes]", ledger.redis.zrange(key, 0, -1))]


def _move_on(ledger: Ledger, call: ToolCall, number: int) -> None:
    match number % 5:
        case 0 | 1:
            finish_plainly(ledger, claimed(ledger, call), output={"toolName": "bash__exec"})
        case 2 | 3:
            message = MESSAGES[number % len(MESSAGES)]
            error = ToolCallError(code=CODES[number % 2], name="Error", message=message)
            claim = claimed(ledger, call)
            assert ledger.finish(claim, claim.run.failed(error, None)).run(ledger.redis) > 0
        case _:
            claimed(ledger, call)


def pages(ledger: Ledger, limit: int, agents: tuple[str, ...] = AGENTS, **wanted: Any) -> list[CallPage]:
    """Search from the first page to the last."""
    search, found, cursor = CallSearch(ledger), [], None
    while True:
        page = search.page(agents, limit, cursor, cast(CallFilter, wanted))
        found.append(page)
        if (cursor := page.cursor) is None:
            return found


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"tool": "bash__exec"},
        {"tool": "bash__*"},
        {"tool": "*__*e*"},
        {"tool": "[bw]a?*__*"},
        {"tool": 'od"d\\__t\u00f6*'},
        {"tool": "none__*"},
        {"instance": 'k\u00fcche "1"'},
        {"instance": "a/b", "tool": "wait__now"},
        {"status": "ok"},
        {"status": "error"},
        {"status": "running"},
        {"status": "done", "instance": "default"},
        {"code": "E_TOOL"},
        {"code": "E_TOOL", "tool": "bash__*"},
        {"text": "OUT AFTER"},
        {"text": 'kein "schl\u00fc'},
        {"text": "code"},
        {"subject": "U1"},
        {"subject": "T\u00e9a", "status": "ok"},
        {"subject": "user"},
    ],
    ids=str,
)
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_calls_selected_by_filter(
    ledger: Ledger, filled: dict[str, CallRecord], wanted: dict[str, Any], limit: int
) -> None:
    found = pages(ledger, limit, **wanted)
    ids = [one.id for page in found for one in page.calls]
    assert len(ids) == len(set(ids))
    assert set(ids) == {one.id for one in filled.values() if is_wanted(one, cast(CallFilter, wanted))}
    assert all(len(page.calls) <= limit for page in found)
    assert sum(page.searched for page in found) <= found[0].total


@pytest.mark.parametrize("limit", [1, 4])
def test_simultaneous_calls_each_appear_on_one_page(ledger: Ledger, redis: Redis, limit: int) -> None:
    filled = [submit(ledger, new_call(AGENTS[n % 3], "bash__exec", {}, {})) for n in range(12)]
    for agent in AGENTS:
        key = ledger.keys.calls(agent)
        same: Any = dict.fromkeys(members(ledger, key), 5.0)
        redis.zadd(key, same)
    ids = [one.id for page in pages(ledger, limit) for one in page.calls]
    assert sorted(ids) == sorted(filled)


def test_new_calls_move_no_newest_first_page(ledger: Ledger, redis: Redis) -> None:
    ids = [submit(ledger, new_call(AGENTS[n % 2], "bash__exec", {}, {})) for n in range(6)]
    for n, call_id in enumerate(ids):
        redis.zadd(ledger.keys.calls(AGENTS[n % 2]), {call_id: 1_000 + n})
    search = CallSearch(ledger)
    first = search.page(AGENTS, 2, None, {})
    submit(ledger, new_call("coder", "bash__exec", {}, {}))
    redis.zrem(ledger.keys.calls(AGENTS[0]), ids[4])  # that of the cursor has left the index
    second = search.page(AGENTS, 2, first.cursor, {})
    assert [one.id for one in (*first.calls, *second.calls)] == ids[5:1:-1]


@pytest.mark.parametrize("limit", [7, 200])
def test_calls_of_many_agents_are_in_one_order(ledger: Ledger, redis: Redis, limit: int) -> None:
    names = tuple(f"agent-{n:02d}" for n in range(40))
    made = []
    for n in range(160):
        agent, moment = names[n * n % 40], float(n * 7 % 31)
        call_id = submit(ledger, new_call(agent, "bash__exec", {}, {}))
        redis.zadd(ledger.keys.calls(agent), {call_id: moment})
        made.append((moment, agent, call_id))
    made.sort(key=lambda one: one[2], reverse=True)
    made.sort(key=lambda one: (-one[0], one[1]))
    ids = [one.id for page in pages(ledger, limit, names) for one in page.calls]
    assert ids == [call_id for _, _, call_id in made]


def test_call_that_began_again_moves_no_page(ledger: Ledger, redis: Redis) -> None:
    ids = [submit(ledger, new_call("coder", "bash__exec", {}, {})) for _ in range(6)]
    key = ledger.keys.calls("coder")
    for n, call_id in enumerate(ids):
        redis.zadd(key, {call_id: 1_000 + n})
    search = CallSearch(ledger)
    first = search.page(AGENTS, 2, None, {})
    redis.zadd(key, {ids[4]: 2_000})  # that of the cursor
    second = search.page(AGENTS, 6, first.cursor, {})
    assert [one.id for one in (*first.calls, *second.calls)] == ids[::-1]


def test_search_says_how_far_it_came(ledger: Ledger, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_search, "SEARCHED", 4)
    monkeypatch.setattr(call_search, "_AT_ONCE", 2)
    ids = [submit(ledger, new_call("coder", f"bash__t{n}", {}, {})) for n in range(10)]
    redis.zadd(ledger.keys.calls("coder"), {call_id: 1_000 + n for n, call_id in enumerate(ids)})
    first = CallSearch(ledger).page(AGENTS, 5, None, {"tool": "bash__t0"})
    assert (first.calls, first.searched, first.total) == ((), 4, 10)
    rest = CallSearch(ledger).page(AGENTS, 5, first.cursor, {"tool": "bash__t4"})
    assert [one.id for one in rest.calls] == [ids[4]]


def test_ages_of_failures_count_from_their_end(ledger: Ledger, redis: Redis) -> None:
    call = new_call("coder", "bash__exec", {}, {})
    submit(ledger, call)
    _move_on(ledger, call, 2)
    [failed] = members(ledger, ledger.keys.failures("coder"))
    redis.zadd(ledger.keys.calls("coder"), {failed: 1.0})  # queued long ago
    assert [len(one.calls) for one in pages(ledger, 5, status="error", newer_than=60.0)] == [1]
    assert [len(one.calls) for one in pages(ledger, 5, newer_than=60.0)] == [0]


def test_overwritten_index_and_record_are_left_out(
    ledger: Ledger, filled: dict[str, CallRecord], redis: Redis
) -> None:
    redis.set(ledger.keys.calls("damaged"), "overwritten")
    gone = next(iter(filled))
    redis.set(ledger.keys.call(gone), "overwritten")
    for wanted in ({}, {"tool": "*"}):
        ids = {one.id for page in pages(ledger, 7, (*AGENTS, "damaged"), **wanted) for one in page.calls}
        assert ids == set(filled) - {gone}


def test_id_that_others_have_written_hides_no_call(ledger: Ledger, redis: Redis) -> None:
    call = new_call("coder", "bash__exec", {}, {})
    call_id = submit(ledger, call)
    keys = ledger.keys
    for index in (keys.calls, keys.failures, keys.dead_letters, keys.scheduled, keys.running):
        redis.zadd(index("coder"), {b"\xff": 1e15})
    redis.zadd(keys.due, {b"\xff": 1e15})
    caused: Any = {call_id: 1.0, b"\xff": 1e15}
    redis.zadd(keys.trace(call.trace_id), caused)
    assert [one.id for one in ledger.recent(["coder"], 5)] == [call_id]
    assert [one.id for one in open_calls(ledger, "coder", {})] == [call_id]
    assert scheduled_calls(ledger, ["coder"], 5) == []
    assert read_failures(ledger, ["coder"], only_dead=False).counted == 0
    assert read_failures(ledger, ["coder"], only_dead=True).counted == 0
    trace = read_trace(ledger, call.trace_id, lambda: ["coder"])
    assert trace is not None
    assert [one.id for one in trace.nodes] == [call_id]


def test_result_is_stored_despite_damaged_failure_index(ledger: Ledger, redis: Redis) -> None:
    redis.set(ledger.keys.failures("coder"), "overwritten")
    call = new_call("coder", "bash__exec", {}, {})
    submit(ledger, call)
    _move_on(ledger, call, 2)
    record = ledger.record(identity_of(call))
    assert record is not None
    assert record.state == "error"
    assert [page.calls for page in pages(ledger, 5, status="error")] == [()]


@pytest.mark.parametrize("cursor", ["", "x", "1~2", "~a~coder", "1e9~a~coder", "1~~coder"])
def test_another_text_is_no_cursor(ledger: Ledger, cursor: str) -> None:
    with pytest.raises(ToolInputValidationError, match="cursor"):
        CallSearch(ledger).page(AGENTS, 5, cursor, {})


def test_failure_index_has_only_failed_calls(
    ledger: Ledger, filled: dict[str, CallRecord], redis: Redis
) -> None:
    indexed = {one for agent in AGENTS for one in members(ledger, ledger.keys.failures(agent))}
    assert indexed == {one.id for one in filled.values() if one.outcome == "error"}
    assert all(0 < redis.ttl(ledger.keys.failures(agent)) <= 86_400 for agent in AGENTS)
    [gone, *kept] = members(ledger, ledger.keys.failures("coder"))
    ledger.forget(gone, "coder")
    assert members(ledger, ledger.keys.failures("coder")) == kept


def test_search_finds_call_recorded_by_plain_celery(ledger: Ledger) -> None:
    """A record as plain Celery's producers leave it has its fields in another order, and no message."""
    call = new_call("coder", "bash__exec", {"toolName": "other__tool"}, {"instanceKey": "x"})
    submit(ledger, call)
    wire: Any = serializer.encode(call.to_wire())
    ledger.redis.hset(ledger.keys.call(identity_of(call)), "call", wire)
    assert [len(one.calls) for one in pages(ledger, 5, tool="bash__exec", instance="x")] == [1]
