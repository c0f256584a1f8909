"""The calls of a Step: ids, refusals, and the order of answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog, ToolSource
from goondan_tasks.errors import ToolInputValidationError
from goondan_tasks.messages import JsonObject, Message, ResultMeta, ToolCallResult
from goondan_tasks.names import call_identity
from goondan_tasks.steps.llm_messages import message_fault
from goondan_tasks.steps.record import StepRecord
from goondan_tasks.steps.step_calls import StepCall, StepCallResult, TurnCalls, in_order, opening_id, refused

CATALOG = ToolCatalog(
    (CatalogItem(name="legacy.tool.exec", source=ToolSource(type="config", name="legacy")),)
)


def step(index: int) -> StepRecord:
    return StepRecord(
        id=call_identity("coder", "k", "t", f"step-{index}"),
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="0" * 32,
        index=index,
        catalog="digest",
    )


def ids(calls: TurnCalls, index: int, *raw: Any) -> list[str]:
    read = calls.of_step(step(index), CATALOG, raw, max_args_bytes=1000)
    return [one.tool_call_id for one in read]


def answer(call: StepCall, output: Any) -> StepCallResult:
    meta = ResultMeta(
        id="id",
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="",
        span_id="",
        correlation_id="",
    )
    result = ToolCallResult(
        tool_call_id=call.tool_call_id, tool_name=call.tool_name, status="ok", output=output, meta=meta
    )
    return call.answered(result)


def test_arguments_of_a_union_that_the_model_was_shown_below_one_property_are_the_tools_own_again() -> None:
    union: JsonObject = {"anyOf": [{"required": ["n"]}, {"required": ["s"]}]}
    item = CatalogItem(name="a.b", parameters=union, source=ToolSource(type="config", name="a"))
    catalog = ToolCatalog((item,))
    [shown] = catalog.to_openai()
    name = shown["function"]["name"]
    raw = [
        {"id": "1", "function": {"name": name, "arguments": '{"arguments": {"n": 1}}'}},
        {"type": "tool_use", "id": "2", "name": name, "input": {"arguments": {"s": "x"}}},
        {"id": "3", "name": "a.b", "args": {"n": 2}},
        {"id": "4", "function": {"name": name, "arguments": '{"arguments": {"n": 1}'}},
    ]

    read = TurnCalls().of_step(step(0), catalog, raw, max_args_bytes=1000)

    assert [one.tool_name for one in read] == ["a.b"] * 4
    assert [one.asked.args for one in read] == [{"n": 1}, {"s": "x"}, {"n": 2}, {}]
    assert read[3].asked.fault


def test_a_model_that_repeats_its_ids_step_after_step_does_not_mix_two_calls() -> None:
    calls = TurnCalls()
    first, other = {"id": "call_1", "name": "a__b"}, {"id": "call_2", "name": "a__b"}
    assert ids(calls, 0, first, other) == ["call_1", "call_2"]
    assert ids(calls, 1, first, first) == ["call_1.step-1", "call_1.step-1.2"]
    assert ids(calls, 2, other) == ["call_2.step-2"]


def test_whatever_ids_a_model_makes_up_no_two_calls_of_a_turn_share_one() -> None:
    calls = TurnCalls()
    made_up = ["a", "a", "a.2", "a.2.2", "a.step-1", opening_id(1, 0), opening_id(1, 1), "a.step-1.2"]
    raw = [{"id": one, "name": "a__b"} for one in made_up]
    given = [ids(calls, index, *raw) for index in range(3)]
    unique = {one for step_ids in given for one in step_ids}
    assert len(unique) == 3 * len(made_up)
    assert unique.isdisjoint(opening_id(index, failures) for index in range(3) for failures in range(3))
    assert given == [ids(calls, index, *raw) for index in range(3)]


def test_the_same_calls_asked_for_again_in_a_step_are_the_same_calls() -> None:
    calls = TurnCalls()
    raw = ({"id": "call_1", "name": "a__b"}, {"id": "call_1", "name": "a__b"})
    assert ids(calls, 0, *raw) == ids(calls, 0, *raw) == ["call_1", "call_1.2"]


def test_the_name_that_a_provider_was_given_leads_back_to_the_tool() -> None:
    given = CATALOG.to_openai()[0]["function"]["name"]
    raw = {"id": "c", "function": {"name": given, "arguments": "{}"}}
    [call] = TurnCalls().of_step(step(0), CATALOG, [raw], max_args_bytes=1000)
    assert (given == "legacy.tool.exec", call.tool_name) == (False, "legacy.tool.exec")


def test_a_result_has_the_models_own_id_whatever_the_call_was_called() -> None:
    calls = TurnCalls()
    raw = {"id": "call_1", "function": {"name": "a__b", "arguments": "{}"}}
    ids(calls, 0, raw)
    [again] = calls.of_step(step(1), CATALOG, [raw], max_args_bytes=1000)
    told = answer(again, "x")
    assert (told.tool_call_id, told.message["tool_call_id"], told.output) == ("call_1", "call_1", "x")


def read(said: Any, *, most: int = 10_000) -> list[StepCall]:
    return TurnCalls().of_step(step(2), CATALOG, said, max_args_bytes=most)


TEXT = {"type": "text", "text": "I look."}
OPENAI_CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "a__b", "arguments": '{"n": 1}'}},
    {"id": "c2", "type": "function", "function": {"name": "a__c", "arguments": ""}},
]
TOOL_USES = [
    {"type": "tool_use", "id": "c1", "name": "a__b", "input": {"n": 1}},
    {"type": "tool_use", "id": "c2", "name": "a__c", "input": {}},
]
TOOL_CALLS = [
    {"type": "tool-call", "toolCallId": "c1", "toolName": "a__b", "input": {"n": 1}},
    {"type": "tool-call", "toolCallId": "c2", "toolName": "a__c", "input": {}},
]
OURS = {
    "id": "m1",
    "data": {"role": "assistant", "content": [TEXT, *TOOL_CALLS]},
    "metadata": {"tokens": 7},
    "createdAt": "2026-02-01T10:00:00.000Z",
    "source": {"type": "assistant", "stepId": "another"},
}
OPENAI = {"role": "assistant", "content": "I look.", "tool_calls": OPENAI_CALLS}


@pytest.mark.requirement("context.message.holds-the-call", "message.source")
@pytest.mark.parametrize(
    "said",
    [
        OPENAI,
        {"choices": [{"message": OPENAI}]},
        SimpleNamespace(model_dump=lambda: OPENAI),
        {"role": "assistant", "content": [TEXT, *TOOL_USES], "stop_reason": "tool_use"},
        {"role": "assistant", "content": "I look.", "toolCalls": [
            {"id": "c1", "name": "a__b", "arguments": {"n": 1}}, {"id": "c2", "name": "a__c"},
        ]},
        OURS,
        Message.from_wire(OURS),
    ],
)  # fmt: skip
def test_each_call_of_a_whole_reply_has_the_models_message(said: Any) -> None:
    first, second = read(said)
    assert (first.asked.id, second.asked.id) == ("c1", "c2")
    assert first.message is not None
    assert first.message == second.message
    assert first.message.data == {"role": "assistant", "content": [TEXT, *TOOL_CALLS]}
    assert first.message.source == {"type": "assistant", "stepId": step(2).id}
    assert [message_fault(first.message, one) for one in ("c1", "c2")] == ["", ""]


def test_message_of_ours_keeps_what_it_says_of_itself() -> None:
    message = read(OURS)[0].message
    assert message is not None
    assert (message.id, message.metadata, message.created_at) == ("m1", {"tokens": 7}, OURS["createdAt"])


def test_parts_of_a_reply_that_are_no_calls_stay_where_they_were() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    [call] = read({"role": "assistant", "content": [thought, TOOL_USES[0], TEXT]})
    assert call.message is not None
    assert call.message.data["content"] == [thought, TOOL_CALLS[0], TEXT]


def test_list_of_calls_makes_a_message_of_all_of_them() -> None:
    _, second = read(OPENAI_CALLS)
    assert second.message is not None
    assert second.message.data == {"role": "assistant", "content": TOOL_CALLS}


def test_reply_without_calls_has_none() -> None:
    assert read({"role": "assistant", "content": "Done.", "tool_calls": None}) == []


def test_calls_go_without_a_message_whose_copies_together_are_too_large() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "x" * 1000}, *TOOL_USES]}
    assert len(TOOL_USES) > 1
    most = 1000 * len(TOOL_USES)
    assert {call.message for call in read(said, most=most)} == {None}
    assert None not in {call.message and call.message.id for call in read(said, most=3 * most)}


@pytest.mark.parametrize("text", ["x" * 1000, "\ud800"])
def test_calls_go_without_a_message_that_is_too_large_or_is_not_json(text: str) -> None:
    [call] = read({"role": "assistant", "content": [{"type": "text", "text": text}, TOOL_USES[0]]}, most=500)
    assert call.message is None
    assert call.asked.fault is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"role": "user", "content": [TOOL_USES[0]]}, "has the role 'assistant', not 'user'"),
        ({"name": "a__b", "args": {}}, "has the role 'assistant', not None"),
        ({"choices": [{"message": None}]}, "a model's reply"),
        ({"role": "assistant", "content": 7}, "content is text or a list of parts"),
        ({"role": "assistant", "content": ["text"]}, "content is text or a list of parts"),
        ({"role": "assistant", "tool_calls": 5}, "tool_calls"),
        ({**OURS, "source": {"type": "martian"}}, "unknown type 'martian'"),
        ({**OURS, "data": {"role": "tool", "content": []}}, "has the role 'assistant', not 'tool'"),
        ({**OURS, "id": 5}, "The Message is not valid: id: must be text"),
        ("a__b", "a model's reply"),
        (None, "a model's reply"),
        (5, "a model's reply"),
    ],
)
def test_what_is_no_reply_of_a_model_is_refused_in_words(said: Any, told: str) -> None:
    with pytest.raises(ToolInputValidationError, match=told):
        read(said)


@pytest.mark.requirement("result.tool-call-id")
def test_repeated_id_is_kept_beside_the_unique_one() -> None:
    calls, raw = TurnCalls(), [{"id": "call_1", "name": "a__b"}]
    [first] = calls.of_step(step(0), CATALOG, raw, max_args_bytes=1000)
    [again] = calls.of_step(step(1), CATALOG, raw, max_args_bytes=1000)
    assert (first.tool_call_id, first.model_call_id) == ("call_1", None)
    assert (again.tool_call_id, again.model_call_id) == ("call_1.step-1", "call_1")
    assert again.message is not None
    assert message_fault(again.message, "call_1") == ""


def test_a_call_with_broken_arguments_is_answered_between_the_others() -> None:
    raw = [
        {"id": "c1", "function": {"name": "a__b", "arguments": "{}"}},
        {"id": "c2", "function": {"name": "a__b", "arguments": "{"}},
        {"id": "c3", "function": {"name": "a__b", "arguments": "{}"}},
    ]
    calls = TurnCalls().of_step(step(0), CATALOG, raw, max_args_bytes=1000)
    refusals = [refused(one, step(0), help_url="https://h/", correlation_id="t") for one in calls]

    told = in_order(refusals, [answer(calls[0], "first"), answer(calls[2], "third")])

    assert [one.tool_call_id for one in told] == ["c1", "c2", "c3"]
    assert [one.status for one in told] == ["ok", "error", "ok"]
    assert told[1].error is not None
    assert told[1].error.code == "E_TOOL_INVALID_ARGS"
    assert told[1].error.help_url == "https://h/E_TOOL_INVALID_ARGS"
    assert told[1].meta.id == call_identity("coder", "k", "t", "c2")
