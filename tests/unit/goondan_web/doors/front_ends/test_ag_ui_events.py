import pytest
from ag_ui.core import Event
from pydantic import TypeAdapter

from goondan_tasks.client.turn_events import TurnEvent
from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.front_ends.ag_ui_events import AgUiEvents
from goondan_web.doors.front_ends.runs import RunOver
from tests.unit.goondan_web.doors.front_ends.scripted import (
    BROKEN,
    CALLED,
    CANCELLED,
    EMITTED,
    HELD,
    OUTPUT,
    answered,
    ended,
    mapped,
    progressed,
    restarted,
    shown,
    text,
    thought,
)

OFFICIAL: TypeAdapter[object] = TypeAdapter(Event)
STARTED = ("RUN_STARTED",)
STEP = ("STEP_STARTED",)
STEP_OVER = ("STEP_FINISHED",)


def run(*events: TurnEvent | RunOver) -> list[JsonObject]:
    """Map a run whose events the official types take without fields that they do not know."""
    made = mapped(AgUiEvents("thread", "run"), *events)
    for event in made:
        assert not getattr(OFFICIAL.validate_python(event), "model_extra", None), event
    return made


def test_text_is_one_message_of_deltas_in_step() -> None:
    events = run(text("Good "), text("day"), ended("Good day"), RunOver("Good day"))
    assert shown(events, "delta", "result") == [
        STARTED,
        STEP,
        ("TEXT_MESSAGE_START",),
        ("TEXT_MESSAGE_CONTENT", "Good "),
        ("TEXT_MESSAGE_CONTENT", "day"),
        ("TEXT_MESSAGE_END",),
        STEP_OVER,
        ("RUN_FINISHED", "Good day"),
    ]
    assert len({event["messageId"] for event in events if "messageId" in event}) == 1


def test_unstreamed_answer_is_separate_message() -> None:
    events = run(ended({"total": 3}), RunOver({"total": 3}))
    assert shown(events, "delta", "result") == [
        STARTED,
        ("TEXT_MESSAGE_START",),
        ("TEXT_MESSAGE_CONTENT", '{"total":3}'),
        ("TEXT_MESSAGE_END",),
        ("RUN_FINISHED", {"total": 3}),
    ]


@pytest.mark.parametrize("response", [None, ""])
def test_empty_answer_is_no_message(response: str | None) -> None:
    assert shown(run(ended(response), RunOver(response))) == [STARTED, ("RUN_FINISHED",)]


def test_text_before_call_does_not_stand_for_answer() -> None:
    events = run(text("I look."), CALLED, answered(output=1), ended("It is 1."), RunOver("It is 1."))
    assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"] == [
        "I look.",
        "It is 1.",
    ]


def test_reasoning_and_text_are_separate_messages() -> None:
    events = run(thought("Hm."), text("Yes."), RunOver("Yes."))
    assert shown(events, "delta", "role") == [
        STARTED,
        STEP,
        ("REASONING_START",),
        ("REASONING_MESSAGE_START", "reasoning"),
        ("REASONING_MESSAGE_CONTENT", "Hm."),
        ("REASONING_MESSAGE_END",),
        ("REASONING_END",),
        ("TEXT_MESSAGE_START", "assistant"),
        ("TEXT_MESSAGE_CONTENT", "Yes."),
        ("TEXT_MESSAGE_END",),
        STEP_OVER,
        ("RUN_FINISHED",),
    ]


def test_call_has_its_arguments_and_its_result() -> None:
    events = run(CALLED, answered(output={"wiped": True}), RunOver())
    assert shown(events, "toolCallId", "toolCallName", "delta", "content")[2:6] == [
        ("TOOL_CALL_START", "c-1", "disk__wipe"),
        ("TOOL_CALL_ARGS", "c-1", '{"disk":"sda"}'),
        ("TOOL_CALL_END", "c-1"),
        ("TOOL_CALL_RESULT", "c-1", '{"wiped":true}'),
    ]


def test_result_of_failed_call_is_its_error() -> None:
    [result] = [event for event in run(answered("error", error=BROKEN)) if "content" in event]
    assert '"code":"E_TOOL"' in result["content"]


def test_interim_result_is_none() -> None:
    assert shown(run(answered("pending", awaits="completion"))) == [STARTED]


def test_void_answer_ends_and_next_is_another_message() -> None:
    events = run(text("Goo"), restarted(), text("Bad", answer="b"), RunOver("Bad"))
    kinds = [kind for kind, *_ in shown(events)]
    assert kinds[2:8] == [
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "CUSTOM",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
    ]
    assert events[5] == {
        "type": "CUSTOM",
        "name": "goondan.void",
        "value": {"messageId": events[2]["messageId"]},
    }
    assert events[6]["messageId"] != events[2]["messageId"]


def test_rereading_run_keeps_message_ids() -> None:
    script = (thought("a"), text("b"), text("c", step=1), ended("c"), RunOver("c"))
    assert run(*script) == run(*script)


def test_calls_that_wait_for_approvals_interrupt_run() -> None:
    last = run(CALLED, answered("pending", awaits="approval"), RunOver(held=[HELD]))[-1]
    [interrupt] = last["outcome"]["interrupts"]
    assert last["outcome"]["type"] == "interrupt"
    assert (interrupt["id"], interrupt["toolCallId"], interrupt["metadata"]["args"]) == (
        "c-1",
        "c-1",
        {"disk": "sda"},
    )


def test_failed_run_ends_with_its_error() -> None:
    events = run(text("I"), ended(error=BROKEN), RunOver(error=BROKEN))
    assert shown(events, "code", "message")[-2:] == [STEP_OVER, ("RUN_ERROR", "E_TOOL", "The disk is full.")]


def test_cancelled_run_ends_as_cancelled() -> None:
    assert run(ended(error=CANCELLED), RunOver(error=CANCELLED))[-1]["outcome"] == {"type": "cancelled"}


def test_progress_is_custom_event() -> None:
    progress = run(progressed("half"))[1]
    assert (progress["name"], progress["value"]["message"]) == ("goondan.progress", "half")


def test_output_of_tool_is_custom_events() -> None:
    events = run(*EMITTED)[1:]
    names = ["tool_output", "tool_restart", "tool_output", "tool_output"]
    assert [(event["name"], event["value"]) for event in events] == [
        (f"goondan.{name}", value) for name, value in zip(names, OUTPUT, strict=True)
    ]
