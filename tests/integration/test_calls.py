"""Calls through a real Redis and a real worker."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any

import pytest

from goondan_tasks.client import AsyncClient, Client, results
from goondan_tasks.client import connection as client_connection
from goondan_tasks.client.results import Expected, ResultListener
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallNotFoundError,
    PayloadTooLargeError,
    ToolCallConflictError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.ledger.submission import Submission
from goondan_tasks.testing import LocalStack

PATIENCE = 60

#: what the context of the older version has besides (002 §4.3)
REMOVED = {
    "agent", "events", "instance", "oauth", "step", "swarm", "swarm_bundle", "tool_catalog", "turn",
}  # fmt: skip


@pytest.mark.requirement("result.tool-call-id", "result.tool-name", "result.output", "result.status")
def test_call_comes_back_with_its_output(client: Client) -> None:
    result = client.call("smith", "echo__args", {"n": 1}, tool_call_id="call_1", timeout=PATIENCE)
    assert (result.tool_call_id, result.tool_name, result.status) == ("call_1", "echo__args", "ok")
    assert result.output == {"n": 1}
    assert result.error is None


def test_result_shows_worker_instance_attempt_and_times(client: Client) -> None:
    call = client.submit("smith", "echo__args", instance_key="issue-42")
    meta = call.result(PATIENCE).meta
    assert (meta.id, meta.agent_name, meta.instance_key, meta.attempt) == (call.id, "smith", "issue-42", 1)
    assert meta.worker is not None
    assert meta.queued_at is not None
    assert meta.started_at is not None
    assert meta.finished_at is not None
    assert meta.queued_at <= meta.started_at <= meta.finished_at


@pytest.mark.requirement("json.values")
@pytest.mark.parametrize(
    "args",
    [
        {"__type__": "uuid", "__value__": "x"},
        {"value": {"__type__": "datetime", "__value__": "no date"}},
        {"big": 2**70, "negative": -(2**65)},
        {"text": "😀 \x00 한글 \\ud800"},
        {"args": 1, "kwargs": 2, "call": 3},
    ],
)
def test_json_that_looks_odd_reaches_handler_unchanged(client: Client, args: dict[str, Any]) -> None:
    assert client.call("smith", "echo__args", args, timeout=PATIENCE).output == args


@pytest.mark.requirement(
    "context.agent-name",
    "context.instance-key",
    "context.turn-id",
    "context.trace-id",
    "context.tool-call-id",
    "context.message",
    "context.workdir",
    "context.no-removed-interfaces",
)
def test_context_tells_handler_about_its_call(client: Client, calls_stack: LocalStack) -> None:
    result = client.call(
        "smith", "echo__context", instance_key="a/b", turn_id="turn-7", tool_call_id="c", timeout=PATIENCE
    )
    told = result.output
    assert (told["agentName"], told["instanceKey"], told["turnId"]) == ("smith", "a/b", "turn-7")
    assert (told["traceId"], told["toolCallId"]) == (result.meta.trace_id, "c")
    assert told["workdir"] == str(
        calls_stack.state_root / "workspaces" / "calls" / "instances" / "a%2Fb" / "workspace"
    )
    assert REMOVED.isdisjoint(told["members"])


@pytest.mark.requirement("context.logger")
def test_worker_log_shows_tool_lines_with_call_fields(client: Client, calls_stack: LocalStack) -> None:
    result = client.call(
        "smith", "echo__context", instance_key="log/1", tool_call_id="logged-1", timeout=PATIENCE
    )

    lines = [line for worker in calls_stack.workers for line in calls_stack.log(worker).splitlines()]
    [line] = [line for line in lines if "context.shown" in line and "tool_call_id=logged-1" in line]
    trace = f"trace_id={result.meta.trace_id}"
    for part in ("info", "goondan.tool", "n=1", "agent=smith", "instance=log/1", "tool=echo__context", trace):
        assert part in line


@pytest.mark.requirement("context.message.holds-the-call", "message.fields", "message.source")
def test_call_without_message_gets_message_holding_it(client: Client) -> None:
    told = client.call("smith", "echo__context", {"n": 1}, tool_call_id="c", timeout=PATIENCE).output
    message = told["message"]
    assert message["data"] == {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "echo__context", "input": {"n": 1}}],
    }
    assert message["source"] == {"type": "assistant", "stepId": told["turnId"]}
    assert {"id", "createdAt", "metadata"} <= set(message)


ASKED = {"type": "tool-call", "toolCallId": "c9", "toolName": "echo__context", "input": {}}
SIBLING = {"type": "tool-call", "toolCallId": "c8", "toolName": "echo__args", "input": {"n": 1}}


@pytest.mark.requirement("context.message", "context.message.holds-the-call")
def test_given_message_reaches_handler(client: Client) -> None:
    message = {
        "id": "m1",
        "data": {"role": "assistant", "content": [{"type": "text", "text": "hello"}, SIBLING, ASKED]},
        "metadata": {"x": 1},
        "createdAt": "2026-01-01T00:00:00.000Z",
        "source": {"type": "assistant", "stepId": "s"},
    }
    turn = f"turn-{secrets.token_hex(6)}"
    call = client.submit("smith", "echo__context", message=message, tool_call_id="c9", turn_id=turn)
    assert call.result(PATIENCE).output["message"] == message


OF_ASSISTANT = {"type": "assistant", "stepId": "s"}


@pytest.mark.requirement("context.message.holds-the-call", "message.source")
@pytest.mark.parametrize(
    ("data", "source", "told"),
    [
        ({"role": "assistant", "content": [SIBLING]}, OF_ASSISTANT, "does not hold the call 'c9'"),
        ({"role": "assistant", "content": "no call"}, OF_ASSISTANT, "does not hold the call 'c9'"),
        ({"role": "assistant", "content": [{**ASKED, "toolCallId": ["c9"]}]}, OF_ASSISTANT, "not hold"),
        ({"role": "robot", "content": [ASKED]}, OF_ASSISTANT, "its role is unknown: 'robot'"),
        ({"role": ["assistant"], "content": [ASKED]}, OF_ASSISTANT, "its role is unknown"),
        ({"content": [ASKED]}, OF_ASSISTANT, "its role is unknown: None"),
        ({"role": "user", "content": [ASKED]}, OF_ASSISTANT, "it is not the assistant's"),
        ({"role": "assistant", "content": [ASKED]}, {"type": "user"}, "it is not the assistant's"),
        ({"role": "assistant", "content": [ASKED]}, {"type": "martian"}, "unknown type 'martian'"),
        ({"role": "assistant", "content": [ASKED]}, {"type": {}}, "unknown type"),
        ({"role": "assistant", "content": [ASKED]}, {}, "unknown type None"),
        ({"role": "assistant", "content": [ASKED]}, {"type": "assistant"}, "has no stepId"),
        (
            {"role": "assistant", "content": [ASKED]},
            {"type": "tool", "toolCallId": 5},
            "no toolCallId and no",
        ),
    ],
)
def test_message_not_matching_call_is_refused(client: Client, data: Any, source: Any, told: str) -> None:
    message = {"id": "m1", "data": data, "createdAt": "2026-01-01T00:00:00.000Z", "source": source}
    turn = f"turn-{secrets.token_hex(6)}"
    call = client.submit("smith", "echo__context", message=message, tool_call_id="c9", turn_id=turn)
    error = call.result(PATIENCE).error
    assert error is not None
    assert error.code == "E_TOOL_INVALID_ARGS"
    assert error.message.startswith("The call is not valid: message: ")
    assert told in error.message


def test_same_identity_is_same_call(client: Client) -> None:
    again = {"tool_call_id": "call_1", "turn_id": "turn-same"}
    one = client.submit("smith", "echo__args", {"n": 1}, tool_call_id="call_1", turn_id="turn-same")
    other = client.submit("smith", "echo__args", {"n": 1}, tool_call_id="call_1", turn_id="turn-same")
    assert one.id == other.id
    assert one.result(PATIENCE) == other.result(PATIENCE)
    with pytest.raises(ToolCallConflictError):
        client.submit("smith", "echo__args", {"n": 2}, **again)  # type: ignore[arg-type]


def test_conflicts_among_many_calls_leave_handles_of_all(client: Client) -> None:
    names = {"agentName": "smith", "toolName": "echo__args", "turnId": f"turn-{secrets.token_hex(6)}"}
    calls = [{**names, "toolCallId": f"call_{n}", "args": {"n": n}} for n in range(20)]
    client.submit_many(calls[:1])[0].result(PATIENCE)
    calls[0] = {**calls[0], "args": {"n": "other"}}
    calls.append({**calls[5], "args": {"n": "other"}})  # in conflict with another one of the same trip

    with pytest.raises(ToolCallConflictError) as raised:
        client.submit_many(calls)

    first, *accepted, last = raised.value.calls
    assert [call.result(PATIENCE).output["n"] for call in accepted] == list(range(1, 20))
    for refused in (first, last):
        with pytest.raises(ToolCallConflictError):
            refused.result(PATIENCE)


def test_slow_result_is_awaited_after_call_acceptance(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "GLANCE_SECONDS", 0.0)
    assert client.call("smith", "echo__args", {"n": 1}, timeout=PATIENCE).output == {"n": 1}


def test_conflicting_call_raises_and_repeated_call_keeps_first_result(client: Client) -> None:
    def call(n: int) -> ToolCallResult:
        fields: Any = {"turn_id": turn, "tool_call_id": "c"}
        return client.call("smith", "echo__args", {"n": n}, timeout=PATIENCE, **fields)

    turn = f"turn-{secrets.token_hex(6)}"
    first = call(1)
    with pytest.raises(ToolCallConflictError):
        call(2)
    assert call(1) == first


def test_call_whose_acceptance_is_not_heard_runs_once(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    glance, lost = ResultListener.glance, iter([True, False])
    client.call("smith", "echo__args", timeout=PATIENCE)
    connection = client._ledger._submissions._connection
    assert connection is not None

    def lose(listener: ResultListener, expected: Expected) -> None:
        glance(listener, expected)
        if next(lost):
            connection.disconnect()  # type: ignore[no-untyped-call]

    monkeypatch.setattr(results, "GLANCE_SECONDS", 2 * PATIENCE)
    monkeypatch.setattr(ResultListener, "glance", lose)
    result = client.call("smith", "echo__args", {"n": 3}, timeout=PATIENCE)
    assert list(lost) == []
    assert (result.output, result.meta.attempt) == ({"n": 3}, 1)


@pytest.fixture
def trips(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let one trip take three calls, and return how many each trip has taken."""
    taken: list[int] = []
    accept = client.submitter.accept

    def note(submissions: Sequence[Submission], producer: str, **fields: Any) -> Any:
        taken.append(len(submissions))
        return accept(submissions, producer, **fields)

    monkeypatch.setattr(client_connection, "MOST_SUBMITTED", 3)
    monkeypatch.setattr(client.submitter, "accept", note)
    return taken


def echoes(*numbers: int, **fields: Any) -> list[dict[str, Any]]:
    names = {"agentName": "smith", "toolName": "echo__args", "turnId": f"turn-{secrets.token_hex(6)}"}
    return [{**names, "toolCallId": f"call_{n}", "args": {"n": n}, **fields} for n in numbers]


def test_calls_beyond_one_trip_go_in_several(client: Client, trips: list[int]) -> None:
    calls = client.submit_many(iter(echoes(*range(8))))
    assert trips == [3, 3, 2]
    assert [call.result(PATIENCE).output["n"] for call in calls] == list(range(8))


@pytest.mark.parametrize("fault", [{"agentName": "nobody"}, {"args": {"text": "x" * 1_048_576}}])
def test_refused_last_call_prevents_all_trips(
    client: Client, trips: list[int], fault: dict[str, Any]
) -> None:
    with pytest.raises((AgentNotFoundError, PayloadTooLargeError)):
        client.submit_many([*echoes(*range(7)), *echoes(8, **fault)])
    with pytest.raises(TypeError):
        client.submit_many([*echoes(*range(7)), "not a call"])  # type: ignore[list-item]
    assert trips == []


def test_conflict_in_one_trip_leaves_all_handles(client: Client, trips: list[int]) -> None:
    calls = echoes(*range(8))
    client.submit_many(calls[4:5])[0].result(PATIENCE)
    calls[4] = {**calls[4], "args": {"n": "other"}}
    with pytest.raises(ToolCallConflictError) as raised:
        client.submit_many(calls)
    *before, refused, _, _, last = raised.value.calls
    assert [call.result(PATIENCE).output["n"] for call in (*before, last)] == [0, 1, 2, 3, 7]
    with pytest.raises(ToolCallConflictError):
        refused.result(PATIENCE)


def test_another_client_finds_call_and_its_result(client: Client, calls_stack: LocalStack) -> None:
    call = client.submit("smith", "echo__args", {"n": 1})
    with Client.connect(calls_stack.redis_url) as other:
        assert other.pending(call.id).result(PATIENCE).output == {"n": 1}
        assert other.record(call.id).outcome == "ok"
        assert call.id in {record.id for record in other.calls("smith")}


def test_client_without_bundle_knows_announced_agents(calls_stack: LocalStack) -> None:
    with Client.connect(calls_stack.redis_url) as other:
        assert {"smith", "apprentice"} <= set(other.agents())
        assert [item["name"] for item in other.catalog("apprentice")] == [
            "echo__args",
            "echo__context",
            "echo__strict",
        ]


def test_unknown_call_is_not_found(client: Client) -> None:
    with pytest.raises(CallNotFoundError, match="no-such-call"):
        client.pending("no-such-call")


def test_waiting_ends_and_call_goes_on(client: Client, tmp_path: Any) -> None:
    call = client.submit("smith", "meeting__async", {"place": str(tmp_path), "guests": 2})
    with pytest.raises(WaitTimeout, match=call.id):
        call.result(timeout=0.2)
    (tmp_path / "the-second-guest").touch()
    assert call.result(PATIENCE).status == "ok"


def test_async_client_awaits_its_calls(calls_stack: LocalStack) -> None:
    async def ask() -> list[Any]:
        async with await AsyncClient.connect(calls_stack.redis_url) as client:
            calls = [await client.submit("smith", "echo__args", {"n": n}) for n in range(5)]
            return [(await call).output["n"] for call in calls]

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
