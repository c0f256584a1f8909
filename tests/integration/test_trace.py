"""The trace of calls that real workers have run."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.testing import LocalStack
from tests import celery_apps
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def env(calls_stack: LocalStack) -> dict[str, str]:
    """Know the broker and no bundle."""
    return environment(redis_url=calls_stack.redis_url)


@pytest.fixture
def plain_celery(calls_stack: LocalStack) -> Iterator[Celery]:
    with celery_apps.plain_celery(calls_stack.redis_url) as app:
        yield app


def caused_by(parent: ToolCall, parent_id: str, tool: str, agent: str = "smith", **args: Any) -> ToolCall:
    """Make a call that another one has caused, as agents do."""
    chain = {
        "trace_id": parent.trace_id,
        "correlation_id": parent.correlation_id,
        "parent_id": parent_id,
        "root_id": parent.root_id or parent_id,
        "parent_span_id": parent.span_id,
    }
    return new_call(agent, tool, args, chain)


def ran(client: Client, call: ToolCall) -> str:
    """Run a call to its end and return its id."""
    [pending] = client.submit_many([call])
    return pending.result(PATIENCE).meta.id


def chain(client: Client) -> tuple[ToolCall, dict[str, str]]:
    """Run a call and what it has caused; return it, and all ids by name."""
    first = new_call("smith", "echo__args", {}, {})
    ids = {"first": ran(client, first)}
    second = caused_by(first, ids["first"], "wait__seconds", seconds=0.2)
    ids["second"] = ran(client, second)
    ids["third"] = ran(client, caused_by(second, ids["second"], "echo__args", "apprentice"))
    ids["failed"] = ran(client, caused_by(first, ids["first"], "no__such"))
    return first, ids


def test_call_chain_is_traced_as_timed_tree(client: Client) -> None:
    first, ids = chain(client)

    trace = client.trace(first.correlation_id)
    [summary] = [one for one in client.traces(newer_than=PATIENCE) if one.trace_id == first.trace_id]

    assert (summary.id, summary.calls, summary.state) == (ids["first"], 4, "ok")
    assert [(node.id, node.depth, node.state) for node in trace.nodes] == [
        (ids["first"], 0, "ok"),
        (ids["second"], 1, "ok"),
        (ids["third"], 2, "ok"),
        (ids["failed"], 1, "error"),
    ]
    _, second, _, failed = trace.nodes
    assert second.running_seconds is not None
    assert 0.2 <= second.running_seconds < PATIENCE
    assert 0 <= second.waiting_seconds < PATIENCE
    assert second.worker in {worker.name for worker in client.workers()}
    assert failed.error is not None
    assert (failed.error.code, failed.running_seconds) == ("E_TOOL_NOT_IN_CATALOG", None)


def test_trace_command_draws_tree_for_any_id(client: Client, env: dict[str, str]) -> None:
    first, ids = chain(client)

    drawn = goondan("trace", first.correlation_id, env=env)
    by_beginning, by_id = (goondan("trace", ids["third"][:end], "--json", env=env) for end in (8, None))

    assert drawn.exit_code == 0
    assert [line.split("  ")[0] for line in drawn.stdout.splitlines()[2:7]] == [
        "smith@default echo__args",
        "├─ wait__seconds",
        "│",
        "└─ no__such",
        "",
    ]
    assert "E_TOOL_NOT_IN_CATALOG: Tool 'no__such' is not available" in drawn.stdout
    assert by_beginning.document == by_id.document
    assert [node["id"] for node in by_id.document["nodes"]] == list(ids.values())


def test_calls_of_one_correlation_id_share_trace(client: Client, plain_celery: Celery) -> None:
    order = f"주문 {uuid.uuid4()} " + "x" * 300
    submitted = client.submit("smith", "echo__args", correlation_id=order)
    wire = {"agentName": "smith", "toolName": "echo__args", "correlationId": order}
    sent = plain_celery.send_task("goondan.tool_call", kwargs={"call": wire}, queue="agent.smith")
    submitted.result(PATIENCE)
    sent.get(timeout=PATIENCE)

    assert {node.id for node in client.trace(order).nodes} == {submitted.id, sent.id}


def test_plain_message_with_traceparent_joins_senders_trace(client: Client, plain_celery: Celery) -> None:
    trace_id, span_id = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    wire = {"agentName": "smith", "toolName": "echo__args"}
    headers = {"traceparent": f"00-{trace_id}-{span_id}-01"}
    calls = [
        plain_celery.send_task(
            "goondan.tool_call", kwargs={"call": wire}, queue="agent.smith", headers=headers
        )
        for _ in range(2)
    ]
    results = [call.get(timeout=PATIENCE) for call in calls]

    assert {result["meta"]["traceId"] for result in results} == {trace_id}
    assert {node.id for node in client.trace(trace_id).nodes} == {call.id for call in calls}
    assert {client.record(call.id).call.parent_span_id for call in calls} == {span_id}


def test_call_that_stands_alone_has_trace_too(client: Client) -> None:
    result = client.call("smith", "echo__args", timeout=PATIENCE)

    for name in (result.meta.correlation_id, result.meta.id):
        assert [node.id for node in client.trace(name).nodes] == [result.meta.id]
        assert asyncio.run(AsyncClient(client).trace(name)) == client.trace(name)


def test_trace_shows_running_call(client: Client) -> None:
    call = client.submit("smith", "wait__seconds", {"seconds": 20}, correlation_id=f"c-{uuid.uuid4()}")
    correlation_id = client.record(call.id).call.correlation_id
    wait_until(lambda: client.trace(correlation_id).nodes[0].running_seconds)

    [node] = client.trace(correlation_id).nodes
    call.cancel()

    assert (node.state, node.finished_at) == ("running", None)


def test_unknown_trace_is_reported(client: Client, env: dict[str, str]) -> None:
    with pytest.raises(CallNotFoundError, match="No trace 'order-404'"):
        client.trace("order-404")
    done = goondan("trace", "order-404", env=env)

    assert done.exit_code == 2
    assert "No trace 'order-404'" in done.stderr
