"""Tool calls of an agent, as they are handed to the ledger."""

from typing import Any

import pytest

from goondan_tasks.authoring.handoff import Asker, RepeatableIds
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import ToolInputValidationError
from workers.agents.call_services import BlockingToolCaller

EVENT = new_call("ann", "goondan__event", {}, {"instance_key": "i", "turn_id": "turn-1"})


def tools() -> BlockingToolCaller:
    any_: Any = None
    return BlockingToolCaller(any_, Asker.of("id", EVENT, RepeatableIds("run")), any_, any_)


def test_turn_goes_on_in_its_calls() -> None:
    call = tools().new_call("bash__exec", {"command": "ls"}, 5)
    assert (call.agent_name, call.instance_key, call.turn_id) == ("ann", "i", "turn-1")
    assert (call.parent_id, call.trace_id, call.timeout_seconds) == ("id", EVENT.trace_id, 5)


@pytest.mark.parametrize(
    ("tool", "timeout", "told"),
    [
        ("bash__exec", -1, "timeout_seconds: must be above 0"),
        ("bash__exec", float("nan"), "timeout_seconds"),
        ("bash__exec", "soon", "timeout_seconds: must be a number"),
        (5, None, "tool_name: must be text"),
    ],
)
def test_invalid_call_is_refused_with_reason(tool: Any, timeout: Any, told: str) -> None:
    with pytest.raises(ToolInputValidationError, match=rf"^The call is not valid: {told}"):
        tools().new_call(tool, {}, timeout)
