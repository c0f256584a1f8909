"""Handing work to an agent."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.settings import Settings
from goondan_tasks.authoring.handoff import (
    SYSTEM_EVENT_TYPES,
    Asker,
    Handoff,
    RepeatableIds,
    event_fields,
    handoff_call,
    handoff_error,
    outside_call,
    random_id,
    request_result,
    require_timeout,
)
from goondan_tasks.contract.calls import Run, identity_of
from goondan_tasks.contract.errors import (
    AgentOutcomeUnknownError,
    HandoffCycleError,
    HandoffDepthError,
    HandoffError,
    HandoffTimeoutError,
    ToolInputValidationError,
)
from goondan_tasks.contract.events import EVENT_TYPE, answer_to, content_of, event_of
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallError
from goondan_tasks.contract.names import DELEGATE_TOOL
from goondan_tasks.oauth.consent import GRANTED
from goondan_tasks.revisions.active import CHANGED

MOST = 16


def outside(instance: str = "i") -> Asker:
    return Asker("client", instance, random_id)


def hand(asker: Asker, target: str, *, instance: str | None = None, **how: Any) -> ToolCall:
    event: dict[str, Any] = {"input": 1} | ({"instanceKey": instance} if instance else {})
    return handoff_call(asker, Handoff(target, event, **how), most_hops=MOST, now_ms=0)


def handler_of(call: ToolCall) -> Asker:
    """Return the agent that handles an event."""
    return Asker.of(identity_of(call), call, RepeatableIds(identity_of(call)))


def go(agents: list[str], **how: Any) -> ToolCall:
    """Let each agent hand work to the next one."""
    call = hand(outside(), agents[0])
    for agent in agents[1:]:
        call = hand(handler_of(call), agent, **how)
    return call


def test_empty_instance_is_refused_not_replaced_by_askers() -> None:
    asker = handler_of(go(["a"]))
    with pytest.raises(ToolInputValidationError, match="instanceKey: must not be empty"):
        handoff_call(asker, Handoff("b", {"input": 1, "instanceKey": ""}), most_hops=MOST, now_ms=0)


def test_chain_grows_by_asker() -> None:
    call = go(["a", "b", "c"])
    assert (call.call_chain, call.waiting) == (("a@i", "b@i"), 2)


def test_sender_of_work_no_longer_waits() -> None:
    call = go(["a", "b"])
    sent = hand(handler_of(call), "c", is_request=False, is_awaited=False)
    assert (sent.call_chain, sent.waiting) == (("a@i", "b@i"), 0)
    back = hand(handler_of(sent), "b")
    assert (back.call_chain, back.waiting) == (("a@i", "b@i", "c@i"), 1)
    with pytest.raises(HandoffCycleError, match="a@i -> b@i -> c@i -> b@i -> c@i"):
        hand(handler_of(back), "c")


@given(agents=st.lists(st.sampled_from("abcd"), min_size=1, max_size=6))
def test_request_is_cycle_exactly_if_agent_awaits_itself(agents: list[str]) -> None:
    if len(set(agents)) == len(agents):
        assert len(go(agents).call_chain) == len(agents) - 1
    else:
        with pytest.raises(HandoffCycleError):
            go(agents)


@given(agents=st.lists(st.sampled_from("abcd"), min_size=1, max_size=MOST + 1))
def test_events_without_waiting_asker_may_go_in_circles(agents: list[str]) -> None:
    assert go(agents, is_awaited=False).waiting == 0


@pytest.mark.parametrize("is_awaited", [True, False])
def test_chain_one_hop_beyond_limit_is_refused(*, is_awaited: bool) -> None:
    agents = [f"a{number}" for number in range(MOST + 2)]
    go(agents[:-1], is_awaited=is_awaited)
    with pytest.raises(HandoffDepthError, match="a16@i -> a17@i"):
        go(agents, is_awaited=is_awaited)


def test_answer_is_step_back_not_one_deeper() -> None:
    asker = handler_of(hand(outside(), "a"))
    for _ in range(2 * MOST):
        question = hand(asker, "b", is_awaited=False)
        assert question.call_chain == ("a@i",)
        answered = Run(identity_of(question), question, "w1", 1, 0, lambda: 0.0).ok(None, 0.0)
        answer = answer_to(question, answered)
        assert answer is not None
        asker = handler_of(answer)


def test_run_that_is_repeated_asks_for_very_same() -> None:
    def ask() -> list[str]:
        ids = RepeatableIds("run-1")
        return [
            ids(content) for content in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2}, float("nan"), "\ud800")
        ]

    assert ask() == ask()
    assert len(set(ask())) == 5
    assert set(ask()).isdisjoint({RepeatableIds("run-2")({"a": 1, "b": 2})})


@pytest.mark.parametrize("event_type", sorted(SYSTEM_EVENT_TYPES))
def test_only_system_sends_events_of_system(event_type: str) -> None:
    event = {"input": 1, "type": event_type}
    with pytest.raises(ToolInputValidationError, match="come from the system"):
        handoff_call(handler_of(go(["a"])), Handoff("b", event), most_hops=MOST, now_ms=0)
    assert (
        handoff_call(outside(), Handoff("b", event), most_hops=MOST, now_ms=0).args["payload"]["type"]
        == event_type
    )


def test_types_of_systems_events_are_all_reserved() -> None:
    assert {EVENT_TYPE, GRANTED, CHANGED} < SYSTEM_EVENT_TYPES


@pytest.mark.parametrize("event", [None, 5, "x", [], {"inputs": 1}, {1: 2}])
def test_invalid_event_is_refused(event: Any) -> None:
    with pytest.raises(ToolInputValidationError):
        handoff_call(outside(), Handoff("a", event), most_hops=MOST, now_ms=0)


def test_both_spellings_are_taken() -> None:
    assert event_fields({"instance_key": "i", "reply_to": None, "metadata": {}}) == {
        "instanceKey": "i",
        "metadata": {},
    }


@pytest.mark.parametrize("value", [0, -1, True, None, "5", float("nan"), float("inf"), 101])
def test_timeout_is_number_that_makes_sense(value: Any) -> None:
    with pytest.raises(ToolInputValidationError, match="patience"):
        require_timeout("patience", value, 100)
    assert require_timeout("patience", 100, 100) == 100.0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("E_HANDOFF_CYCLE", HandoffCycleError),
        ("E_HANDOFF_TIMEOUT", HandoffTimeoutError),
        ("E_AGENT_OUTCOME_UNKNOWN", AgentOutcomeUnknownError),
        ("E_OWN", HandoffError),
    ],
)
def test_handoff_error_keeps_code_message_and_suggestion(code: str, kind: type[HandoffError]) -> None:
    error = handoff_error(
        ToolCallError(code=code, name="X", message="why", suggestion="do", help_url="https://help/")
    )
    assert type(error) is kind
    assert (error.code, error.message, error.suggestion, error.help_url) == (
        code,
        "why",
        "do",
        "https://help/",
    )


def test_answer_that_is_null_is_answer() -> None:
    call = hand(outside(), "a")
    assert call.tool_name == DELEGATE_TOOL
    answer = request_result(Run("r", call, "w", 1, 0, lambda: 0.0).ok(None, 0.0))
    assert (answer.response, answer.target, answer.correlation_id) == (None, "a", call.correlation_id)


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, True, "5"])
def test_request_waits_for_time_above_zero(timeout: float) -> None:
    with pytest.raises(ToolInputValidationError, match="timeout must be a number above 0"):
        outside_call(Settings(), "editor", "x", {}, is_request=True, timeout=timeout)


@pytest.mark.parametrize(("is_request", "function"), [(True, "request"), (False, "send")])
def test_misspelt_field_is_refused_and_not_left_out(is_request: bool, function: str) -> None:
    fields: Any = {"instance": "issue-42"}
    with pytest.raises(TypeError, match=rf"{function}\(\) .* 'instance'; did you mean 'instance_key'\?"):
        outside_call(Settings(), "editor", "x", fields, is_request=is_request)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "town"}, "outputSchema.type is not a valid JSON Schema"),
        ({"$ref": "https://example.com/schema"}, "outputSchema.* is not a valid JSON Schema"),
        ({"enum": ["x" * 300_000]}, "longer than 262144 characters"),
        ([], "must be an object"),
        (True, "must be an object"),
    ],
)
def test_invalid_or_oversized_schema_fails_at_asker(schema: Any, fault: str) -> None:
    with pytest.raises(ToolInputValidationError, match=fault):
        outside_call(Settings(), "editor", "x", {"output_schema": schema}, is_request=True)
    event = {"input": 1, "outputSchema": schema}
    with pytest.raises(ToolInputValidationError, match=fault):
        handoff_call(handler_of(go(["a"])), Handoff("b", event), most_hops=MOST, now_ms=0)


def test_event_without_answer_cannot_have_output_schema() -> None:
    with pytest.raises(ToolInputValidationError, match="has no outputSchema"):
        outside_call(Settings(), "editor", "x", {"output_schema": {}}, is_request=False)


def test_event_content_and_id_include_its_schema() -> None:
    asker = handler_of(go(["a"]))

    def ask(schema: JsonObject | None, event_id: str | None = "e") -> ToolCall:
        # a retry of the asking run begins again with its ids
        again = replace(asker, new_id=RepeatableIds("run"))
        handoff = Handoff("b", {"input": 1, "id": event_id}, output_schema=schema)
        return handoff_call(again, handoff, most_hops=MOST, now_ms=0)

    schema: JsonObject = {"type": "object", "default": None}
    assert event_of(ask(schema), 0).output_schema == schema
    assert content_of(ask(schema)) == content_of(ask(schema)) != content_of(ask(None))
    assert ask(schema, None).tool_call_id == ask(schema, None).tool_call_id
    assert ask(schema, None).tool_call_id != ask(None, None).tool_call_id


def test_empty_instance_key_of_event_is_refused() -> None:
    with pytest.raises(ToolInputValidationError, match="instanceKey: must not be empty"):
        outside_call(Settings(), "editor", "x", {"instance_key": ""}, is_request=False)
