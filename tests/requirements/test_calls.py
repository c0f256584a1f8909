"""Rules about a call from its name in the catalog to its result, shown without Redis."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import build_catalog, load_bundle
from goondan_tasks.contract.calls import draft_call
from workers.testing import run_tool

CALLS_BUNDLE = Path(__file__).parents[1] / "bundles/calls"


@pytest.mark.requirement("tool.name.verbatim")
def test_names_shown_to_provider_are_callable_unchanged() -> None:
    catalog = build_catalog(load_bundle(CALLS_BUNDLE), "apprentice")
    shown = [tool["function"]["name"] for tool in catalog.to_openai()]

    called = [run_tool(CALLS_BUNDLE, "apprentice", name, {"text": "hello"}).tool_name for name in shown]

    assert shown == ["echo__args", "echo__context", "echo__strict"]
    assert called == shown


@pytest.mark.requirement("call.fields")
def test_call_has_models_id_tool_and_arguments() -> None:
    result = run_tool(CALLS_BUNDLE, "smith", "echo__args", {"n": 1}, tool_call_id="call_7")
    refused = run_tool(CALLS_BUNDLE, "smith", "echo__args", ["no", "object"])

    assert (result.tool_call_id, result.tool_name, result.output) == ("call_7", "echo__args", {"n": 1})
    assert refused.error is not None
    assert refused.error.code == "E_TOOL_INVALID_ARGS"


@pytest.mark.requirement("call.arguments-spelling")
@pytest.mark.parametrize("spelling", ["args", "arguments", "input"])
def test_arguments_are_taken_in_spelling_of_every_age(spelling: str) -> None:
    call = draft_call({"agentName": "smith", "toolName": "echo__args", spelling: {"n": 1}}).call

    assert call.args == {"n": 1}


@pytest.mark.requirement("result.error")
def test_failed_call_has_only_error_good_only_output() -> None:
    good = run_tool(CALLS_BUNDLE, "smith", "echo__args", {"n": 1}).to_wire()
    failed = run_tool(CALLS_BUNDLE, "smith", "echo__strict", {}).to_wire()

    assert "error" not in good
    assert "output" not in failed
    assert failed["error"]["message"] == "'text' is required"


@pytest.mark.requirement("guard.refusal-is-a-result")
def test_refused_call_is_structured_result() -> None:
    refused = run_tool(CALLS_BUNDLE, "apprentice", "bash__exec", {"command": "true"}).to_wire()

    assert refused["status"] == "error"
    assert set(refused["error"]) == {"code", "name", "message", "suggestion", "helpUrl"}
    assert "startedAt" not in refused["meta"]
