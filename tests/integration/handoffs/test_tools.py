"""An agent's own tools, through its own queue."""

from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import HandoffError
from tests.integration.handoffs.words import Words

PATIENCE = 60


def test_agent_calls_tool_of_its_own(client: Client) -> None:
    wanted: Words = {"do": "call", "tool": "messenger__say", "args": {"n": 1}}
    for agent in ("ann", "bob"):
        answer = client.request(agent, wanted, instance_key="own", event_id="e1", timeout=PATIENCE)
        result = answer.response
        assert (result["status"], result["toolName"]) == ("ok", "messenger__say")
        assert result["output"] == {"said": {"n": 1}, "agent": agent, "instance": "own", "turnId": "turn-e1"}
        assert result["meta"]["correlationId"] == answer.correlation_id


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_results_come_in_order_of_calls(client: Client, agent: str) -> None:
    calls = [
        ["messenger__say", 0],
        {"toolName": "messenger__say", "args": {"n": 1}},
        ["no__such", {}],
        *(["messenger__say", {"n": number}] for number in range(3, 20)),
    ]
    results = client.request(agent, {"do": "call-many", "calls": calls}, timeout=PATIENCE).response
    assert [result["status"] for result in results] == ["error", "ok", "error", *["ok"] * 17]
    assert [result["error"]["code"] for result in results if "error" in result] == [
        "E_TOOL_INVALID_ARGS",
        "E_TOOL_NOT_IN_CATALOG",
    ]
    assert [result["output"]["said"]["n"] for result in results if "output" in result] == [1, *range(3, 20)]


@pytest.mark.parametrize(
    ("agent", "tool"),
    [("cid", "messenger__say"), ("dan", "messenger__say"), ("bob", "bash__exec"), ("ann", "")],
)
def test_tool_outside_agents_catalog_is_refused(client: Client, agent: str, tool: str) -> None:
    result = client.request(agent, {"do": "call", "tool": tool}, timeout=PATIENCE).response
    assert result["error"]["code"] == "E_TOOL_NOT_IN_CATALOG"


@pytest.mark.parametrize("calls", [5, [5], [["a"]], [{"tool": "x"}], [["a", 1, 2]], {"a": 1}, "ab"])
@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_calls_that_are_none_are_named(client: Client, agent: str, calls: object) -> None:
    with pytest.raises(HandoffError) as raised:
        client.request(agent, {"do": "call-many", "calls": calls}, timeout=PATIENCE)
    assert raised.value.code in {"E_TOOL_INVALID_ARGS", "E_AGENT_FAILED"}


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_no_calls_have_no_results(client: Client, agent: str) -> None:
    assert client.request(agent, {"do": "call-many", "calls": []}, timeout=PATIENCE).response == []


@pytest.mark.requirement("context.runtime")
@pytest.mark.parametrize("tool", ["messenger__ask", "messenger__ask-async"])
def test_agents_tool_asks_another_agent(client: Client, tool: str) -> None:
    wanted = {"do": "call", "tool": tool, "args": {"of": "cid", "event": {"input": 7}}}
    result = client.request("bob", wanted, timeout=PATIENCE).response
    assert result["output"]["response"] == 7


def test_tool_that_is_tried_again_asks_again(client: Client, tmp_path: Path) -> None:
    asked: Words = {"of": "bob", "event": {"input": {"do": "fail-once", "file": str(tmp_path / "file")}}}
    result = client.call("ann", "messenger__ask-again", asked, timeout=PATIENCE)
    assert result.output is not None, result.error
    assert result.output["response"] == "the second time"
