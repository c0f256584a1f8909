"""What handlers of the older version are told (002 §4.3, §4.4, §10)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import Message
from tests.unit.workers.v1.gallery import AGENT, Gallery, gallery
from workers.tools.dynamic_tools import dynamic_tool

AUTH = {"subjects": {"user": "slack:user:T1:U1"}}
ORIGIN = {"connector": "slack-main", "channel": "C1"}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Gallery]:
    with gallery(tmp_path) as running:
        yield running


@pytest.mark.requirement("v1.tool-context", "v1.turn")
@pytest.mark.parametrize("tool", ["look.around", "look.ahead"])
def test_any_handler_sees_its_agent_turn_and_origin(here: Gallery, tool: str) -> None:
    result = here.call(tool, {}, instance_key="issue-42", turn_id="t1", auth=AUTH, origin=ORIGIN)
    seen, meta = result.output, result.meta

    assert seen["instance"] == {"id": "default-issue-42", "key": "issue-42", "swarmName": "default"}
    assert (seen["swarm"], seen["agent"], seen["modelRef"]) == ("default", AGENT, "any")
    assert Path(seen["workdir"]).is_dir()
    assert seen["turn"]["id"] == seen["step"]["turn_id"] == "t1"
    assert (seen["turn"]["agentName"], seen["turn"]["instanceId"]) == (AGENT, "default-issue-42")
    assert (seen["turn"]["auth"], seen["turn"]["origin"]) == (AUTH, ORIGIN)
    assert seen["turn"]["metadata"] == {"traceId": meta.trace_id, "correlationId": meta.correlation_id}


def test_handler_may_hear_its_own_event_once(here: Gallery) -> None:
    assert here.call("look.around").output["heard"] == [{"by": "looker"}]


def test_listeners_of_handler_end_with_its_run(here: Gallery) -> None:
    first, second = (here.call("look.around").output["everHeard"] for _ in range(2))
    assert second == first + 1


def test_handlers_logger_takes_values_beside_its_text(here: Gallery) -> None:
    with capture_logs() as logs:
        here.call("look.around", {"at": 1}, tool_call_id="c1")
    [line] = [line for line in logs if line["event"] == "looking"]
    assert (line["values"], line["tool_call_id"]) == ([{"at": 1}, 5], "c1")


def test_older_handler_may_use_features_of_current_handlers(here: Gallery) -> None:
    seen = here.call("look.out", {}, tool_call_id="c1").output

    assert seen["id"] == "c1"
    assert Path(seen["pwd"]).is_absolute()
    assert (seen["runtime"], seen["cancelled"]) == (False, False)
    assert (seen["async"]["handle"], seen["async"]["output"]) == ("job-1", {"half": "done"})


def test_current_tool_in_agent_keeps_own_context(here: Gallery) -> None:
    assert here.call("kettle__boil").output == {"oauth": False, "swarmBundle": False, "at": AGENT}


@pytest.mark.requirement("v1.catalog-item")
def test_catalog_tells_where_each_tool_comes_from(here: Gallery) -> None:
    item = {"name": "weather__get", "source": {"type": "extension", "name": "weather"}}
    added = dynamic_tool(item, lambda ctx, input: None, None, extension="weather", entry_path=Path("w.py"))
    here.registry.dynamic.add(AGENT, added)

    seen = here.call("look.around").output

    config = {"type": "config", "name": "calculator"}
    assert seen["catalog"]["calc.add"] == {"tool": "calculator", "export": "calc.add", "source": config}
    assert seen["catalog"]["kettle__boil"]["export"] == "boil"
    assert seen["catalog"]["weather__get"] == {"tool": None, "export": None, "source": item["source"]}
    assert seen["dynamicTools"] == ["weather__get"]


@pytest.mark.requirement("v1.turn")
def test_turn_has_its_kept_messages_and_results(here: Gallery) -> None:
    first = here.step(0, {"role": "user", "content": "What is 1 + 2?"})
    added = new_call(AGENT, "calc.add", {"a": 1, "b": 2}, of_turn(first.id, "c1"))
    burst = new_call(AGENT, "kettle__burst", {}, of_turn(first.id, "c2"))
    here.keep(first, (added, here.run(added)), (burst, here.run(burst)))
    second = here.step(1, {"role": "tool", "tool_call_id": "c1", "content": "3"})

    turn = here.run(new_call(AGENT, "look.around", {"at": 1}, of_turn(second.id, "c3"))).output["turn"]

    error = {"message": "too hot", "name": "RuntimeError", "code": "E_TOOL"}
    output = {"result": 3, "expression": "1 + 2 = 3"}
    assert turn["messages"] == [
        {"role": "user", "content": "What is 1 + 2?"},
        asked(("c1", "calc.add", {"a": 1, "b": 2}), ("c2", "kettle__burst", {})),
        {"role": "tool", "toolCallId": "c1", "toolName": "calc.add", "output": output},
        {
            "role": "tool",
            "toolCallId": "c2",
            "toolName": "kettle__burst",
            "output": {"status": "error", "error": error},
        },
        asked(("c3", "look.around", {"at": 1})),
    ]
    assert turn["toolResults"] == {
        "c1": {"status": "ok", "output": output, "handle": None, "error": None},
        "c2": {"status": "error", "output": None, "handle": None, "error": error},
    }


@pytest.mark.requirement("v1.step")
def test_step_has_index_models_message_and_ongoing_calls(here: Gallery) -> None:
    step = here.step(0)
    done, going_on = (new_call(AGENT, "calc.add", {"a": 1, "b": 1}, of_turn(step.id, name)) for name in "ab")
    here.keep(step, (done, here.run(done)), (going_on, None))
    content = [
        {"type": "text", "text": "I look."},
        {"type": "tool-call", "toolCallId": "c", "toolName": "look.ahead", "input": {}},
    ]
    message = Message(
        id="m1", data={"role": "assistant", "content": content}, created_at="", source={"type": "assistant"}
    )

    call = new_call(AGENT, "look.ahead", {}, {**of_turn(step.id, "c"), "message": message})
    seen = here.run(call).output["step"]

    own = {"id": "c", "name": "look.ahead", "arguments": {}}
    said = {"role": "assistant", "content": "I look.", "toolCalls": [own]}
    other = {"id": "b", "name": "calc.add", "arguments": {"a": 1, "b": 1}}
    assert (seen["id"], seen["index"], seen["turn_id"]) == (step.id, 0, "t1")
    assert seen["llm_result"] == {"message": said}
    assert seen["pending_tool_calls"] == [other, own]


@pytest.mark.requirement("v1.step", "v1.turn")
@pytest.mark.parametrize("begins", ["before the others", "after the others"])
def test_each_call_sees_its_answers_calls_whenever_begun(here: Gallery, begins: str) -> None:
    step = here.step(0)
    said = {"role": "assistant", "content": "I add.", "toolCalls": [
        {"id": name, "name": "look.ahead", "arguments": {}} for name in "abc"
    ]}  # fmt: skip
    message = Message(id="m1", data=said, created_at="", source={"type": "assistant", "stepId": step.id})
    calls = [
        new_call(AGENT, "look.ahead", {}, {**of_turn(step.id, name), "message": message}) for name in "abc"
    ]
    if begins == "after the others":
        here.keep(step, *((call, here.run(call)) for call in calls))

    seen = [here.run(call).output for call in calls]

    for one in seen:
        assert one["step"]["llm_result"] == {"message": said}
        assert one["step"]["pending_tool_calls"] == said["toolCalls"]
        assert [told for told in one["turn"]["messages"] if told["role"] == "assistant"] == [said]


@pytest.mark.requirement("v1.turn", "result.tool-call-id")
def test_turn_messages_restore_models_own_call_ids(here: Gallery) -> None:
    first, second = (
        here.step(0),
        here.step(1, message={"role": "tool", "tool_call_id": "call_1", "content": "2"}),
    )
    args = {"a": 1, "b": 1}
    again = {
        "step_id": second.id,
        "tool_call_id": "call_1.step-1",
        "model_call_id": "call_1",
        "turn_id": "t1",
    }
    before, after = (
        new_call(AGENT, "calc.add", args, of_turn(first.id, "call_1")),
        new_call(AGENT, "calc.add", args, again),
    )
    here.keep(first, (before, here.run(before)))
    here.keep(second, (after, here.run(after)))

    now = here.run(new_call(AGENT, "look.ahead", {}, of_turn(second.id, "now"))).output

    told = [
        (one["role"], one.get("toolCallId") or [call["id"] for call in one["toolCalls"]])
        for one in now["turn"]["messages"]
    ]
    assert told.count(("assistant", ["call_1"])) == 2
    assert told[-1] == ("assistant", ["now"])


@pytest.mark.requirement("v1.error-in-output")
def test_error_also_stands_in_older_tools_output(here: Gallery) -> None:
    failed, of_today = here.call("look.hard"), here.call("kettle__burst")

    assert failed.error is not None
    assert failed.output == {
        "status": "error",
        "error": {
            "message": "요청 실패: 채널을 찾을 수 없습니다 (channel_not_found)",
            "name": "SlackApiError",
            "code": "E_CHANNEL_NOT_FOUND",
        },
    }
    assert (of_today.status, of_today.output) == ("error", None)


@pytest.mark.requirement("v1.error-in-output")
def test_uncatalogued_dotted_names_error_is_also_in_output(here: Gallery) -> None:
    dotted, of_today, bare = (here.call(name) for name in ("look.nowhere", "look__nowhere", "nowhere"))

    assert dotted.output["error"]["code"] == "E_TOOL_NOT_IN_CATALOG"
    assert (of_today.output, bare.output) == (None, None)


def asked(*calls: tuple[str, str, Any]) -> dict[str, Any]:
    told = [{"id": call_id, "name": name, "arguments": args} for call_id, name, args in calls]
    return {"role": "assistant", "toolCalls": told}


def of_turn(step_id: str, call_id: str) -> Any:
    return {"turn_id": "t1", "step_id": step_id, "tool_call_id": call_id}
