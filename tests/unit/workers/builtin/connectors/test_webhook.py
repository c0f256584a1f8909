"""The built-in connector `webhook`: CloudEvents in each mode, and plain JSON."""

import base64
import json
from typing import Any

import pytest

from goondan_tasks.contract.errors import ConnectorError, WebhookRefusedError
from tests.unit.workers.builtin.connectors.contexts import FakeContext, serving, signature
from workers.builtin.connectors.webhook import connect

#: the example of the specification (1.0.2, §3.2.4), with a subject
CLOUD_EVENT = {
    "specversion": "1.0",
    "type": "com.example.someevent",
    "time": "2018-04-05T03:56:24Z",
    "id": "1234-1234-1234",
    "source": "/mycontext/subcontext",
    "subject": "order-7",
    "comexampleextension": 3,
    "datacontenttype": "application/json",
    "data": {"total": 12},
}
STRUCTURED = "application/cloudevents+json; charset=UTF-8"


def post(ctx: FakeContext, content: Any, kind: str = "application/json", **headers: str) -> Any:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    signed = {"content-type": kind, "x-hub-signature-256": "sha256=" + signature(data)}
    return ctx.post(data, {**signed, **{name.replace("_", "-"): text for name, text in headers.items()}})


BINARY = {
    "ce_specversion": "1.0",
    "ce_type": "com.example.someevent",
    "ce_time": "2018-04-05T03:56:24Z",
    "ce_id": "1234-1234-1234",
    "ce_source": "/mycontext/subcontext",
    "ce_subject": "order-7",
    "ce_comexampleextension": "3",
}


def structured(ctx: FakeContext) -> None:
    post(ctx, CLOUD_EVENT, STRUCTURED)


def binary(ctx: FakeContext) -> None:
    post(ctx, {"total": 12}, **BINARY)


def batched(ctx: FakeContext) -> None:
    post(ctx, [CLOUD_EVENT], "application/cloudevents-batch+json")


@pytest.mark.parametrize("send", [structured, binary, batched])
def test_cloud_event_is_same_in_each_mode(send: Any) -> None:
    ctx = serving(connect)
    send(ctx)

    [event] = ctx.events
    assert event.to_wire() == {
        "id": "/mycontext/subcontext 1234-1234-1234",
        "name": "com.example.someevent",
        "message": {"type": "text", "text": '{"total": 12}'},
        "properties": {
            "source": "/mycontext/subcontext", "type": "com.example.someevent", "subject": "order-7",
            "time": "2018-04-05T03:56:24Z", "comexampleextension": "3",
        },
        "instanceKey": "order-7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"data": "plain", "datacontenttype": "text/plain"}, "plain"),
        ({"data": None}, ""),
        ({"data": "plain", "data_base64": None, "datacontenttype": None}, "plain"),
        ({"data_base64": base64.b64encode(b"plain").decode(), "datacontenttype": None}, "plain"),
        ({"data_base64": base64.b64encode(b"plain").decode(), "datacontenttype": "text/plain"}, "plain"),
        ({"data_base64": base64.b64encode(b'{"a":1}').decode()}, '{"a": 1}'),
    ],
)
def test_data_is_message(changed: dict[str, Any], text: str) -> None:
    ctx = serving(connect)
    post(ctx, {**CLOUD_EVENT, **changed}, STRUCTURED)

    assert ctx.texts == [text]


def test_text_of_binary_event_is_message() -> None:
    ctx = serving(connect)
    post(ctx, "Grüße".encode(), "text/plain", **{**BINARY, "ce_subject": "Euro%20%E2%82%AC"})

    assert ctx.texts == ["Grüße"]
    assert ctx.events[0].instance_key == "Euro €"


def test_event_without_subject_is_of_connections_instance() -> None:
    ctx = serving(connect)
    post(ctx, {name: value for name, value in CLOUD_EVENT.items() if name != "subject"}, STRUCTURED)

    assert ctx.events[0].instance_key == "webhook:main"


def test_plain_json_is_message() -> None:
    ctx = serving(connect)
    post(ctx, {"id": "7", "name": "order", "text": "hi", "properties": {"size": 3}, "instanceKey": "desk"})
    post(ctx, {"total": 12})

    full, bare = ctx.events
    assert full.to_wire() == {
        "id": "7",
        "name": "order",
        "message": {"type": "text", "text": "hi"},
        "properties": {"size": "3"},
        "instanceKey": "desk",
    }
    assert (bare.name, bare.instance_key, bare.id) == ("webhook_message", "webhook:main", None)
    assert bare.message.as_text() == '{"total": 12}'


def test_signature_may_be_of_another_scheme_and_header() -> None:
    ctx = serving(connect, {"SCHEME": "hmac-hex", "HEADER": "X-Signature"})
    data = b'{"text": "hi"}'
    post(ctx, data, x_signature=signature(data))

    assert ctx.texts == ["hi"]
    with pytest.raises(WebhookRefusedError, match="no signature"):
        post(ctx, data)


@pytest.mark.parametrize(
    ("content", "kind", "headers", "status"),
    [
        (CLOUD_EVENT, STRUCTURED, {"x-hub-signature-256": "sha256=" + "0" * 64}, 401),
        (CLOUD_EVENT, STRUCTURED, {"x-hub-signature-256": ""}, 401),
        ({**CLOUD_EVENT, "specversion": "0.3"}, STRUCTURED, {}, 400),
        ({**CLOUD_EVENT, "id": ""}, STRUCTURED, {}, 400),
        ({**CLOUD_EVENT, "type": None}, STRUCTURED, {}, 400),
        ({**CLOUD_EVENT, "data_base64": "?"}, STRUCTURED, {}, 400),
        ({**CLOUD_EVENT, "datacontenttype": 5}, STRUCTURED, {}, 400),
        ([CLOUD_EVENT], STRUCTURED, {}, 400),
        (b"<xml/>", "application/cloudevents+xml", {}, 415),
        (b"{", "application/json", {}, 400),
        (b"{", "application/json", BINARY, 400),
        ([1], "application/json", {}, 400),
    ],
)
def test_unauthentic_or_malformed_request_is_no_event(
    content: Any, kind: str, headers: dict[str, str], status: int
) -> None:
    ctx = serving(connect)

    with pytest.raises(WebhookRefusedError) as refused:
        post(ctx, content, kind, **headers)
    assert refused.value.status == status
    assert ctx.events == []


def test_event_not_storable_now_must_be_resent() -> None:
    ctx = serving(connect)
    ctx.failure = ConnectorError("Redis is away.", code="E_BROKER_UNREACHABLE")

    with pytest.raises(ConnectorError, match="Redis is away") as failed:
        post(ctx, {"text": "hi"})
    assert not isinstance(failed.value, WebhookRefusedError)
