"""Pausing and resuming agents and tools, with real workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import AgentNotFoundError, ToolNotInCatalogError
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew
from tests.integration.results import code_of
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def client(smithy: Crew) -> Iterator[Client]:
    client = smithy.stack.client
    yield client
    for pause in client.paused():
        client.resume(pause.agent, pause.tool)


def is_noticed(stack: LocalStack, *words: str) -> bool:
    """Return whether the log of a worker has a line with these words."""
    return any(
        all(word in line for word in words)
        for log in map(stack.log, stack.workers)
        for line in log.splitlines()
    )


def numbered(client: Client, count: int, tool: str = "echo__args") -> list[PendingCall]:
    return [client.submit("smith", tool, {"n": number}) for number in range(count)]


def states(client: Client, calls: list[PendingCall]) -> set[str]:
    return {client.record(call.id).state for call in calls}


def test_paused_agents_calls_wait_until_resumed(smithy: Crew, client: Client) -> None:
    smithy.muster(1)
    client.pause("smith", reason="the forge is cleaned", by="ann")
    wait_until(lambda: is_noticed(smithy.stack, "agent.paused", "the forge is cleaned"), PATIENCE)

    calls = numbered(client, 20)
    late = smithy.add()  # a worker that starts later leaves them, too
    [queue] = [row for row in client.queues() if row.agent == "smith"]

    assert (queue.backlog, queue.running, queue.workers) == (20, 0, 2)
    assert [pause.text for pause in queue.paused] == ["paused by ann: the forge is cleaned"]
    assert client.describe(calls[0].id).summary.startswith("paused by ann: the forge is cleaned; queued ")
    assert [status.state for status in client.agent_statuses() if status.record.name == "smith"] == ["paused"]
    assert states(client, calls) == {"queued"}
    assert late.poll() is None

    assert client.resume("smith") is True
    assert [call.result(PATIENCE).output for call in calls] == [{"n": number} for number in range(20)]
    assert client.resume("smith") is False


def test_running_calls_of_paused_agent_go_on(smithy: Crew, client: Client, tmp_path: Path) -> None:
    smithy.muster(1)
    call = client.submit("smith", "patient__waits", {"place": str(tmp_path)})
    wait_until((tmp_path / "began").exists, PATIENCE)

    client.pause("smith", reason="running goes on")
    wait_until(lambda: is_noticed(smithy.stack, "agent.paused", "running goes on"), PATIENCE)

    assert client.record(call.id).state == "running"
    call.cancel()
    assert code_of(call.result(PATIENCE)) == "E_TOOL_CANCELLED"


def test_cancelling_all_calls_empties_paused_agents_queue(smithy: Crew, client: Client) -> None:
    smithy.muster(1)
    client.pause("smith", reason="a purge")
    wait_until(lambda: is_noticed(smithy.stack, "agent.paused", "a purge"), PATIENCE)
    calls = numbered(client, 600)

    assert sorted(client.cancel_all("smith")) == sorted(call.id for call in calls)

    assert {code_of(call.result(PATIENCE)) for call in calls} == {"E_TOOL_CANCELLED"}
    [queue] = [row for row in client.queues() if row.agent == "smith"]
    assert (queue.backlog, queue.waiting_for_limit) == (0, 0)


def test_paused_tools_calls_wait_while_others_continue(smithy: Crew, client: Client, tmp_path: Path) -> None:
    smithy.muster(1)
    client.pause("smith", "echo__args", "its server is down", "ann")
    wait_until(lambda: is_noticed(smithy.stack, "agent.paused", "echo__args"), PATIENCE)

    calls = numbered(client, 250)
    other = client.submit("smith", "patient__waits", {"place": str(tmp_path)})
    wait_until((tmp_path / "began").exists, PATIENCE)
    wait_until(lambda: states(client, calls) == {"waiting"}, PATIENCE)

    assert client.describe(calls[0].id).summary.startswith("paused by ann: its server is down; queued ")
    other.cancel()
    calls.pop().cancel()
    smithy.muster(0)  # a restart changes nothing
    smithy.muster(1)
    wait_until(lambda: client.resume("smith", "echo__args"), PATIENCE)
    assert [call.result(PATIENCE).output for call in calls] == [{"n": n} for n in range(len(calls))]
    began = [client.record(call.id).claimed_at or 0 for call in calls]
    assert began[0] <= began[-1]


def test_deadline_ends_call_whose_tool_is_paused(smithy: Crew, client: Client) -> None:
    smithy.muster(1)
    client.pause("smith", "echo__args", "the deadline goes on", "ann")
    wait_until(lambda: is_noticed(smithy.stack, "agent.paused", "the deadline goes on"), PATIENCE)
    deadline = iso_time(wall_clock() + 3_000)

    wire = {"agentName": "smith", "toolName": "echo__args", "args": {}, "deadline": deadline}
    result = client.submit_many([wire])[0].result(PATIENCE)

    assert code_of(result) == "E_LIMIT"
    assert result.error is not None
    assert "echo__args of smith is paused by ann: the deadline goes on" in result.error.message


def test_unknown_agents_and_tools_cannot_be_paused(smithy: Crew, client: Client) -> None:
    smithy.muster(1)
    with pytest.raises(AgentNotFoundError, match="did you mean 'smith'"):
        client.pause("smyth")
    with pytest.raises(ToolNotInCatalogError) as refused:
        client.pause("smith", "echo__arg")
    assert refused.value.suggestion == "Did you mean 'echo__args'?"
    with pytest.raises(AgentNotFoundError):
        client.resume("smyth")
    assert client.paused() == []
