"""What connectors of the older versions emit, read as events of today."""

from typing import Any

import pytest
from pydantic import ValidationError

from goondan_tasks.bundle.v1_connectors import PathRule
from goondan_tasks.connectors.canonical_events import CanonicalEvents, Members
from goondan_tasks.connectors.declared_events import DeclaredEvents
from goondan_tasks.contract.errors import ConnectorError

Json = dict[str, Any]
SWARMS = {
    "default": Members("planner", frozenset({"planner", "coder"})),
    "other": Members("clerk", frozenset({"clerk"})),
}


def declared(**fields: Any) -> Json:
    text = {"type": "text", "text": "hi"}
    return {"type": "connector.event", "name": "note", "message": text, **fields}


@pytest.mark.parametrize(
    ("event", "payload", "instance"),
    [
        ({}, None, "main"),
        ({}, {"text": "hi", "instanceKey": "terminal"}, "terminal"),
        ({"properties": {"instanceKey": "session"}}, {"instanceKey": "terminal"}, "session"),
        ({"instanceKey": "own", "properties": {"instanceKey": "session"}}, None, "own"),
        ({"properties": {"instanceKey": 7}}, None, "main"),
    ],
)
def test_instance_of_declared_event(event: Json, payload: Any, instance: str) -> None:
    emitted = DeclaredEvents("main")({"event": declared(**event), "payload": payload, "id": "cron:0:1"})
    assert emitted.event.instance_key == instance
    assert emitted.event.id == "cron:0:1"


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "event"},
        {"name": ""},
        {"message": "hi"},
        {"message": {"type": "image", "url": "u"}},
        {"message": {"type": "file", "data": "YQ=="}},
        {"properties": []},
        {"auth": "ann"},
    ],
)
def test_declared_event_that_is_not_valid_is_refused(fields: Json) -> None:
    with pytest.raises(ValidationError):
        DeclaredEvents("main")(declared(**fields))


@pytest.mark.parametrize(
    "auth", [None, {}, {"subjects": {"global": "slack:team:T1"}}, {"subjects": {"user": ""}}]
)
def test_event_without_oauth_apps_subject_is_refused(auth: Any) -> None:
    with pytest.raises(ConnectorError, match=r"auth\.subjects\.user"):
        DeclaredEvents("main", "user")(declared(auth=auth))
    whole = {"actor": {"id": "slack:U1"}, "subjects": {"user": "slack:user:T1:U1"}}
    assert DeclaredEvents("main", "user")(declared(auth=whole)).event.auth == whole


def rule(match: Json | None = None, **route: Any) -> PathRule:
    return PathRule.model_validate({"match": match or {}, "route": {"swarmRef": "Swarm/default", **route}})


def read(event: Json, payload: Any = None, *rules: PathRule) -> tuple[str, str, str, int | None]:
    emitted = CanonicalEvents("main", rules, SWARMS)({"event": event, "payload": payload, "id": None})
    assert emitted.destination is not None
    to = emitted.destination
    assert to.instance_key == emitted.event.instance_key
    return to.agent, to.instance_key, emitted.event.message.as_text(), to.rule


WHOLE = {"type": "cron", "swarmRef": "Swarm/default", "instanceKey": "k", "input": "go"}
SLACK = {"event": {"type": "app_mention", "channel": "C1", "thread_ts": 17, "text": "hello"}}


@pytest.mark.parametrize(
    ("event", "payload", "rules", "expected"),
    [
        # an event that says everything: no rule is asked
        (WHOLE, None, [], ("planner", "k", "go", None)),
        ({**WHOLE, "agentName": "coder"}, None, [], ("coder", "k", "go", None)),
        ({**WHOLE, "swarmRef": {"kind": "Swarm", "name": "other"}}, None, [], ("clerk", "k", "go", None)),
        ({**WHOLE, "input": ""}, None, [rule(agentName="coder")], ("planner", "k", "", None)),
        # the first rule that matches fills in what is missing
        (
            {},
            SLACK,
            [rule(instanceKeyFrom="$.event.thread_ts", inputFrom="$.event.text")],
            ("planner", "17", "hello", 0),
        ),
        (
            {},
            {"body": SLACK},
            [rule(instanceKeyFrom="$.event.thread_ts", inputFrom="$.event.text")],
            ("planner", "17", "hello", 0),
        ),
        (
            {},
            {"body": {"message": "m"}, "requestId": "r"},
            [rule(instanceKeyFrom="$.requestId", inputFrom="$.body.message")],
            ("planner", "r", "m", 0),
        ),
        (
            {},
            SLACK,
            [
                rule({"command": "/agent"}),
                rule({"eventType": "app_mention", "channel": "C1"}, agentName="coder"),
            ],
            (
                "coder",
                "main",
                '{"event":{"type":"app_mention","channel":"C1","thread_ts":17,"text":"hello"}}',
                1,
            ),
        ),
        (
            {},
            SLACK,
            [rule({"eventType": "app_mention", "channel": "C2"}), rule()],
            (
                "planner",
                "main",
                '{"event":{"type":"app_mention","channel":"C1","thread_ts":17,"text":"hello"}}',
                1,
            ),
        ),
        (
            {"type": "webhook"},
            {"a": 1},
            [rule({"eventType": "webhook"}, inputFrom="$.a")],
            ("planner", "main", "1", 0),
        ),
        (
            {"instanceKey": "own"},
            SLACK,
            [rule(instanceKeyFrom="$.event.thread_ts", inputFrom="$.event.text")],
            ("planner", "own", "hello", 0),
        ),
        # a path that leads nowhere
        (
            {},
            {"text": "t"},
            [rule(instanceKeyFrom="$.event.ts", inputFrom="$.text")],
            ("planner", "main", "t", 0),
        ),
    ],
)
def test_where_canonical_event_goes(event: Json, payload: Any, rules: list[PathRule], expected: Any) -> None:
    assert read(event, payload, *rules) == expected


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({}, "No rule of the Connector matches"),
        ({**WHOLE, "swarmRef": "Swarm/default2"}, "no Swarm 'default2'"),
        ({**WHOLE, "swarmRef": "default"}, "swarmRef"),
        ({**WHOLE, "agentName": "clerk"}, "'clerk' is not an agent of the Swarm 'default'"),
    ],
)
def test_canonical_event_that_leads_nowhere_is_refused(event: Json, words: str) -> None:
    with pytest.raises(ConnectorError, match=words):
        read(event, {}, rule({"command": "/agent"}))
