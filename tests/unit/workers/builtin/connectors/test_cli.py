"""The built-in connector `cli`."""

import json
from typing import Any

import pytest

from goondan_tasks.authoring.connector_api import Line
from goondan_tasks.contract.errors import TooManyWaitingError
from tests.unit.workers.builtin.connectors.contexts import FakeContext
from workers.builtin.connectors.cli import connect


def run(*texts: str, program: str = "today", cursor: Any = None, first: int = 0) -> FakeContext:
    ctx = FakeContext(lines=[Line(text, first + number, program) for number, text in enumerate(texts)])
    ctx.cursor.value = cursor
    connect(ctx)
    return ctx


def test_line_is_message_of_instance_of_its_own() -> None:
    ctx = run("hello", "  ", "bye")

    assert [(event.id, event.name, event.instance_key) for event in ctx.events] == [
        ("today:0", "stdin_message", "cli:0"),
        ("today:2", "stdin_message", "cli:2"),
    ]
    assert ctx.texts == ["hello", "bye"]


def test_numbers_go_on_with_next_program() -> None:
    first = run("one", "two")
    second = run("three", "", program="tomorrow", cursor=first.cursor.value)
    third = run("", "four", program="the day after", cursor=second.cursor.value)

    assert [event.instance_key for one in (second, third) for event in one.events] == ["cli:2", "cli:3"]


def test_line_given_again_keeps_id_and_instance() -> None:
    first = run("one", "two")
    again = run("two", "three", cursor=first.cursor.value, first=1)

    assert again.events[0] == first.events[1]
    assert again.events[1].instance_key == "cli:2"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"text": "hi"}, {"message": {"type": "text", "text": "hi"}}),
        ({"message": "hi"}, {"message": {"type": "text", "text": "hi"}}),
        (
            {"message": {"type": "image", "url": "https://x.example/a.png"}},
            {"message": {"type": "image", "url": "https://x.example/a.png"}},
        ),
        ({"text": "hi", "name": "order"}, {"name": "order"}),
        ({"text": "hi", "instanceKey": "desk"}, {"instanceKey": "desk"}),
        ({"text": "hi", "properties": {"size": 3}}, {"properties": {"size": "3"}}),
        ({"kind": "other"}, {"message": {"type": "text", "text": '{"kind": "other"}'}}),
        ([1], {"message": {"type": "text", "text": "[1]"}}),
    ],
)
def test_line_of_json_says_more(given: Any, expected: dict[str, Any]) -> None:
    [event] = run(json.dumps(given)).events

    assert event.to_wire() == {**event.to_wire(), **expected}


def test_refused_line_keeps_no_other_back() -> None:
    ctx = FakeContext(
        lines=[Line(text, number, "today") for number, text in enumerate(["one", "odd", "two"])],
        refused=frozenset({"odd"}),
    )
    connect(ctx)

    assert ctx.texts == ["one", "two"]
    assert [event for event, _ in ctx.logger.lines] == ["cli.refused"]


def test_line_undeliverable_for_now_is_not_skipped() -> None:
    lines = [Line(text, number, "today") for number, text in enumerate(["one", "two"])]
    ctx = FakeContext(lines=lines, failure=TooManyWaitingError("The connector is ending."))

    with pytest.raises(TooManyWaitingError):
        connect(ctx)

    assert [line.text for line in ctx.lines] == ["two"]
