"""Receives signed requests of any program, CloudEvents among them.

========================================  ==========================================================
``verify.webhook.signingSecret``          the secret that both sides know
config ``SCHEME``                         how requests are signed, as ``ctx.verify`` knows it; default
                                          ``github``: ``X-Hub-Signature-256: sha256=<HMAC of the body>``
config ``HEADER``                         the header with the signature, if it is another one
========================================  ==========================================================

A CloudEvent (1.0.2) comes in structured, batched or binary mode. Its ``source`` and ``id`` are the event's
id, its ``type`` is the name, its ``subject`` the instance, its data the message, and its attributes are the
properties. A signature is that of the body: in binary mode it does not cover the attributes, which are
headers.

Any other JSON object is an event ``webhook_message``. It may have the fields ``id``, ``name``, ``message``
(or ``text``), ``properties`` and ``instanceKey``.
Source: https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
"""

import base64
import binascii
import json
from typing import Any
from urllib.parse import unquote

from goondan_tasks.connector_api import ConnectorContext, HttpRequest
from goondan_tasks.errors import WebhookRefusedError

REQUIRED = ("id", "source", "type")
#: attributes that are no properties
TAKEN = {"id", "specversion", "data", "data_base64", "datacontenttype"}


async def connect(ctx: ConnectorContext) -> None:
    """Answer requests until the process ends."""

    async def answer(request: HttpRequest) -> dict[str, Any]:
        scheme: Any = ctx.config.get("SCHEME", "github")
        ctx.verify(request, scheme, header=ctx.config.get("HEADER"))
        events = events_of(request, f"webhook:{ctx.connection_name}")
        for event in events:
            await ctx.emit(event)
        return {"ok": True, "events": len(events)}

    await ctx.http(answer)


def events_of(request: HttpRequest, instance: str) -> list[dict[str, Any]]:
    """Return the events in a request; those that name no instance go to ``instance``.

    Raises:
        WebhookRefusedError: the request is none of those that the module describes.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/cloudevents-batch+json":
        batch = request.json()
        return [_cloud_event(one, instance) for one in (batch if isinstance(batch, list) else [batch])]
    if kind == "application/cloudevents+json":
        return [_cloud_event(request.json(), instance)]
    if kind.startswith("application/cloudevents"):
        raise WebhookRefusedError(f"{kind} cannot be read; send JSON.", status=415)
    if "ce-specversion" in request.headers:
        attributes: dict[str, Any] = {
            name[3:]: unquote(value) for name, value in request.headers.items() if name.startswith("ce-")
        }
        return [_cloud_event({**attributes, "data": _data(request.body, kind)}, instance)]
    return [_plain(request.json(), instance)]


def _cloud_event(event: Any, instance: str) -> dict[str, Any]:
    if not isinstance(event, dict) or event.get("specversion") != "1.0":
        raise WebhookRefusedError("That is not a CloudEvent of the version 1.0.", status=400)
    if missing := [name for name in REQUIRED if not isinstance(event.get(name), str) or not event[name]]:
        raise WebhookRefusedError(f"The CloudEvent has no {' and no '.join(missing)}.", status=400)
    data, kind = event.get("data"), event.get("datacontenttype") or ""
    if not isinstance(kind, str):
        raise WebhookRefusedError("The CloudEvent's datacontenttype is not a text.", status=400)
    if event.get("data_base64") is not None:  # null stands for an attribute that is not set
        try:
            data = _data(base64.b64decode(event["data_base64"], validate=True), kind)
        except (binascii.Error, TypeError, ValueError) as error:
            raise WebhookRefusedError(f"data_base64 cannot be read: {error}.", status=400) from error
    return {
        "id": f"{event['source']} {event['id']}",
        "name": event["type"],
        "message": _message(data),
        "properties": {name: value for name, value in event.items() if name not in TAKEN},
        "instanceKey": event.get("subject") or instance,
    }


def _plain(body: Any, instance: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise WebhookRefusedError("The body is not an object.", status=400)
    message = body.get("message", body.get("text", body))
    is_whole = isinstance(message, dict) and message is not body
    return {
        "id": body.get("id"),
        "name": body.get("name", "webhook_message"),
        "message": message if is_whole else _message(message),
        "properties": body.get("properties", {}),
        "instanceKey": body.get("instanceKey", instance),
    }


def _message(data: Any) -> dict[str, Any]:
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return {"type": "text", "text": "" if data is None else text}


def _data(body: bytes, kind: str) -> Any:
    """Return the data of an event whose content type is ``kind``: JSON, or a text."""
    try:
        text = body.decode()
        return (
            json.loads(text)
            if text and kind.partition(";")[0].rstrip().endswith(("/json", "+json"))
            else text
        )
    except (ValueError, RecursionError) as error:
        raise WebhookRefusedError(
            f"The data of the event is neither text nor JSON: {error}.", status=400
        ) from error
