"""Messages as a tired or a hostile producer may put them into an agent's queue."""

import base64
import json
import pickle
import zlib
from collections.abc import Iterator
from typing import Any

from broker_config.queues import EVENT_TASK, TOOL_CALL_TASK, events_queue
from broker_config.task_message import LONGEST_BODY, TaskMessage

MISSING = object()


def nested(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


#: what stands where something else belongs
VALUES: dict[str, Any] = {
    "missing": MISSING,
    "null": None,
    "empty": "",
    "zero": 0,
    "negative": -1,
    "nan": float("nan"),
    "infinite": float("inf"),
    "many digits": 10**400,
    "true": True,
    "list": [],
    "object": {},
    "list of objects": [{"task": "x", "args": None}],
    "nested": nested(400),
    "text": "zzz",
    "long": "x" * 200_000,
    "nul": "\x00\n\x1b[2J",
    "half a character": "\ud800",
    "date": "2001-12-31T23:59:59+14:00",
    "other date": "0000-00-00",
}

HEADERS = (
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries", "timelimit"),
    *("root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting"),
    *("stamped_headers", "stamps", "compression", "traceparent", "callbacks", "chord"),
)
PROPERTIES = (
    *("correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority", "delivery_tag"),
    *("body_encoding", "companion"),
)
EMBEDDED = ("callbacks", "errbacks", "chain", "chord")


def envelope(queue: str, number: int) -> dict[str, Any]:
    """Return a good message, but for a call that names no tool."""
    task = EVENT_TASK if queue == events_queue("smith") else TOOL_CALL_TASK
    kwargs: dict[str, Any] = {"message" if task == EVENT_TASK else "call": {}}
    message = TaskMessage(task, f"bad-{number}", queue, json.dumps(kwargs).encode(), kwargsrepr="{}")
    written: dict[str, Any] = json.loads(message.to_redis())
    return written


def changed(where: dict[str, Any], name: str, value: Any) -> None:
    """Change one field, or take it away."""
    if value is MISSING:
        where.pop(name, None)
    else:
        where[name] = value


def bad_messages(queue: str) -> Iterator[tuple[str, bytes]]:
    """Yield messages for a queue, each with what is wrong with it."""
    yield from _raw()
    number = 0
    for part, names in (
        ("", ("headers", "properties", "body", "content-type", "content-encoding")),
        ("headers", HEADERS),
        ("properties", PROPERTIES),
    ):
        for name in names:
            for kind, value in VALUES.items():
                number += 1
                message = envelope(queue, number)
                changed(message[part] if part else message, name, value)
                yield f"{part or 'message'}.{name} {kind}", json.dumps(message).encode()
    for kind, body in _bodies():
        for task in (None, "no.such.task", "celery.chord_unlock", "celery.map", "celery.accumulate"):
            number += 1
            message = envelope(queue, number)
            changed(message, "body", body)
            message["headers"]["task"] = task or message["headers"]["task"]
            yield f"{task} with body {kind}", json.dumps(message).encode()
    yield from _encoded(queue)
    yield from _first_protocol(queue)


def _raw() -> Iterator[tuple[str, bytes]]:
    for kind, data in {
        "empty": b"",
        "not JSON": b"hello",
        "not UTF-8": b"\xff\xfe{}",
        "UTF-16": '{"headers": {}}'.encode("utf-16"),
        "NUL": b"\x00" * 1000,
        "number": b"7",
        "null": b"null",
        "list": b"[]",
        "deep": b"[" * 100_000,
        "digits": b"9" * 5_000,
        "pickle": pickle.dumps({"task": "x"}),
        "large": b'{"x": "' + b"y" * 5_000_000 + b'"}',
        "cut": json.dumps({"headers": {"task": "goondan.tool_call"}}).encode()[:-5],
    }.items():
        yield f"raw {kind}", data


def _bodies() -> Iterator[tuple[str, Any]]:
    yield from (("missing", MISSING), ("null", None), ("empty", ""), ("number", 5), ("object", {}))
    call: dict[str, Any] = {"call": {}, "message": {}}
    for kind, text in {
        "not JSON": "hello",
        "JSON null": "null",
        "object": "{}",
        "one": "[[]]",
        "four": "[[], {}, {}, {}]",
        "kwargs null": "[[], null, {}]",
        "args object": json.dumps([{}, call, {}]),
        "embed null": json.dumps([[], call, None]),
        "embed list": json.dumps([[], call, [1]]),
        "first protocol": json.dumps({"args": [], "kwargs": {}}),
        "args deep": "[" * 5_000 + "]" * 5_000,
    }.items():
        yield kind, text
    for name in EMBEDDED:
        for kind, value in {"text": "x", "list": [1], "object": {"task": 1}, "true": True}.items():
            yield f"embed.{name} {kind}", json.dumps([[], call, {name: value}])


def _encoded(queue: str) -> Iterator[tuple[str, bytes]]:
    good = envelope(queue, 0)["body"].encode()
    bomb = b"[" + b" " * LONGEST_BODY + b"]"
    for kind, body, compression in (
        ("base64 that is none", "!!!", None),
        ("base64 cut", "YWJ", None),
        ("gzip that is none", base64.b64encode(b"abc").decode(), "application/x-gzip"),
        ("gzip bomb", base64.b64encode(zlib.compress(bomb)).decode(), "application/x-gzip"),
        ("unknown compression", base64.b64encode(good).decode(), "application/x-rar"),
        ("compressed text", "abc", "application/x-gzip"),
    ):
        message = envelope(queue, 0)
        message["body"] = body
        message["properties"]["body_encoding"] = "base64"
        if compression is not None:
            message["headers"]["compression"] = compression
        yield f"body {kind}", json.dumps(message).encode()
    for content_type in ("application/x-python-serialize", "application/x-yaml", "text/plain", "x"):
        message = envelope(queue, 0)
        message["content-type"] = content_type
        message["body"] = base64.b64encode(pickle.dumps({"x": 1})).decode()
        message["properties"]["body_encoding"] = "base64"
        yield f"pickled as {content_type}", json.dumps(message).encode()


def _first_protocol(queue: str) -> Iterator[tuple[str, bytes]]:
    for name in ("task", "id", "args", "kwargs", "eta", "expires", "retries", "callbacks", "taskset", "utc"):
        for kind, value in VALUES.items():
            message = envelope(queue, 0)
            body = {"task": message["headers"]["task"], "id": "one", "args": [], "kwargs": {}, "retries": 0}
            changed(body, name, value)
            message["headers"] = {}
            message["body"] = json.dumps(body)
            yield f"first protocol {name} {kind}", json.dumps(message).encode()
