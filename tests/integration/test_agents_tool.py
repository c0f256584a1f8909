"""The built-in Tool ``agents`` and Extension ``timer``: a model reaches other agents, and itself later."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.results import error_of
from tests.waiting import wait_until
from workers.testing import run_tool

BUNDLE = Path(__file__).parents[1] / "bundles" / "agents-tool"


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(BUNDLE) as running:
        yield running


def call(stack: LocalStack, export: str, args: dict[str, Any], instance: str = "desk") -> ToolCallResult:
    return stack.client.call("operator", f"agents__{export}", args, instance_key=instance, timeout=30)


def heard(stack: LocalStack, instance: str) -> str | None:
    read = stack.client.call("operator", "file-system__read", {"path": "heard.txt"}, instance_key=instance)
    return None if read.error else read.output["content"]


@pytest.mark.requirement("handoff.built-in")
def test_tool_call_outputs_asked_agents_answer(stack: LocalStack) -> None:
    asked = call(stack, "request", {"target": "echo", "input": "hello", "metadata": {"n": 1}})

    output = asked.output
    assert output["response"] == {
        "heard": "hello",
        "type": "agent.request",
        "metadata": {"n": 1},
        "in": "desk",
    }
    assert (output["target"], output["accepted"], output["async"]) == ("echo", True, False)
    assert [node.kind for node in stack.client.trace(output["correlationId"]).nodes] == ["call", "request"]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ({"target": "echo", "input": "fail"}, "E_AGENT_FAILED", "told to fail"),
        ({"target": "ehco", "input": 1}, "E_AGENT_NOT_FOUND", "did you mean 'echo'"),
        ({"target": "stranger", "input": 1}, "E_AGENT_NOT_FOUND", "in the swarm"),
        ({"target": "operator", "input": 1}, "E_HANDOFF_CYCLE", "operator@desk -> operator@desk"),
        ({"target": "echo", "input": 1, "timeoutMs": 0}, "E_TOOL_INVALID_ARGS", "timeoutMs"),
        ({"target": "echo"}, "E_TOOL_INVALID_ARGS", "input"),
    ],
)
def test_failed_request_is_error_readable_by_model(
    stack: LocalStack, args: dict[str, Any], code: str, said: str
) -> None:
    error = call(stack, "request", args).error

    assert error is not None
    assert error.code == code
    assert said in error.message
    assert error.suggestion


def test_event_without_answer_is_handled(stack: LocalStack) -> None:
    sent = call(stack, "send", {"target": "echo", "input": "psst", "instanceKey": "ear"})

    assert (sent.output["target"], sent.output["accepted"]) == ("echo", True)
    wait_until(lambda: heard(stack, "ear") == "agent.send psst\n")


def test_instance_is_spawned_once_and_listed_with_owner(stack: LocalStack) -> None:
    args = {"target": "echo", "instanceKey": "booth"}
    first, second = call(stack, "spawn", args, "maker"), call(stack, "spawn", args, "maker")

    assert (first.output["spawned"], second.output["spawned"]) == (True, False)
    listed = call(stack, "list", {}, "maker").output["agents"]
    assert [(one["target"], one["instanceKey"], one["ownerAgent"]) for one in listed] == [
        ("echo", "booth", "operator")
    ]
    assert call(stack, "list", {}, "somebody-else").output["count"] == 0
    assert call(stack, "list", {"includeAll": True}, "somebody-else").output["count"] >= 1


@pytest.mark.requirement("runtime.spawn.definition-unchanged")
def test_spawn_leaves_agent_definitions_unchanged(stack: LocalStack) -> None:
    def definitions() -> list[Any]:
        known = {name: record.to_wire() for name, record in stack.client.agents().items()}
        catalogs = [stack.client.catalog(name) for name in sorted(known)]
        return [sorted(known), catalogs, call(stack, "catalog", {}).output, load_bundle(BUNDLE).agents]

    before = definitions()
    args = {"target": "echo", "instanceKey": "as-before", "cwd": "part"}
    assert call(stack, "spawn", args, "as-before").output["spawned"] is True
    assert definitions() == before


def test_catalog_has_only_agents_of_swarm(stack: LocalStack) -> None:
    assert call(stack, "catalog", {}).output == {
        "swarmName": "agents-tool",
        "entryAgent": "operator",
        "selfAgent": "operator",
        "availableAgents": ["operator", "echo"],
        "callableAgents": ["operator", "echo"],
        "availableCount": 2,
        "callableCount": 2,
    }


def test_no_other_agents_are_reachable_without_worker() -> None:
    error = run_tool(BUNDLE, "operator", "agents__request", {"target": "echo", "input": 1}).error

    assert error is not None
    assert error.message == "Agent runtime interface is not available in ToolContext.runtime"


def timer(stack: LocalStack, export: str, instance: str, **args: Any) -> ToolCallResult:
    return stack.client.call("echo", f"timer__{export}", args, instance_key=instance, timeout=30)


def test_timer_comes_as_event_of_its_own_instance(stack: LocalStack) -> None:
    set_timer = timer(stack, "schedule", "clock", text="tea", inSeconds=0.3).output

    wait_until(lambda: heard(stack, "clock") == "timer tea\n")

    assert timer(stack, "list", "clock").output == {"count": 0, "timers": []}
    assert timer(stack, "cancel", "clock", id=set_timer["id"]).error is not None


def test_only_own_instance_lists_and_cancels_timers(stack: LocalStack) -> None:
    late = timer(stack, "schedule", "desk", text="late", inSeconds=7_000).output
    soon = timer(stack, "schedule", "desk", text="soon", inSeconds=3_600).output
    listed = timer(stack, "list", "desk").output
    other = timer(stack, "list", "elsewhere").output
    code, message = error_of(timer(stack, "cancel", "elsewhere", id=soon["id"]))
    cancelled = timer(stack, "cancel", "desk", id=soon["id"]).output

    assert listed["timers"] == [{**soon, "text": "soon"}, {**late, "text": "late"}]
    assert (other["count"], cancelled["cancelled"]) == (0, True)
    assert (code, "has no timer" in message) == ("E_TOOL", True)
    assert [one["id"] for one in timer(stack, "list", "desk").output["timers"]] == [late["id"]]
    assert [one.id for one in stack.client.calls("echo", status="scheduled")] == [late["id"]]
    timer(stack, "cancel", "desk", id=late["id"])


def test_instance_timers_are_limited_by_its_agent(stack: LocalStack) -> None:
    made = [timer(stack, "schedule", "full", text="x", inSeconds=3_600) for _ in range(3)]

    code, message = error_of(made[2])
    for one in made[:2]:
        timer(stack, "cancel", "full", id=one.output["id"])

    assert (code, "has 2 timers" in message) == ("E_TOOL", True)
    assert timer(stack, "schedule", "full", text="x", inSeconds=0).error is None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({"text": "x"}, "one of the two"),
        ({"text": "x", "inSeconds": 1, "at": "2026-12-01T09:00Z"}, "one of the two"),
        ({"text": "x", "inSeconds": 7_201}, "may be 7,200 seconds ahead"),
        ({"text": "x", "at": "2999-12-01T09:00Z"}, "may be 7,200 seconds ahead"),
        ({"text": "x", "at": "tomorrow"}, "not an ISO 8601 time"),
        ({"text": "", "inSeconds": 1}, "text"),
        ({"text": "x", "inSeconds": -1}, "inSeconds"),
    ],
)
def test_wrong_timer_is_error_that_model_can_read(stack: LocalStack, args: dict[str, Any], told: str) -> None:
    code, message = error_of(timer(stack, "schedule", "wrong", **args))

    assert code == "E_TOOL_INVALID_ARGS"
    assert told in message
