"""Calls through a real Redis and a real worker."""

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from pydantic.alias_generators import to_camel
from redis import Redis

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.errors import (
    AgentNotFoundError,
    CallNotFoundError,
    PayloadTooLargeError,
    ToolCallConflictError,
    ToolNotInCatalogError,
    WaitTimeout,
)
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

PATIENCE = 30


def error_of(result: ToolCallResult) -> tuple[str, str]:
    assert result.status == "error"
    assert result.error is not None
    return result.error.code, result.error.message


@pytest.mark.requirement("result.tool-call-id", "result.tool-name", "result.output", "result.status")
def test_a_call_comes_back_with_its_output(client: Client) -> None:
    result = client.call("smith", "echo__args", {"n": 1}, tool_call_id="call_1", timeout=PATIENCE)
    assert (result.tool_call_id, result.tool_name, result.status) == ("call_1", "echo__args", "ok")
    assert result.output == {"n": 1}
    assert result.error is None


def test_a_result_says_who_ran_it_where_and_when(client: Client) -> None:
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
def test_json_that_looks_odd_reaches_the_handler_unchanged(client: Client, args: dict[str, Any]) -> None:
    assert client.call("smith", "echo__args", args, timeout=PATIENCE).output == args


@pytest.mark.requirement(
    "context.agent-name",
    "context.instance-key",
    "context.turn-id",
    "context.trace-id",
    "context.tool-call-id",
    "context.message",
    "context.workdir",
    "context.logger",
    "context.no-removed-interfaces",
)
def test_the_context_tells_the_handler_about_its_call(client: Client, workshop: LocalStack) -> None:
    result = client.call(
        "smith", "echo__context", instance_key="a/b", turn_id="turn-7", tool_call_id="c", timeout=PATIENCE
    )
    told = result.output
    assert (told["agentName"], told["instanceKey"], told["turnId"]) == ("smith", "a/b", "turn-7")
    assert (told["traceId"], told["toolCallId"]) == (result.meta.trace_id, "c")
    assert told["workdir"] == str(
        workshop.state_root / "workspaces" / "workshop" / "instances" / "a%2Fb" / "workspace"
    )
    assert not {"oauth", "swarm_bundle"} & set(told["fields"])


@pytest.mark.requirement("context.message.holds-the-call", "message.fields", "message.source")
def test_a_call_without_a_message_gets_one_that_holds_it(client: Client) -> None:
    told = client.call("smith", "echo__context", {"n": 1}, tool_call_id="c", timeout=PATIENCE).output
    message = told["message"]
    assert message["data"] == {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "c", "toolName": "echo__context", "input": {"n": 1}}],
    }
    assert message["source"] == {"type": "assistant", "stepId": told["turnId"]}
    assert {"id", "createdAt", "metadata"} <= set(message)


def test_a_given_message_reaches_the_handler(client: Client) -> None:
    message = {
        "id": "m1",
        "data": {"role": "assistant", "content": "hello"},
        "metadata": {"x": 1},
        "createdAt": "2026-01-01T00:00:00.000Z",
        "source": {"type": "assistant", "stepId": "s"},
    }
    told = client.call("smith", "echo__context", message=message, timeout=PATIENCE).output
    assert told["message"] == message


@pytest.mark.requirement("guard.catalog-is-the-limit", "guard.refuse-outside-catalog", "guard.refusal-form")
@pytest.mark.parametrize(
    ("agent", "tool"),
    [
        ("apprentice", "odd__raises"),
        ("smith", "no__such"),
        ("smith", "echo"),
        ("smith", ""),
        ("smith", "x" * 99),
    ],
)
def test_a_tool_outside_the_catalog_is_refused(client: Client, agent: str, tool: str) -> None:
    result = client.call(agent, tool, timeout=PATIENCE)
    assert result.error is not None
    assert result.error.to_wire() == {
        "code": "E_TOOL_NOT_IN_CATALOG",
        "name": "ToolNotInCatalogError",
        "message": f"Tool '{tool}' is not available in the current Tool Catalog.",
        "suggestion": ToolNotInCatalogError.suggestion,
        "helpUrl": "https://docs.goondan.ai/errors/E_TOOL_NOT_IN_CATALOG",
    }


def test_an_unknown_step_is_refused(client: Client) -> None:
    result = client.call("smith", "echo__args", step_id="step-1", timeout=PATIENCE)
    assert error_of(result) == ("E_TOOL_NOT_IN_CATALOG", "Step 'step-1' is unknown or has expired.")


@pytest.mark.requirement("handler.input-matches-parameters")
def test_every_fault_of_the_arguments_is_named_in_one_message(client: Client) -> None:
    result = client.call("smith", "echo__strict", {"count": 0, "txt": "x"}, timeout=PATIENCE)
    code, message = error_of(result)
    assert code == "E_TOOL_INVALID_ARGS"
    assert all(word in message for word in ("text", "count", "txt"))


@pytest.mark.parametrize("args", [[1], "text", 7, True])
def test_arguments_that_are_no_object_are_a_result(client: Client, args: Any) -> None:
    code, _ = error_of(client.call("smith", "echo__args", args, timeout=PATIENCE))
    assert code == "E_TOOL_INVALID_ARGS"


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize("args", [{"n": float("nan")}, {"t": "\ud800"}, {"o": {1}}, nested(10_000)])
def test_arguments_without_a_json_form_are_a_result(client: Client, args: Any) -> None:
    code, message = error_of(client.call("smith", "echo__args", args, timeout=PATIENCE))
    assert code == "E_TOOL_INVALID_ARGS"
    assert "not valid JSON" in message


def test_a_call_with_unprintable_names_is_a_result(client: Client) -> None:
    result = client.call("smith", "echo__\ud800", instance_key="\udfff", timeout=PATIENCE)
    assert error_of(result)[0] == "E_TOOL_INVALID_ARGS"


def test_arguments_over_the_limit_are_refused_before_there_is_a_call(client: Client) -> None:
    with pytest.raises(PayloadTooLargeError, match="5242"):
        client.submit("smith", "echo__args", {"text": "x" * (5 * 2**20)})


def test_an_unknown_agent_is_refused_with_a_guess(client: Client) -> None:
    with pytest.raises(AgentNotFoundError, match="did you mean 'smith'"):
        client.submit("smiht", "echo__args")


@pytest.mark.requirement("error.as-result", "error.code", "error.name", "error.message", "error.suggestion")
def test_what_a_handler_raises_is_the_error(client: Client) -> None:
    result = client.call("smith", "odd__raises", {"kind": "forge", "message": "cold"}, timeout=PATIENCE)
    assert result.error is not None
    assert result.error.to_wire() == {
        "code": "E_FORGE",
        "name": "ForgeError",
        "message": "cold",
        "suggestion": "Use more coal.",
        "helpUrl": "https://forge.example/coal",
    }


@pytest.mark.requirement("error.message-limit", "error.truncation")
def test_the_tools_error_message_limit_holds(client: Client) -> None:
    result = client.call("smith", "odd__raises", {"kind": "value", "message": "x" * 99}, timeout=PATIENCE)
    _, message = error_of(result)
    assert message == "x" * 25 + "... (truncated)"


@pytest.mark.parametrize("kind", ["interrupt", "generator", "memory"])
def test_no_exception_takes_the_worker_down(client: Client, kind: str) -> None:
    code, _ = error_of(client.call("smith", "odd__raises", {"kind": kind}, timeout=PATIENCE))
    assert code == "E_TOOL"
    assert client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("odd__not-json", "E_TOOL_BAD_OUTPUT"),
        ("odd__exits", "E_TOOL"),
        ("odd__missing", "E_TOOL_NOT_FOUND"),
    ],
)
@pytest.mark.requirement("handler.returns-json", "error.as-result")
def test_a_handler_that_misbehaves_is_a_result(client: Client, tool: str, code: str) -> None:
    assert error_of(client.call("smith", tool, timeout=PATIENCE))[0] == code


def test_a_handler_file_with_a_syntax_error_is_a_result(client: Client) -> None:
    code, message = error_of(client.call("smith", "broken__run", timeout=PATIENCE))
    assert code == "E_TOOL_NOT_FOUND"
    assert "broken.py:1: invalid syntax" in message


def test_a_handler_that_prints_a_million_lines_ends_well(client: Client) -> None:
    assert client.call("smith", "odd__prints", timeout=PATIENCE).output == "printed"


def test_a_task_of_a_handler_that_exits_leaves_the_event_loop_alone(client: Client, tmp_path: Any) -> None:
    code, _ = error_of(client.call("smith", "odd__exits-in-a-task", timeout=PATIENCE))
    assert code == "E_TOOL"
    args = {"place": str(tmp_path), "guests": 1}
    assert client.call("smith", "meeting__async", args, timeout=PATIENCE).status == "ok"


@pytest.mark.requirement("handler.sync-and-async", "handler.signature")
@pytest.mark.parametrize("tool", ["meeting__sync", "meeting__async"])
def test_eight_calls_run_at_the_same_time(client: Client, tmp_path: Any, tool: str) -> None:
    args = {"place": str(tmp_path), "guests": 8}
    calls = client.submit_many([{"agentName": "smith", "toolName": tool, "args": args}] * 8)
    assert all(call.result(PATIENCE).output["met"] for call in calls)


def test_more_calls_than_places_do_not_run_at_the_same_time(client: Client, tmp_path: Any) -> None:
    args = {"place": str(tmp_path), "guests": 9}
    calls = client.submit_many([{"agentName": "smith", "toolName": "meeting__async", "args": args}] * 9)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 8)
    statuses = sorted(call.status() for call in calls)
    (tmp_path / "the-ninth-guest").touch()
    assert statuses == ["queued", *["running"] * 8]
    assert all(call.result(PATIENCE).status == "ok" for call in calls)


def test_a_call_past_its_own_deadline_is_not_run(client: Client) -> None:
    late = {"agentName": "smith", "toolName": "echo__args", "deadline": "2020-01-01T00:00:00.000Z"}
    [call] = client.submit_many([late])
    assert error_of(call.result(PATIENCE))[0] == "E_TOOL_EXPIRED"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_seconds", 0),
        ("timeout_seconds", float("nan")),
        ("instance_key", 5),
        ("turn_id", ["t"]),
        ("message", {"id": "m"}),
        ("origin", "nowhere"),
    ],
)
def test_a_field_that_is_wrong_is_a_result(client: Client, field: str, value: Any) -> None:
    result = client.call("smith", "echo__args", timeout=PATIENCE, **{field: value})
    code, message = error_of(result)
    assert code == "E_TOOL_INVALID_ARGS"
    assert to_camel(field) in message


def test_the_same_identity_is_the_same_call(client: Client) -> None:
    again = {"tool_call_id": "call_1", "turn_id": "turn-same"}
    one = client.submit("smith", "echo__args", {"n": 1}, tool_call_id="call_1", turn_id="turn-same")
    other = client.submit("smith", "echo__args", {"n": 1}, tool_call_id="call_1", turn_id="turn-same")
    assert one.id == other.id
    assert one.result(PATIENCE) == other.result(PATIENCE)
    with pytest.raises(ToolCallConflictError):
        client.submit("smith", "echo__args", {"n": 2}, **again)  # type: ignore[arg-type]


def test_another_client_finds_the_call_and_its_result(client: Client, workshop: LocalStack) -> None:
    call = client.submit("smith", "echo__args", {"n": 1})
    with Client.connect(workshop.redis_url) as other:
        assert other.pending(call.id).result(PATIENCE).output == {"n": 1}
        assert other.record(call.id).outcome == "ok"
        assert call.id in {record.id for record in other.calls("smith")}


def test_a_client_without_the_bundle_knows_the_announced_agents(workshop: LocalStack) -> None:
    with Client.connect(workshop.redis_url) as other:
        assert {"smith", "apprentice"} <= set(other.agents())
        assert [item["name"] for item in other.catalog("apprentice")] == [
            "echo__args",
            "echo__context",
            "echo__strict",
        ]


def test_an_unknown_call_is_not_found(client: Client) -> None:
    with pytest.raises(CallNotFoundError, match="no-such-call"):
        client.pending("no-such-call")


def test_waiting_ends_and_the_call_goes_on(client: Client, tmp_path: Any) -> None:
    call = client.submit("smith", "meeting__async", {"place": str(tmp_path), "guests": 2})
    with pytest.raises(WaitTimeout, match=call.id):
        call.result(timeout=0.2)
    (tmp_path / "the-second-guest").touch()
    assert call.result(PATIENCE).status == "ok"


def test_an_async_client_awaits_its_calls(workshop: LocalStack) -> None:
    async def ask() -> list[Any]:
        async with await AsyncClient.connect(workshop.redis_url) as client:
            calls = [await client.submit("smith", "echo__args", {"n": n}) for n in range(5)]
            return [(await call).output["n"] for call in calls]

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]


def test_a_limit_cancels_an_async_handler(client: Client, tmp_path: Any) -> None:
    args = {"place": str(tmp_path), "guests": 2}
    result = client.call("smith", "meeting__async", args, timeout_seconds=0.2, timeout=PATIENCE)
    assert error_of(result) == ("E_TOOL_TIMEOUT", "The tool did not finish within 0.2 s.")


@pytest.fixture
def plain_celery(workshop: LocalStack) -> Iterator[Celery]:
    with Celery(broker=workshop.redis_url, backend=workshop.redis_url) as app:
        yield app
        gc.collect()  # an AsyncResult talks to Redis when it is collected


@pytest.mark.parametrize(
    "args", [{"n": 2**70}, {"__type__": "uuid", "__value__": "x"}, {"text": "😀\x00한글"}]
)
def test_a_plain_celery_producer_submits_and_reads(plain_celery: Celery, args: dict[str, Any]) -> None:
    call = {"toolName": "echo__strict", "args": {"text": json.dumps(args)}}
    sent = plain_celery.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.smith")
    result = sent.get(timeout=PATIENCE)
    assert json.loads(result["output"]["text"]) == args
    assert sent.state == "SUCCESS"


@pytest.mark.parametrize("args", [{"n": 2**70}, {"x": {"__type__": "no", "__value__": "x"}}, {"t": "\0😀"}])
def test_odd_json_from_plain_celery_reaches_the_handler(
    plain_celery: Celery, client: Client, args: dict[str, Any]
) -> None:
    call = {"agentName": "smith", "toolName": "echo__args", "args": args}
    sent = plain_celery.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.smith")
    assert client_result(client, sent.id).output == args


@pytest.mark.parametrize(
    ("kwargs", "code"),
    [
        ({}, "E_TOOL_INVALID_ARGS"),
        ({"call": None}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": 5}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"v": 99, "toolName": "echo__args"}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": "echo__args", "args": {"t": "\ud800"}}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": "echo__args", "args": {"t": "x" * 2**21}}}, "E_PAYLOAD_TOO_LARGE"),
        ({"call": {}}, "E_TOOL_NOT_IN_CATALOG"),
        ({"call": {"agentName": "apprentice", "toolName": "echo__args"}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": "echo__args", "timeoutSeconds": 1e300}}, "E_TOOL_INVALID_ARGS"),
    ],
)
def test_a_plain_message_that_holds_no_call_is_answered(
    plain_celery: Celery, client: Client, kwargs: dict[str, Any], code: str
) -> None:
    sent = plain_celery.send_task("goondan.tool_call", kwargs=kwargs, queue="agent.smith")
    assert error_of(client_result(client, sent.id))[0] == code


@pytest.mark.parametrize("body", ["no json", "[" * 50_000, '{"a": NaN}', "7", "[]", "[1,2]", '"text"'])
def test_a_message_that_cannot_be_read_is_answered(
    client: Client, workshop: LocalStack, plain_celery: Celery, body: str
) -> None:
    call_id = f"unreadable-{len(body)}"
    with plain_celery.connection() as connection:
        connection.Producer().publish(
            body,
            routing_key="agent.smith",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "goondan.tool_call", "id": call_id, "lang": "py"},
        )
    code, message = error_of(client_result(client, call_id))
    assert code == "E_TOOL_INVALID_ARGS"
    assert "cannot be read" in message


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"garbage",
        b"[]",
        b"{}",
        b'{"properties": 5, "headers": {}}',
        b'{"body": "", "properties": {"delivery_info": {}, "delivery_tag": "x"}, "headers": {}}',
        b'{"body": "[]", "properties": {"delivery_info": {}}, "headers": {"task": "goondan.tool_call"}}',
        b'{"body": "[]", "properties": {"delivery_info": {}}, "headers": {"task": "no.such", "id": "x"}}',
        b"\xff\xfe",
        b'{"body": "[[],{},{}]", "properties": {"delivery_info": {}}, "content-type": "application/json", '
        b'"content-encoding": "utf-8", "headers": {"task": "goondan.tool_call", "id": "\\ud800"}}',
    ],
)
def test_garbage_in_a_queue_is_dropped_and_the_worker_goes_on(
    client: Client, workshop: LocalStack, garbage: bytes
) -> None:
    with Redis.from_url(workshop.redis_url) as redis:
        redis.lpush("agent.smith", garbage)
        wait_until(lambda: redis.llen("agent.smith") == 0)
    assert client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"


def client_result(client: Client, call_id: str) -> ToolCallResult:
    """Wait for a call that another program has queued: its record stands when a worker has it."""

    def is_known() -> bool:
        try:
            client.record(call_id)
        except CallNotFoundError:
            return False
        return True

    wait_until(is_known)
    return client.pending(call_id).result(PATIENCE)


def test_nothing_stays_behind_in_the_broker(client: Client, workshop: LocalStack) -> None:
    client.call("smith", "echo__args", timeout=PATIENCE)
    with Redis.from_url(workshop.redis_url) as redis:
        wait_until(lambda: not redis.zcard("agent.in-flight.index") and not redis.hlen("agent.in-flight"))
        assert redis.llen("agent.smith") == 0
        assert redis.zcard("goondan:due") == 0
        assert redis.zcard("goondan:running:smith") == 0
