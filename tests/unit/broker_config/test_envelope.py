"""Messages as anybody may have written them."""

import json
from typing import Any

import pytest

from broker_config.envelope import read_envelope
from broker_config.task_message import TaskMessage

MESSAGE = TaskMessage("goondan.tool_call", "call-1", "agent.coder", b'{"call":{}}')
WRITTEN: dict[str, Any] = json.loads(MESSAGE.to_redis())


def changed(**fields: Any) -> bytes:
    return json.dumps({**WRITTEN, **fields}).encode()


def test_a_message_is_read_as_it_was_written_but_for_the_queue_that_it_names() -> None:
    message = read_envelope(MESSAGE.to_redis(), "agent.painter")
    assert (message["headers"], message["body"]) == (WRITTEN["headers"], WRITTEN["body"])
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "agent.painter"}


def test_a_body_in_base64_is_decoded_once() -> None:
    properties = {**WRITTEN["properties"], "body_encoding": "base64"}
    message = read_envelope(changed(body="W10=", properties=properties), "agent.coder")
    assert message["body"] == b"[]"
    assert "body_encoding" not in message["properties"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "no object"),
        (changed(headers=None), "no headers"),
        (changed(properties="x"), "no properties"),
        (changed(headers={"id": "call-1"}), "name no task"),
        (changed(headers={"task": ["goondan.tool_call"]}), "name no task"),
        (changed(body=10**9), "body is no text"),
        (changed(**{"content-encoding": 8}), "content-encoding is no text"),
        (changed(**{"content-type": {}}), "content-type is no text"),
        (changed(properties={"body_encoding": "rot13"}), "encoding 'rot13'"),
        (changed(properties={"body_encoding": ["base64"]}), "encoding"),
        (changed(properties={"body_encoding": "base64"}, body="YQ"), "padding"),
        (changed(properties={"body_encoding": "base64"}, body="é"), "ASCII"),
    ],
)
def test_what_would_end_a_worker_is_no_message(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_envelope(data, "agent.coder")
