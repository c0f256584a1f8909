"""kombu's envelope around a message, whoever has written it (kombu/transport/virtual/base.py ``Message``)."""

import base64
import json
from collections.abc import Mapping
from typing import Any

#: names of an encoding of the body that leaves it as it is
_PLAIN = ("", "utf-8")


def read_envelope(data: bytes, queue: str) -> dict[str, Any]:
    """Read a task message that came by ``queue``; the body inside is read by the worker.

    kombu and Celery take for granted what is looked at here: one message without it would end the worker, and
    after that the next one. By which queue it came is not for the producer to say.

    Raises:
        ValueError: it is no task message; the message says why.
    """
    try:
        message = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError("it is no object")
    properties, headers = (_object(message, name) for name in ("properties", "headers"))
    if not isinstance(headers.get("task"), str):
        raise ValueError("its headers name no task")
    for name in ("body", "content-type", "content-encoding"):
        if not isinstance(message.get(name), str | None):
            raise ValueError(f"its {name} is no text")
    encoding = properties.pop("body_encoding", None) or ""
    if encoding not in _PLAIN:
        message["body"] = _decoded(message.get("body") or "", encoding)
    properties["delivery_info"] = {"exchange": "", "routing_key": queue}
    return message


def _object(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"it has no {name}")
    return value


def _decoded(body: str, encoding: Any) -> bytes:
    if encoding != "base64":
        raise ValueError(f"its body has the encoding {encoding!r}")
    return base64.b64decode(body)
