"""Secrets of OAuth in what tools return and raise."""

from pathlib import Path

import pytest

from goondan_tasks.redaction import KNOWN_SECRETS
from workers.testing import run_tool

WORKSHOP = Path(__file__).parents[2] / "bundles" / "workshop"
TOKEN = "xoxb-4712-token-of-a-result"


@pytest.mark.requirement("oauth.secrets.never-shown")
def test_a_token_that_a_tool_returns_or_raises_is_in_no_result(tmp_path: Path) -> None:
    KNOWN_SECRETS.add(TOKEN)
    args = {"note": [f"Bearer {TOKEN}"], TOKEN: 5, "link": "https://p.example/?state=s"}

    returned = run_tool(WORKSHOP, "smith", "echo__args", args, state_root=tmp_path)
    raised = run_tool(
        WORKSHOP, "smith", "odd__raises", {"kind": "value", "message": f"401: {TOKEN}"}, state_root=tmp_path
    )

    assert returned.output == {"note": ["Bearer ***"], "***": 5, "link": "https://p.example/?state=s"}
    assert raised.error is not None
    assert raised.error.message == "401: ***"
    assert TOKEN not in f"{returned.to_wire()} {raised.to_wire()}"
