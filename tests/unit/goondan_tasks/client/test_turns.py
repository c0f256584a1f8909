"""The calls that a producer's Turn makes of a model's reply."""

from typing import Any

import pytest

from goondan_tasks.client.turns import TurnScope
from goondan_tasks.contract.calls import CallDraft
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.history import StepRecord

REPLY = [{"id": f"c{number}", "name": "probe__add", "args": {"a": number}} for number in range(3)]


def drafts_of(reply: list[dict[str, Any]], **common: Any) -> list[CallDraft]:
    scope = TurnScope(None, "coder", "k", "t", "0" * 32, "task", {"user": "u"})  # type: ignore[arg-type]
    of_turn = {"agent_name": "coder", "instance_key": "k", "turn_id": "t", "trace_id": "0" * 32}
    record = StepRecord(id="step", index=0, catalog="", **of_turn)
    asked = scope.calls.of_step(record, ToolCatalog(()), reply, max_args_bytes=1000)
    return scope.drafts(asked, stepId="step", **common)


def test_calls_of_step_share_turn_but_not_spans() -> None:
    calls = [draft.call for draft in drafts_of(REPLY, timeoutSeconds=5)]

    assert [(call.tool_call_id, call.args["a"]) for call in calls] == [("c0", 0), ("c1", 1), ("c2", 2)]
    assert {(call.agent_name, call.step_id, call.timeout_seconds) for call in calls} == {("coder", "step", 5)}
    assert all(call.auth == {"user": "u"} and call.tool_name == "probe__add" for call in calls)
    assert len({call.span_id for call in calls}) == len(calls)


def test_repeated_model_id_is_kept_beside_unique_id() -> None:
    first, second = (draft.call for draft in drafts_of([REPLY[0], REPLY[0]]))

    assert (first.tool_call_id, first.model_call_id, first.shown_id) == ("c0", None, "c0")
    assert (second.tool_call_id, second.model_call_id, second.shown_id) == ("c0.2", "c0", "c0")


@pytest.mark.parametrize("timeout_seconds", [0, float("nan"), "soon"])
def test_wrong_step_field_is_each_calls_fault(timeout_seconds: Any) -> None:
    drafts = drafts_of(REPLY, timeoutSeconds=timeout_seconds)

    assert all(draft.fault.startswith("The call is not valid: timeoutSeconds") for draft in drafts)
    assert [draft.call.tool_call_id for draft in drafts] == ["c0", "c1", "c2"]
