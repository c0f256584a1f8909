"""Events as calls of the ledger, and back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.queues import DELEGATE_RESULT_TASK, DELEGATE_TASK, EVENT_TASK
from goondan_tasks.contract.calls import Run, draft_call, identity_of
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.events import (
    answer_to,
    call_fields,
    completed_event,
    completion_id,
    content_of,
    event_of,
    is_event,
    mailbox_name,
    mailbox_of,
    message_of,
    queue_of,
    task_of,
)
from goondan_tasks.contract.messages import AgentEvent, HandoffAnswer, IpcMessage, ToolCall, ToolCallResult
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL

TOOLS = {DELEGATE_TOOL: DELEGATE_TASK, DELEGATE_RESULT_TOOL: DELEGATE_RESULT_TASK, EVENT_TOOL: EVENT_TASK}

names = st.text(min_size=1, max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(), values, max_size=3)


@st.composite
def events(draw: st.DrawFn) -> ToolCall:
    """Return any event in the ledger."""
    event_id = draw(names)
    return ToolCall(
        tool_call_id=event_id,
        tool_name=draw(st.sampled_from(sorted(TOOLS))),
        agent_name="coder",
        instance_key=draw(names),
        turn_id=draw(names),
        trace_id="0" * 32,
        span_id="1" * 16,
        correlation_id=draw(names),
        auth=draw(st.none() | objects),
        origin=draw(st.none() | objects),
        call_chain=tuple(draw(st.lists(names, max_size=3))),
        waiting=draw(st.none() | st.integers(0, 3)),
        timeout_seconds=draw(st.none() | st.floats(0.001, 1000)),
        deadline=draw(st.none() | st.just("2026-01-01T00:00:00.000Z")),
        parent_id=draw(st.none() | names),
        root_id=draw(st.none() | names),
        args={
            "from": draw(names),
            "fromInstanceKey": draw(names),
            "payload": {"input": draw(values), "id": event_id, "eventId": event_id},
            "awaited": draw(st.booleans()),
        },
    )


def of_wire(message: IpcMessage) -> ToolCall:
    """Read a message as a worker does that finds it on a queue."""
    wire = json.loads(json.dumps(message.to_wire()))
    return draft_call(call_fields(IpcMessage.from_wire(wire))).call


@given(event=events())
def test_event_survives_its_message_unchanged(event: ToolCall) -> None:
    assert of_wire(message_of(event)) == event


@given(event=events())
def test_message_of_event_has_target_chain_and_task(event: ToolCall) -> None:
    message = message_of(event)
    assert (message.to, message.to_instance_key) == (event.agent_name, event.instance_key)
    assert (message.call_chain, message.waiting) == (event.call_chain, event.waiting)
    assert (is_event(event), queue_of(event)) == (True, "agent.coder.events")
    assert task_of(event) == TOOLS[event.tool_name]


@given(first=st.text(), second=st.text())
def test_instances_share_no_mailbox(first: str, second: str) -> None:
    assert (mailbox_name("a", first) == mailbox_name("a", second)) == (first == second)
    assert mailbox_name("a", first).partition("@")[0] == "a"
    assert not set(mailbox_name("a", first)) & set(" /*\n:")


def test_lone_surrogate_has_mailbox_too() -> None:
    assert mailbox_name("a", "\ud800").isascii()


@given(event=events(), at=st.text())
def test_repeated_event_may_differ_in_time_only(event: ToolCall, at: str) -> None:
    payload = event.args["payload"]
    later = event.model_copy(update={"args": {**event.args, "payload": {**payload, "createdAt": at}}})
    other = event.model_copy(update={"args": {**event.args, "payload": {**payload, "extra": at}}})
    assert content_of(event) == content_of(later) != content_of(other)


def a_request(**fields: Any) -> ToolCall:
    wire = {
        "toolCallId": "e1",
        "toolName": DELEGATE_TOOL,
        "agentName": "coder",
        "instanceKey": "i",
        "turnId": "turn-e1",
        "callChain": ["planner@j"],
        "correlationId": "c1",
        "auth": {"t": 1},
        "args": {
            "from": "planner",
            "fromInstanceKey": "j",
            "payload": {"id": "e1", "type": "task"},
            "awaited": False,
        },
        **fields,
    }
    return draft_call(wire).call


def ended(call: ToolCall, output: Any = None) -> ToolCallResult:
    return Run("11111111-2222-3333-4444-555555555555", call, "w1", 1, 0, lambda: 0.0).ok(output, 0.0)


def test_answer_goes_back_where_question_came_from() -> None:
    call = a_request()
    answer = answer_to(call, ended(call, {"n": None}))
    assert answer is not None
    assert (answer.agent_name, answer.instance_key, answer.tool_name) == (
        "planner",
        "j",
        DELEGATE_RESULT_TOOL,
    )
    assert (answer.correlation_id, answer.trace_id, answer.auth) == ("c1", call.trace_id, {"t": 1})
    assert (answer.call_chain, answer.waiting) == ((), 0)
    assert answer.args["payload"]["response"] == {"n": None}
    event = event_of(of_wire(message_of(answer)), 0.0)
    assert (event.type, event.input, event.source.name) == ("response", {"n": None}, "coder")


@pytest.mark.parametrize("asker", ["client", "", "Upper", "a/b", "..", "x" * 64, None])
def test_asker_that_is_not_agent_gets_no_answer(asker: Any) -> None:
    call = a_request(args={"from": asker, "payload": {}})
    assert answer_to(call, ended(call)) is None


@pytest.mark.parametrize("tool", [EVENT_TOOL, DELEGATE_RESULT_TOOL])
def test_only_request_is_answered(tool: str) -> None:
    call = a_request(toolName=tool)
    assert answer_to(call, ended(call)) is None


@given(
    fields=st.dictionaries(
        st.sampled_from([*HandoffAnswer.model_fields, "eventId", "answeredAt", "status"]), values
    )
)
def test_answer_of_any_form_is_event_or_refused(fields: dict[str, Any]) -> None:
    call = a_request(toolName=DELEGATE_RESULT_TOOL, args={"from": "coder", "payload": fields})
    try:
        event = event_of(call, 0.0)
    except ToolInputValidationError:
        return
    assert event.type in {"response", "error_response"}


@given(
    fields=st.dictionaries(st.sampled_from(["id", "type", "source", "input", "metadata", "replyTo"]), values)
)
def test_event_of_any_form_is_one_or_refused(fields: dict[str, Any]) -> None:
    call = a_request(args={"from": "planner", "payload": fields})
    try:
        event = event_of(call, 0.0)
    except ToolInputValidationError:
        return
    assert (event.instance_key, event.trace_id, event.auth) == ("i", call.trace_id, {"t": 1})
    assert AgentEvent.model_validate(event.to_wire()) == event


def test_mailbox_is_that_of_instance() -> None:
    assert mailbox_of(a_request(instanceKey="a/b@c")) == "coder@a%2Fb%40c"


def test_id_of_completion_event_is_known_beforehand() -> None:
    run = Run(
        "c-1", draft_call({"agentName": "coder", "toolName": "jobs__begin"}).call, "w", 1, 0, lambda: 0.0
    )
    event = completed_event(run.call, run.ok(None, 0.0))

    assert completion_id(run.call, "c-1") == identity_of(event)
