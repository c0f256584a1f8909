from typing import Any

import pytest

from goondan_tasks.bundle.reply_spec import Reply

PROPERTIES = {"chat": "-77", "mood": "calm", "is_group": "true", "price": "1.5"}


def declared(**types: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (declared(text="string"), {"text": "hi"}),
        (declared(text="string", chat="integer"), {"text": "hi", "chat": -77}),
        (declared(text="string", chat="string"), {"text": "hi", "chat": "-77"}),
        (
            declared(text="string", is_group="boolean", price="number"),
            {"text": "hi", "is_group": True, "price": 1.5},
        ),
        (declared(text="string", mood="integer"), {"text": "hi", "mood": "calm"}),
        (None, {"text": "hi"}),
        ({"properties": []}, {"text": "hi"}),
    ],
)
def test_tool_gets_answer_and_properties_that_it_declares(parameters: Any, expected: dict[str, Any]) -> None:
    reply = Reply.model_validate({"tool": "Tool/chat__send"})

    assert reply.tool_name == "chat__send"
    assert reply.arguments(parameters, PROPERTIES, "hi") == expected


def test_places_in_arguments_are_filled() -> None:
    args = {"chat": "{{chat}}", "blocks": [{"say": "{{ mood }}: {{answer}}"}], "left": "{{unknown}}", "n": 3}
    reply = Reply.model_validate({"tool": "Tool/chat__send", "args": args})

    assert reply.arguments(declared(chat="integer"), PROPERTIES, "{{mood}}") == {
        "chat": -77,
        "blocks": [{"say": "calm: {{mood}}"}],
        "left": "{{unknown}}",
        "n": 3,
    }
