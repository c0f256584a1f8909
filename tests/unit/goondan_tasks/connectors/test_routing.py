"""Where events go: the rules of a Connection."""

from typing import Any

import pytest
from pydantic import ValidationError

from goondan_tasks.authoring.connector_api import ConnectorEvent
from goondan_tasks.bundle.connection_spec import IngressRule
from goondan_tasks.connectors.routing import route
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY

Json = dict[str, Any]


def event(**fields: Any) -> ConnectorEvent:
    given = {"name": "note", "message": {"type": "text", "text": "x"}, "instanceKey": "own", **fields}
    return ConnectorEvent.from_wire(given)


def destination(rules: list[Json], **fields: Any) -> tuple[str, str, int | None]:
    found = route([IngressRule.model_validate(rule) for rule in rules], event(**fields), "clerk")
    return found.agent, found.instance_key, found.rule


@pytest.mark.parametrize(
    ("rules", "properties", "expected"),
    [
        # without a rule that matches: the entry agent, and the event's own instance
        ([], {}, ("clerk", "own", None)),
        ([{"match": {"event": "photo"}, "route": {"agentRef": "Agent/expert"}}], {}, ("clerk", "own", None)),
        # the first rule that matches counts
        ([{"route": {}}, {"route": {"agentRef": "Agent/expert"}}], {}, ("clerk", "own", 0)),
        (
            [{"match": {"event": "photo"}}, {"route": {"agentRef": "Agent/expert"}}],
            {},
            ("expert", "own", 1),
        ),
        # all parts of `match` must match
        (
            [{"match": {"event": "note", "properties": {"room": "attic"}}, "route": {"instanceKey": "a"}}],
            {"room": "attic"},
            ("clerk", "a", 0),
        ),
        (
            [{"match": {"event": "note", "properties": {"room": "attic"}}, "route": {"instanceKey": "a"}}],
            {"room": "cellar"},
            ("clerk", "own", None),
        ),
        (
            [{"match": {"event": "photo", "properties": {"room": "attic"}}, "route": {"instanceKey": "a"}}],
            {"room": "attic"},
            ("clerk", "own", None),
        ),
        (
            [{"match": {"properties": {"a": "1", "b": "2"}}, "route": {"instanceKey": "both"}}],
            {"a": "1"},
            ("clerk", "own", None),
        ),
        # values are compared as texts
        (
            [{"match": {"properties": {"urgent": True}}, "route": {"instanceKey": "u"}}],
            {"urgent": "true"},
            ("clerk", "u", 0),
        ),
        (
            [{"match": {"properties": {"urgent": "true"}}, "route": {"instanceKey": "u"}}],
            {"urgent": True},
            ("clerk", "u", 0),
        ),
        (
            [{"match": {"properties": {"size": 3}}, "route": {"instanceKey": "three"}}],
            {"size": 3},
            ("clerk", "three", 0),
        ),
        (
            [{"match": {"properties": {"size": "1.5"}}, "route": {"instanceKey": "s"}}],
            {"size": 1.5},
            ("clerk", "s", 0),
        ),
        # the instance: static, or prefix and property, or the event's own
        ([{"route": {"instanceKey": "fixed"}}], {"room": "attic"}, ("clerk", "fixed", 0)),
        ([{"route": {"instanceKeyProperty": "room"}}], {"room": "attic"}, ("clerk", "attic", 0)),
        (
            [{"route": {"instanceKeyProperty": "room", "instanceKeyPrefix": "tg:"}}],
            {"room": 7},
            ("clerk", "tg:7", 0),
        ),
        ([{"route": {"instanceKeyPrefix": "tg:"}}], {}, ("clerk", "own", 0)),
        # null is no property
        ([{"match": {"properties": {"room": "null"}}}], {"room": None}, ("clerk", "own", None)),
    ],
)
def test_destination(rules: list[Json], properties: Json, expected: tuple[str, str, int | None]) -> None:
    assert destination(rules, properties=properties) == expected


def test_missing_key_property_is_refused() -> None:
    rules: list[Json] = [{"match": {"event": "photo"}}, {"route": {"instanceKeyProperty": "room"}}]
    with pytest.raises(ConnectorError, match=r"rules\[1\] takes .* 'room', which the event 'note' does not"):
        destination(rules)


def test_key_that_is_too_long_is_refused() -> None:
    rules: list[Json] = [{"route": {"instanceKeyProperty": "room", "instanceKeyPrefix": "x"}}]
    with pytest.raises(ConnectorError, match="has 1025 characters, more than 1024"):
        destination(rules, properties={"room": "r" * LONGEST_INSTANCE_KEY})


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"instanceKey": ""},
        {"instanceKey": "k" * (LONGEST_INSTANCE_KEY + 1)},
        {"message": {"type": "video", "url": "u"}},
        {"message": {"type": "text"}},
        {"message": "hello"},
        {"properties": {"list": [1]}},
        {"properties": "none"},
        {"id": ""},
        {"auth": "ann"},
    ],
)
def test_event_that_is_not_valid_is_refused(fields: Json) -> None:
    with pytest.raises(ValidationError):
        event(**fields)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"type": "text", "text": "hello"}, "hello"),
        ({"type": "image", "url": "https://x.example/a.png"}, "[image] https://x.example/a.png"),
        ({"type": "file", "url": "https://x.example/a", "name": "a.pdf"}, "[file:a.pdf] https://x.example/a"),
    ],
)
def test_message_as_text(message: Json, text: str) -> None:
    assert event(message=message).message.as_text() == text
