"""Turns as events of responses: their order, their numbers, and what is read again after a cut."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from goondan_tasks.authoring.tool_api import RequestResult
from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    TokensUsed,
    ToolAnswered,
    ToolCalled,
    ToolEmitted,
    TurnEnded,
    TurnEvent,
)
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_web.doors.openai.completions import Completion
from goondan_web.doors.openai.response_events import ResponseEvents, ResponseHead, later

HEAD = ResponseHead("resp_t", "coder", 7)
CALL = ToolCalled(step=0, id="call_1", call_id="c-1", tool="files__read", args={"path": "a"})
ANSWER = ToolAnswered(step=0, id="call_1", call_id="c-1", tool="files__read", status="ok", output=[1])


def ended(response: Any = None, error: ToolCallError | None = None) -> TurnEnded:
    result = RequestResult(id="t", event_id="t", target="coder", response=response, correlation_id="t")
    return TurnEnded(result=result, error=error, usage={"input": 5, "output": 2, "cached": 1})


def text(step: int, characters: str) -> TextDelta:
    return TextDelta(step=step, text=characters, answer_id=f"a{step}")


def mapped(events: Iterable[TurnEvent]) -> list[JsonObject]:
    mapper = ResponseEvents(HEAD)
    return [*mapper.begun(), *(one for event in events for one in mapper.mapped(event))]


LIVE: Sequence[TurnEvent] = [
    ReasoningDelta(step=0, text="hm", answer_id="a0"),
    text(0, "I "),
    text(0, "look"),
    CALL,
    TokensUsed(step=0, usage={"input": 3}),
    ANSWER.model_copy(update={"status": "pending", "output": None}),
    ANSWER,
    text(1, "It "),
    text(1, "is ü"),
    text(1, "."),
    ended("It is ü."),
]
#: the same stream after the end: the pieces of each answer are one
JOINED = [LIVE[0], text(0, "I look"), *LIVE[3:7], text(1, "It is ü."), LIVE[-1]]


def test_tools_are_items_that_server_runs_between_texts() -> None:
    last = mapped(LIVE)[-1]

    assert last["type"] == "response.completed"
    assert [item["type"] for item in last["response"]["output"]] == [
        "reasoning",
        "message",
        "mcp_call",
        "message",
    ]
    call = last["response"]["output"][2]
    assert (call["arguments"], call["output"], call["status"]) == ('{"path":"a"}', "[1]", "completed")
    assert last["response"]["usage"]["input_tokens_details"] == {"cached_tokens": 1}


def test_items_begin_and_end_in_order() -> None:
    opened: list[int] = []
    for event in mapped(LIVE):
        if event["type"] == "response.output_item.added":
            opened.append(event["output_index"])
        elif "output_index" in event:
            assert event["output_index"] in opened
        if event["type"] == "response.output_item.done":
            opened.remove(event["output_index"])

    assert opened == []


def outline(events: Iterable[JsonObject]) -> list[Any]:
    """Return events with their numbers, and texts by character, so that how they were cut does not show."""
    shown: list[Any] = []
    for event in events:
        number = event["sequence_number"]
        if "delta" in event:
            begin = number - len(event["delta"]) + 1
            shown += [(event["item_id"], begin + i, one) for i, one in enumerate(event["delta"])]
        else:
            shown.append(event)
    return shown


def test_numbers_stay_same_when_pieces_are_joined() -> None:
    assert outline(mapped(LIVE)) == outline(mapped(JOINED))


@pytest.mark.parametrize("again", [LIVE, JOINED])
def test_follower_cut_off_anywhere_gets_everything_once(again: Sequence[TurnEvent]) -> None:
    live = mapped(LIVE)
    for cut in range(len(live) - 1):
        rest = later(mapped(again), live[cut]["sequence_number"])
        assert outline([*live[: cut + 1], *rest]) == outline(live)


def test_last_event_comes_even_after_higher_number() -> None:
    [last] = later(mapped(LIVE), 10_000)

    assert (last["type"], last["sequence_number"]) == ("response.completed", 10_001)


def test_void_answer_is_incomplete_and_not_in_output() -> None:
    events = mapped(
        [text(0, "wro"), AnswerRestarted(step=0, answer_id="b"), text(0, "right"), ended("right")]
    )

    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == ["incomplete", "completed"]
    assert events[-1]["response"]["output"] == done[1:]


@pytest.mark.parametrize(
    ("told", "response", "texts"),
    [
        ([], {"a": 1}, ['{"a":1}']),
        ([], None, []),
        ([text(0, "Yes.")], "Yes.\n", ["Yes."]),
        ([text(0, "Yes.")], "No.", ["Yes.", "No."]),
        ([text(0, "Look"), CALL, ANSWER], "Found", ["Look", "Found"]),
    ],
)
def test_answer_no_model_wrote_is_separate_message(
    told: list[TurnEvent], response: Any, texts: list[str]
) -> None:
    output = mapped([*told, ended(response)])[-1]["response"]["output"]

    assert [item["content"][0]["text"] for item in output if item["type"] == "message"] == texts


@pytest.mark.parametrize(("code", "status"), [("E_TOOL_CANCELLED", "cancelled"), ("E_TOOL", "failed")])
def test_failed_turn_is_failed_response_with_incomplete_calls(code: str, status: str) -> None:
    error = ToolCallError(code=code, name="Error", message="no", suggestion="", help_url="")
    last = mapped([CALL, ended(error=error)])[-1]

    response = last["response"]
    assert (last["type"], response["status"], response["error"]["code"]) == ("response.failed", status, code)
    assert response["output"][0]["status"] == "incomplete"


def test_failed_tool_is_item_with_its_error() -> None:
    error = ToolCallError(code="E_TOOL", name="Error", message="no", suggestion="", help_url="")
    answer = ANSWER.model_copy(update={"status": "error", "error": error})

    [call, _] = mapped([CALL, answer, ended("x")])[-1]["response"]["output"]

    assert (call["status"], call["error"], call["output"]) == ("failed", "E_TOOL: no", None)


def test_completion_has_texts_as_chunks_and_no_calls() -> None:
    completion = Completion(HEAD, has_usage=True)
    events = mapped(LIVE)
    chunks = [chunk for event in events for chunk in completion.chunks(event)]

    said = "".join(choice["delta"].get("content", "") for one in chunks for choice in one["choices"])
    assert said == "I look\n\nIt is ü."
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == 7
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-t"}
    assert completion.whole(events[-1]["response"])["choices"][0]["message"]["content"] == "It is ü."


def test_output_emitted_by_tool_has_no_event() -> None:
    output = ToolEmitted(tool_call_id="call_1", call_id="c-1", tool="disk__list", attempt=1, chunk="sda")
    assert list(ResponseEvents(HEAD).mapped(output)) == []
