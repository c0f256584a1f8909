"""The built-in connector `slack`, with requests as Slack documents them."""

import asyncio
import json
import time
from typing import Any

import pytest

from goondan_tasks.contract.errors import ConnectorError, WebhookRefusedError
from tests.unit.workers.builtin.connectors.contexts import FakeContext, serving, signature
from workers.builtin.connectors.slack import connect

MENTION = {
    "type": "app_mention",
    "user": "U061F7AUR",
    "text": "<@U0LAN0Z89> is it everything a river should be?",
    "ts": "1515449522.000016",
    "channel": "C123ABC456",
    "event_ts": "1515449522000016",
}
MESSAGE = {
    "type": "message",
    "channel": "C123ABC456",
    "user": "U2147483697",
    "text": "Hello hello can you hear me?",
    "ts": "1355517523.000005",
    "event_ts": "1355517523.000005",
    "channel_type": "channel",
}
DIRECT = {**MESSAGE, "channel": "D024BE91L", "channel_type": "im"}
BOT = {"enterprise_id": None, "team_id": "T123ABC456", "user_id": "U0LAN0Z89", "is_bot": True}


def body(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "token": "ZZZZZZWSxiZZZ2yIvs3peJ",
        "team_id": "T123ABC456",
        "api_app_id": "A123ABC456",
        "event": event,
        "type": "event_callback",
        "event_id": "Ev123ABC456",
        "event_time": 1234567890,
        "authorizations": [BOT],
        **fields,
    }


def post(ctx: FakeContext, content: Any, *, age: float = 0, **headers: str) -> Any:
    """Send a signed request; ``headers`` replace those of Slack."""
    data, sent_at = json.dumps(content).encode(), str(int(time.time() - age))
    signed = {
        "content-type": "application/json",
        "x-slack-request-timestamp": sent_at,
        "x-slack-signature": "v0=" + signature(f"v0:{sent_at}:".encode() + data),
    }
    return ctx.post(data, {**signed, **headers})


def test_mention_becomes_event_of_its_thread() -> None:
    ctx = serving(connect)

    assert post(ctx, body(MENTION)) == {"ok": True}
    [event] = ctx.events
    assert event.to_wire() == {
        "id": "Ev123ABC456",
        "name": "app_mention",
        "message": {"type": "text", "text": MENTION["text"]},
        "properties": {
            "channel_id": "C123ABC456", "ts": "1515449522.000016", "thread_ts": "1515449522.000016",
            "user_id": "U061F7AUR", "team_id": "T123ABC456",
        },
        "instanceKey": "slack:C123ABC456:1515449522.000016",
        "auth": {
            "actor": {"id": "slack:U061F7AUR"},
            "subjects": {"global": "slack:team:T123ABC456", "user": "slack:user:T123ABC456:U061F7AUR"},
        },
    }  # fmt: skip


def test_answer_in_thread_goes_to_instance_of_thread() -> None:
    ctx = serving(connect)
    post(ctx, body({**MENTION, "thread_ts": "1515449000.000001"}))

    assert ctx.events[0].instance_key == "slack:C123ABC456:1515449000.000001"


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        (None, ["app_mention", "message_im"]),
        ("mention", ["app_mention", "message_im"]),
        ("channel_and_threads", ["app_mention", "message_channel"]),
        ("all", ["app_mention", "message_channel", "message_im"]),
    ],
)
def test_mode_says_which_messages_are_events(mode: str | None, names: list[str]) -> None:
    ctx = serving(connect, {"MODE": mode} if mode else {})
    for event in (MENTION, MESSAGE, DIRECT):
        post(ctx, body(event))

    assert [event.name for event in ctx.events] == names


def test_mention_repeated_as_message_is_one_event() -> None:
    ctx = serving(connect, {"MODE": "all"})
    post(ctx, body(MENTION))
    answer = post(ctx, body({**MESSAGE, "text": MENTION["text"]}, event_id="Ev2"))

    assert answer == {"ok": True, "ignored": True}
    assert [event.name for event in ctx.events] == ["app_mention"]


@pytest.mark.parametrize(
    "event",
    [
        {**DIRECT, "bot_id": "B0123"},
        {**DIRECT, "subtype": "bot_message"},
        {**DIRECT, "subtype": "message_changed"},
        {**DIRECT, "subtype": "channel_join"},
        {**DIRECT, "text": ""},
        {"type": "reaction_added", "user": "U1", "item": {}, "event_ts": "1.2"},
    ],
)
def test_event_without_new_text_of_person_is_ignored(event: dict[str, Any]) -> None:
    ctx = serving(connect, {"MODE": "all"})

    assert post(ctx, body(event)) == {"ok": True, "ignored": True}
    assert ctx.events == []


def test_message_of_files_names_them() -> None:
    ctx = serving(connect)
    post(ctx, body({**DIRECT, "text": "", "subtype": "file_share", "files": [{"name": "a.png"}]}))

    assert ctx.texts == ["[file:a.png]"]


def test_url_is_verified() -> None:
    ctx = serving(connect)
    asked = {
        "token": "Jhj5dZrVaK7ZwHHjRyZWjbDl",
        "challenge": "3eZbrw1aBm2rZgRNFdxV",
        "type": "url_verification",
    }

    assert post(ctx, asked) == {"challenge": "3eZbrw1aBm2rZgRNFdxV"}
    assert ctx.events == []


@pytest.mark.parametrize(
    ("headers", "age", "message"),
    [
        ({"x-slack-signature": "v0=" + "0" * 64}, 0, "does not match"),
        ({"x-slack-signature": ""}, 0, "no signature"),
        ({}, 301, "at most 300 s"),
        ({}, -301, "in the future"),
    ],
)
def test_request_not_from_slack_is_no_event(headers: dict[str, str], age: float, message: str) -> None:
    ctx = serving(connect)

    for content in (body(MENTION), {"type": "url_verification", "challenge": "x"}):
        with pytest.raises(WebhookRefusedError, match=message) as refused:
            post(ctx, content, age=age, **headers)
        assert refused.value.status == 401
    assert ctx.events == []


def test_request_with_altered_signed_time_is_refused() -> None:
    ctx = serving(connect)

    with pytest.raises(WebhookRefusedError, match="does not match"):
        post(ctx, body(MENTION), age=0, **{"x-slack-request-timestamp": str(int(time.time()) + 7)})
    assert ctx.events == []


def test_event_of_another_app_is_refused() -> None:
    ctx = serving(connect, {"APP_ID": "A999"})

    with pytest.raises(WebhookRefusedError, match="another app: A123ABC456") as refused:
        post(ctx, body(MENTION))
    assert refused.value.status == 403
    assert ctx.events == []


@pytest.mark.parametrize("content", [[], {"type": "event_callback", "event": {**DIRECT, "channel": None}}])
def test_signed_nonsense_is_refused(content: Any) -> None:
    ctx = serving(connect)

    with pytest.raises(WebhookRefusedError) as refused:
        post(ctx, content)
    assert refused.value.status == 400


def test_unknown_mode_of_slack_is_reported() -> None:
    with pytest.raises(ConnectorError, match="There is no MODE 'some'"):
        asyncio.run(connect(FakeContext(config={"MODE": "some"})))
