"""Calls that no handler gets: outside the catalog, without a valid form, too large or too late."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    PayloadTooLargeError,
    ToolInputValidationError,
    ToolNotInCatalogError,
)
from goondan_tasks.contract.messages import ToolCallResult
from tests.integration.results import error_of

PATIENCE = 60


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
def test_tool_outside_catalog_is_refused(client: Client, agent: str, tool: str) -> None:
    result = client.call(agent, tool, timeout=PATIENCE)
    assert result.error is not None
    assert result.error.to_wire() == {
        "code": "E_TOOL_NOT_IN_CATALOG",
        "name": "ToolNotInCatalogError",
        "message": f"Tool '{tool}' is not available in the current Tool Catalog.",
        "suggestion": ToolNotInCatalogError.suggestion,
        "helpUrl": "https://docs.goondan.ai/errors/E_TOOL_NOT_IN_CATALOG",
    }


def test_unknown_step_is_refused(client: Client) -> None:
    result = client.call("smith", "echo__args", step_id="step-1", timeout=PATIENCE)
    assert error_of(result) == ("E_TOOL_NOT_IN_CATALOG", "Step 'step-1' is unknown or has expired.")


@pytest.mark.requirement("handler.input-matches-parameters")
def test_one_message_names_all_argument_faults(client: Client) -> None:
    result = client.call("smith", "echo__strict", {"count": 0, "txt": "x"}, timeout=PATIENCE)
    code, message = error_of(result)
    assert code == "E_TOOL_INVALID_ARGS"
    assert all(word in message for word in ("text", "count", "txt"))


@pytest.mark.parametrize("args", [[1], "text", 7, True])
def test_arguments_that_are_no_object_are_result(client: Client, args: Any) -> None:
    code, _ = error_of(client.call("smith", "echo__args", args, timeout=PATIENCE))
    assert code == "E_TOOL_INVALID_ARGS"


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize("args", [{"n": float("nan")}, {"t": "\ud800"}, {"o": {1}}, nested(10_000)])
def test_arguments_without_json_form_are_result(client: Client, args: Any) -> None:
    code, message = error_of(client.call("smith", "echo__args", args, timeout=PATIENCE))
    assert code == "E_TOOL_INVALID_ARGS"
    assert "not valid JSON" in message


def test_call_with_unprintable_names_is_result(client: Client) -> None:
    result = client.call("smith", "echo__\ud800", instance_key="\udfff", timeout=PATIENCE)
    assert error_of(result)[0] == "E_TOOL_INVALID_ARGS"


def test_oversized_arguments_are_refused_before_call_exists(client: Client) -> None:
    with pytest.raises(PayloadTooLargeError, match="5242"):
        client.submit("smith", "echo__args", {"text": "x" * (5 * 2**20)})


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"instance_key": "k" * 1025}, "instance key has 1025 characters; at most 1024"),
        ({"auth": {"token": "x" * 65_536}}, "`auth` takes 65548 bytes; at most 65536"),
        ({"origin": {"page": "é" * 40_000}}, "`origin` takes 80011 bytes; at most 65536"),
    ],
)
def test_oversized_context_is_refused_before_call_exists(
    client: Client, fields: dict[str, Any], part: str
) -> None:
    with pytest.raises(PayloadTooLargeError, match=part) as call:
        client.submit("smith", "echo__args", **fields)
    with pytest.raises(PayloadTooLargeError, match=part) as event:
        client.send("smith", "x", **fields)
    assert call.value.suggestion == event.value.suggestion != PayloadTooLargeError.suggestion


def test_every_method_refuses_empty_instance_key(client: Client) -> None:
    calls: list[Callable[[], object]] = [
        lambda: client.send("smith", "x", instance_key=""),
        lambda: client.request("smith", "x", instance_key=""),
        lambda: client.turn("smith", ""),
        lambda: client.receive("smith", "", timeout=0),
    ]
    for call in calls:
        with pytest.raises(ToolInputValidationError, match=r"instance(K| k)ey"):
            call()


@pytest.mark.requirement("handler.input-matches-parameters")
def test_handler_does_not_run_with_mismatched_arguments(client: Client) -> None:
    def call(args: dict[str, Any]) -> ToolCallResult:
        return client.call("smith", "bash__exec", args, instance_key="untouched", timeout=PATIENCE)

    def wrong() -> list[ToolCallResult]:
        return [
            call({"command": "touch wrong", **more}) for more in ({"timeoutMs": "soon"}, {"user": "root"})
        ]

    refused = wrong()
    seen = call({"command": "ls; touch ran"})
    refused += wrong()  # of an instance that the worker knows, whose calls take a shorter road
    after = call({"command": "ls"})

    assert [error_of(result)[0] for result in refused] == ["E_TOOL_INVALID_ARGS"] * 4
    assert [result.meta.started_at for result in refused] == [None] * 4
    assert (seen.output["stdout"], after.output["stdout"]) == ("", "ran\n")


def test_unknown_agent_is_refused_with_guess(client: Client) -> None:
    with pytest.raises(AgentNotFoundError, match="did you mean 'smith'"):
        client.submit("smiht", "echo__args")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timeout_seconds", 0),
        ("timeout_seconds", float("nan")),
        ("instance_key", 5),
        ("instance_key", ""),
        ("turn_id", ["t"]),
        ("message", {"id": "m"}),
        ("origin", "nowhere"),
    ],
)
def test_field_that_is_wrong_is_result(client: Client, field: str, value: Any) -> None:
    result = client.call("smith", "echo__args", timeout=PATIENCE, **{field: value})
    code, message = error_of(result)
    assert code == "E_TOOL_INVALID_ARGS"
    assert to_camel(field) in message


def test_call_past_its_own_deadline_is_not_run(client: Client) -> None:
    late = {"agentName": "smith", "toolName": "echo__args", "deadline": "2020-01-01T00:00:00.000Z"}
    [call] = client.submit_many([late])
    assert error_of(call.result(PATIENCE))[0] == "E_TOOL_EXPIRED"
