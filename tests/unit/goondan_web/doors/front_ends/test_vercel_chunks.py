from goondan_tasks.client.turn_events import TurnEvent
from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.front_ends.runs import RunOver
from goondan_web.doors.front_ends.vercel_chunks import UiChunks
from tests.unit.goondan_web.doors.front_ends.scripted import (
    BROKEN,
    CALLED,
    DENIED,
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

STARTED = ("start", "m-1")
STOPPED = ("finish", "stop")
NAMES = ("messageId", "delta", "finishReason", "errorText", "approvalId", "output", "input")


def run(*events: TurnEvent | RunOver) -> list[JsonObject]:
    return mapped(UiChunks("m-1"), *events)


def test_reasoning_and_text_are_parts_of_deltas() -> None:
    chunks = run(thought("Hm."), text("Good "), text("day"), ended("Good day"), RunOver("Good day"))
    assert shown(chunks, *NAMES) == [
        STARTED,
        ("reasoning-start",),
        ("reasoning-delta", "Hm."),
        ("reasoning-end",),
        ("text-start",),
        ("text-delta", "Good "),
        ("text-delta", "day"),
        ("text-end",),
        STOPPED,
    ]


def test_answer_that_was_not_streamed_is_part() -> None:
    assert shown(run(ended("Done."), RunOver("Done.")), *NAMES) == [
        STARTED,
        ("text-start",),
        ("text-delta", "Done."),
        ("text-end",),
        STOPPED,
    ]


def test_call_has_its_input_and_its_output() -> None:
    assert shown(run(CALLED, answered(output=[1]), RunOver()), *NAMES)[1:] == [
        ("tool-input-available", {"disk": "sda"}),
        ("tool-output-available", [1]),
        STOPPED,
    ]


def test_failed_call_has_its_error() -> None:
    assert shown(run(answered("error", error=BROKEN)), *NAMES)[1:] == [
        ("tool-output-error", "E_TOOL: The disk is full.")
    ]


def test_denied_call_is_shown_as_denied() -> None:
    assert shown(run(answered("error", error=DENIED)), *NAMES)[1:] == [("tool-output-denied",)]


def test_approvals_of_waiting_calls_are_requested_last() -> None:
    chunks = run(CALLED, answered("pending", awaits="approval"), text("I wait.", 1), RunOver(held=[HELD]))
    assert shown(chunks, *NAMES)[-3:] == [
        ("text-end",),
        ("tool-approval-request", "c-1"),
        ("finish", "tool-calls"),
    ]


def test_run_without_message_id_continues_page_message() -> None:
    assert mapped(UiChunks()) == [{"type": "start"}]


def test_void_answer_ends_and_is_named() -> None:
    chunks = run(text("Goo"), restarted(), text("Bad", answer="b"), RunOver("Bad"))
    assert chunks[4] == {"type": "data-void", "data": {"id": chunks[1]["id"]}, "transient": True}
    assert chunks[5]["id"] != chunks[1]["id"]


def test_failed_run_ends_with_its_error() -> None:
    assert shown(run(ended(error=BROKEN), RunOver(error=BROKEN)), *NAMES)[1:] == [
        ("error", "E_TOOL: The disk is full."),
        ("finish", "error"),
    ]


def test_progress_is_passed_on_and_not_kept() -> None:
    chunk = run(progressed("half"))[1]
    assert (chunk["type"], chunk["data"]["message"], chunk["transient"]) == ("data-progress", "half", True)


def test_tool_output_is_passed_on_not_kept() -> None:
    chunks = run(*EMITTED)[1:]
    kinds = ["data-tool-output", "data-tool-restart", "data-tool-output", "data-tool-output"]
    assert [(chunk["type"], chunk["data"]) for chunk in chunks] == [*zip(kinds, OUTPUT, strict=True)]
    assert all(chunk["transient"] for chunk in chunks)
