"""Messages as a conversation shows them."""

from typing import Any

from goondan_tasks.client import AnswerRestarted, ReasoningDelta, TextDelta, ToolCalled
from goondan_tasks.contract.messages import Message
from goondan_web.doors.console.chat import TurnText, shown_messages


def message(name: str, role: str, *content: dict[str, Any]) -> Message:
    return Message(
        id=name,
        data={"role": role, "content": list(content)},
        metadata={"turnId": "turn-1"},
        created_at="2026-11-29T07:28:06.697Z",
        source={"type": role},
    )


def call(tool: str, args: Any, name: str = "call_1") -> dict[str, Any]:
    return {"type": "tool-call", "toolCallId": name, "toolName": tool, "input": args}


def answer(value: Any, name: str = "call_1", kind: str = "json") -> dict[str, Any]:
    return {
        "type": "tool-result",
        "toolCallId": name,
        "toolName": "notes__find",
        "output": {"type": kind, "value": value},
    }


def test_tool_answer_joins_call_despite_repeated_name() -> None:
    messages = [
        message("m1", "assistant", {"type": "text", "text": "one"}, call("notes__find", {"n": 1})),
        message("msg-1", "tool", answer("first")),
        message("m2", "assistant", call("notes__find", {"n": 2}), call("notes__find", {"n": 3}, "call_2")),
        message(
            "msg-2", "tool", answer({"error": {"code": "E_TOOL", "message": "no"}}, "call_2", "error-json")
        ),
        message("msg-3", "tool", answer("second")),
    ]

    first, second = shown_messages(messages, [], "k")

    assert [part["kind"] for part in first["parts"]] == ["text", "tool"]
    assert (first["parts"][1]["text"], first["parts"][1]["state"]) == ("first", "ok")
    assert [(part["text"], part["state"]) for part in second["parts"]] == [
        ("second", "ok"),
        ("E_TOOL: no", "error"),
    ]
    assert second["parts"][0]["line"] == '{ "n": 2 }'


def test_answer_without_call_on_page_stands_alone() -> None:
    [shown] = shown_messages([message("msg-1", "tool", answer("found"))], [], "k")
    assert [(part["tool"], part["text"]) for part in shown["parts"]] == [("notes__find", "found")]


def test_call_without_answer_has_no_state() -> None:
    [shown] = shown_messages([message("m1", "assistant", call("notes__find", None))], [], "k")
    assert (shown["parts"][0]["state"], shown["parts"][0]["text"]) == (None, None)


def test_hand_off_leads_to_other_conversation() -> None:
    given = ({"target": "billing"}, {"target": "Agent/a b", "instanceKey": "x/y"}, {"target": 5}, None)
    shown = [
        shown_messages([message("m", "assistant", call("agents__request", args))], [], "mine")[0]["parts"][0][
            "other"
        ]
        for args in given
    ]
    assert [one and one["address"] for one in shown] == [
        "/console/conversations/billing/mine",
        "/console/conversations/a%20b/x%2Fy",
        None,
        None,
    ]


def test_turn_text_has_last_two_steps_without_restarts() -> None:
    text = TurnText()
    for step in range(3):
        assert text.take(TextDelta(step=step, text="**a", answer_id="x"))
        assert text.take(TextDelta(step=step, text=f"{step}**", answer_id="x"))
    assert not text.take(ToolCalled(step=2, id="c", call_id="c", tool="t"))
    assert "<strong>a1</strong>" in text.rendered()
    assert "<strong>a2</strong>" in text.rendered()
    assert "a0" not in text.rendered()
    assert text.take(ReasoningDelta(step=3, text="<i>hm", answer_id="x"))
    assert "&lt;i&gt;hm" in text.rendered()
    assert text.take(AnswerRestarted(step=3, answer_id="y"))
    assert "hm" not in text.rendered()
