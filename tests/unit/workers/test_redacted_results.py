"""Secrets of OAuth in what tools return and raise."""

from pathlib import Path

import pytest

from goondan_tasks.contract.catalog import CatalogItem
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import ResultMeta, ToolCallError, ToolCallResult
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.results import without_secrets
from workers.testing import run_tool
from workers.tools.dynamic_tools import dynamic_tool

CALLS_BUNDLE = Path(__file__).parents[2] / "bundles" / "calls"
TOKEN = "xoxb-4712-token-of-a-result"


@pytest.mark.requirement("oauth.secrets.never-shown")
def test_token_returned_or_raised_is_hidden(tmp_path: Path) -> None:
    KNOWN_SECRETS.add(TOKEN)
    args = {"note": [f"Bearer {TOKEN}"], TOKEN: 5, "link": "https://p.example/?state=s"}

    returned = run_tool(CALLS_BUNDLE, "smith", "echo__args", args, state_root=tmp_path)
    raised = run_tool(
        CALLS_BUNDLE,
        "smith",
        "odd__raises",
        {"kind": "value", "message": f"401: {TOKEN}"},
        state_root=tmp_path,
    )

    assert returned.output == {"note": ["Bearer ***"], "***": 5, "link": "https://p.example/?state=s"}
    assert raised.error is not None
    assert raised.error.message == "401: ***"
    assert TOKEN not in f"{returned.to_wire()} {raised.to_wire()}"


def test_error_tells_token_in_none_of_its_parts() -> None:
    KNOWN_SECRETS.add(TOKEN)
    error = type(TOKEN, (ValueError,), {"code": TOKEN, "suggestion": TOKEN, "help_url": TOKEN})(TOKEN)

    described = describe(error, help_url="https://docs.example/")

    assert described.to_wire() == dict.fromkeys(("code", "name", "message", "suggestion", "helpUrl"), "***")


META = ResultMeta(
    id="i", agent_name="a", instance_key="k", turn_id="t", trace_id="t", span_id="s", correlation_id="c"
)


def test_middleware_made_result_is_cleared_of_tokens() -> None:
    KNOWN_SECRETS.add(TOKEN)
    said = ToolCallResult(
        tool_call_id="call-1",
        tool_name="a__b",
        status="error",
        handle=TOKEN,
        error=ToolCallError(code="E_TOOL", name="Error", message=f"401 {TOKEN}"),
        meta=META,
    )

    shown = without_secrets(said)

    assert (shown.handle, shown.error and shown.error.message) == ("***", "401 ***")
    assert without_secrets(shown) is shown


def test_tool_registered_at_runtime_shows_no_token() -> None:
    KNOWN_SECRETS.add(TOKEN)
    item = {"name": "a__b", "description": TOKEN, "parameters": {"properties": {"x": {"default": TOKEN}}}}

    made = dynamic_tool(
        item, lambda ctx, input: input, None, extension="e", entry_path=Path("/b/e.py"), turn=("i", "t")
    )

    assert TOKEN not in str(made)
    assert CatalogItem.from_wire(made.item.to_wire()) == made.item
