"""What handlers do to their call and their worker: they raise, misbehave, last, and run side by side."""

import secrets
from typing import Any

import pytest

from goondan_tasks.client import Client
from tests.integration.results import error_of
from tests.waiting import wait_until

PATIENCE = 60


@pytest.mark.requirement("error.as-result", "error.code", "error.name", "error.message", "error.suggestion")
def test_exception_of_handler_is_error_of_result(client: Client) -> None:
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
def test_tools_error_message_limit_holds(client: Client) -> None:
    result = client.call("smith", "odd__raises", {"kind": "value", "message": "x" * 99}, timeout=PATIENCE)
    _, message = error_of(result)
    assert message == "x" * 25 + "... (truncated)"


@pytest.mark.requirement(
    "error.as-result",
    "error.message-limit",
    "error.truncation",
    "handler.input-matches-parameters",
    "handler.returns-json",
    "result.output",
)
@pytest.mark.parametrize(
    ("tool", "args", "outcome"),
    [
        ("echo__args", {"n": None}, "ok"),
        ("echo__strict", {"count": 0}, "E_TOOL_INVALID_ARGS"),
        ("odd__raises", {"kind": "forge", "message": "x" * 99}, "E_FORGE"),
        ("odd__not-json", {}, "E_TOOL_BAD_OUTPUT"),
        ("odd__exits", {}, "E_TOOL"),
    ],
)
def test_call_outcome_is_same_in_new_and_known_instance(
    client: Client, tool: str, args: dict[str, Any], outcome: str
) -> None:
    """Calls of plain tools in an instance that the worker knows are run on a shorter road."""
    instance = f"roads-{secrets.token_hex(6)}"

    def call(turn: str) -> dict[str, Any]:
        fields: Any = {"instance_key": instance, "turn_id": turn, "tool_call_id": "c1"}
        told = client.call("smith", tool, args, timeout=PATIENCE, **fields).to_wire()
        return {name: value for name, value in told.items() if name != "meta"}

    first = call("t1")
    assert client.call("smith", "echo__args", instance_key=instance, timeout=PATIENCE).status == "ok"

    assert outcome in (first["status"], first.get("error", {}).get("code"))
    assert call("t2") == first


@pytest.mark.parametrize("kind", ["interrupt", "generator", "memory"])
def test_no_exception_takes_worker_down(client: Client, kind: str) -> None:
    code, _ = error_of(client.call("smith", "odd__raises", {"kind": kind}, timeout=PATIENCE))
    assert code == "E_TOOL"
    assert client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ("odd__exits", "E_TOOL"),
        ("odd__missing", "E_TOOL_NOT_FOUND"),
    ],
)
@pytest.mark.requirement("error.as-result")
def test_handler_that_misbehaves_is_result(client: Client, tool: str, code: str) -> None:
    assert error_of(client.call("smith", tool, timeout=PATIENCE))[0] == code


def test_handler_file_with_syntax_error_is_result(client: Client) -> None:
    code, message = error_of(client.call("smith", "broken__run", timeout=PATIENCE))
    assert code == "E_TOOL_NOT_FOUND"
    assert "broken.py:1: invalid syntax" in message


def test_handler_that_prints_hundred_thousand_lines_ends_well(client: Client) -> None:
    assert client.call("smith", "odd__prints", timeout=PATIENCE).output == "printed"


def test_task_of_exiting_handler_spares_event_loop(client: Client, tmp_path: Any) -> None:
    code, _ = error_of(client.call("smith", "odd__exits-in-a-task", timeout=PATIENCE))
    assert code == "E_TOOL"
    args = {"place": str(tmp_path), "guests": 1}
    assert client.call("smith", "meeting__async", args, timeout=PATIENCE).status == "ok"


@pytest.mark.requirement("handler.sync-and-async", "handler.signature")
@pytest.mark.parametrize("tool", ["meeting__sync", "meeting__async"])
def test_eight_calls_run_at_same_time(client: Client, tmp_path: Any, tool: str) -> None:
    args = {"place": str(tmp_path), "guests": 8}
    calls = client.submit_many([{"agentName": "smith", "toolName": tool, "args": args}] * 8)
    assert all(call.result(PATIENCE).output["met"] for call in calls)


def test_calls_beyond_slots_do_not_run_concurrently(client: Client, tmp_path: Any) -> None:
    args = {"place": str(tmp_path), "guests": 9}
    calls = client.submit_many([{"agentName": "smith", "toolName": "meeting__async", "args": args}] * 9)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 8)
    statuses = sorted(call.status() for call in calls)
    (tmp_path / "the-ninth-guest").touch()
    assert statuses == ["queued", *["running"] * 8]
    assert all(call.result(PATIENCE).status == "ok" for call in calls)
