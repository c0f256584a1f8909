"""Celery's task message (protocol 2) in kombu's envelope for virtual transports.

Producers write it without Celery: there is no ``saferepr`` and no connection pool, and one script can store a
call and queue its message. Sources: Celery documentation "Message Protocol", celery/app/amqp.py
``as_task_v2``, kombu/transport/virtual/base.py ``prepare_message``.
"""

import base64
import bz2
import functools
import json
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from broker_config import serializer
from broker_config.serializer import quote

#: the header ``origin`` of messages whose calls have a record; that of plain Celery names a process and host
ORIGIN = "goondan"
#: values of body_encoding that mean plain text
_PLAIN = ("", "utf-8")

#: the maximum size of a decompressed body; a compressed one may be 1,000 times smaller, or less
LONGEST_BODY = 64 * 2**20

#: the types of fields that Celery, kombu and Flower do not check; a field of another type is removed
_TEXTS = (
    "argsrepr", "eta", "expires", "group", "kwargsrepr", "lang", "origin", "parent_id", "root_id", "shadow",
    "traceparent", "tracestate", "baggage",
)  # fmt: skip
_KINDS: Mapping[str, type] = {
    **dict.fromkeys(_TEXTS, str),
    "group_index": int,
    "replaced_task_nesting": int,
    "retries": int,
    "stamped_headers": list,
    "stamps": dict,
    "timelimit": list,
}
_PROPERTIES: Mapping[str, type] = {"correlation_id": str, "reply_to": str, "priority": int}


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


#: by the names in kombu/compression.py
_DECOMPRESSORS: Mapping[str, Callable[[], _Decompressor]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    # the message chooses the size of its dictionary
    "application/x-lzma": functools.partial(lzma.LZMADecompressor, memlimit=2 * LONGEST_BODY),
}


def read_envelope(data: bytes, queue: str) -> dict[str, Any]:
    """Read a task message from ``queue``; the worker reads its body.

    kombu and Celery do not check what is checked here: a bad message would end this worker, and then the next
    one that gets it. The message's own routing key is replaced by the queue from which it came.

    Raises:
        ValueError: it is not a task message; the text says why.
    """
    try:
        return _envelope_of(serializer.parse_text(data.decode()), data, queue)
    except RecursionError as error:  # also of json.dumps below, which needs more depth than reading
        raise ValueError("it is nested too deeply") from error
    except MemoryError as error:
        raise ValueError("it takes more memory than there is") from error


def _envelope_of(message: Any, data: bytes, queue: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError("it is not an object")
    properties, headers = (_object(message, name) for name in ("properties", "headers"))
    if rb"\ud" in data or rb"\uD" in data:  # a lone surrogate could not be encoded again
        _leave_out_unsendable(headers)
        _leave_out_unsendable(properties)
    if not isinstance(headers.get("task"), str):
        raise ValueError("its headers name no task")
    for name in ("body", "content-type", "content-encoding"):
        if not isinstance(message.get(name), str | None):
            raise ValueError(f"its {name} is not text")
    if not message.get("body"):
        raise ValueError("it has no body")
    _leave_out(headers, _KINDS)
    _leave_out(properties, _PROPERTIES)
    encoding = properties.pop("body_encoding", None) or ""
    if encoding not in _PLAIN:
        message["body"] = _decoded(message["body"], encoding)
    if "compression" in headers:
        message["body"] = _decompressed(message["body"], headers.pop("compression"))
    properties["delivery_info"] = {"exchange": "", "routing_key": queue}
    return message


def read_body(envelope: Mapping[str, Any]) -> list[Any]:
    """Read a message's body, ``[args, kwargs, embed]``.

    kombu's decoder would turn ``{"__type__": …, "__value__": …}`` into other types, and refuse unknown ones:
    a model's arguments could change, or their call could be lost.

    Raises:
        ValueError: it is not such a list in JSON; the text says why.
    """
    kind = envelope.get("content-type")
    if kind != "application/json":
        raise ValueError(f"its content type is {kind!r:.200}, and only application/json is read")
    body = serializer.decode(envelope["body"])
    if not isinstance(body, list) or len(body) != 3:
        raise ValueError("its body is not [args, kwargs, embed]")
    return body


def _object(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"it has no {name}")
    return value


def _leave_out(fields: dict[str, Any], kinds: Mapping[str, type]) -> None:
    for name, kind in kinds.items():
        value = fields.get(name)
        if value is not None and value.__class__ is not kind:  # JSON has no subclasses
            del fields[name]


def _leave_out_unsendable(fields: dict[str, Any]) -> None:
    for name in list(fields):
        try:
            json.dumps([name, fields[name]], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            del fields[name]


def _decoded(body: str, encoding: Any) -> bytes:
    if encoding != "base64":
        raise ValueError(f"its body has the encoding {encoding!r}")
    return base64.b64decode(body)


def _decompressed(body: str | bytes, compression: Any) -> bytes:
    make = _DECOMPRESSORS.get(compression) if isinstance(compression, str) else None
    if make is None or isinstance(body, str):
        raise ValueError(f"its body has the compression {compression!r}")
    try:
        text = make().decompress(body, LONGEST_BODY + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"its body cannot be decompressed: {error}") from error
    if len(text) > LONGEST_BODY:
        raise ValueError(f"its body takes more than {LONGEST_BODY:,} bytes")
    return text


class TaskMessage(NamedTuple):
    """A task for the consumers of ``queue``."""

    task: str
    task_id: str
    queue: str
    #: a JSON object
    kwargs: bytes
    #: the name that Flower shows instead of ``task``'s
    shadow: str | None = None
    #: the arguments as Flower shows them
    kwargsrepr: str = ""
    origin: str = ORIGIN
    root_id: str | None = None
    parent_id: str | None = None
    #: the W3C trace context header, for systems that join the trace
    traceparent: str | None = None
    #: ``tracestate`` and ``baggage``, which go with it
    trace_context: Mapping[str, str] | None = None

    @property
    def headers(self) -> dict[str, Any]:
        """The task headers of protocol 2."""
        tracing = {} if self.traceparent is None else {"traceparent": self.traceparent}
        return {
            "lang": "py",
            "task": self.task,
            "id": self.task_id,
            "shadow": self.shadow,
            "root_id": self.root_id or self.task_id,
            "parent_id": self.parent_id,
            "kwargsrepr": self.kwargsrepr,
            "origin": self.origin,
            **tracing,
            **(self.trace_context or {}),
            **_COMMON_HEADERS,
        }

    @property
    def body(self) -> bytes:
        """The body: ``[args, kwargs, embed]``."""
        return b'[[],%b,{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]' % self.kwargs

    def to_redis(self) -> bytes:
        """Return the message for the queue's Redis list. ``claim_on_reserve.lua`` reads its beginning."""
        headers = (
            f'"task":{quote(self.task)},"id":{quote(self.task_id)},"shadow":{_text(self.shadow)},'
            f'"root_id":{quote(self.root_id or self.task_id)},"parent_id":{_text(self.parent_id)},'
            f'"kwargsrepr":{quote(self.kwargsrepr)},"origin":{quote(self.origin)}'
        )
        if self.traceparent is not None:
            headers = f'{headers},"traceparent":{quote(self.traceparent)}'
        if self.trace_context is not None:
            for name, text in self.trace_context.items():
                headers = f'{headers},"{name}":{quote(text)}'
        body, task_id = quote(self.body.decode()), quote(self.task_id)
        tag = os.urandom(16).hex()
        return (_ENVELOPE % (headers, body, task_id, quote(self.queue), tag)).encode()


def _text(value: str | None) -> str:
    return "null" if value is None else quote(value)


#: the headers that are the same in all messages
_COMMON_HEADERS: dict[str, Any] = {
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "()",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}

#: without body_encoding, kombu uses the body as it is
_ENVELOPE = (
    '{"headers":{"lang":"py",%s,'
    + serializer.encode(_COMMON_HEADERS)[1:-1].decode()
    + '},"body":%s,"content-encoding":"utf-8","content-type":"application/json",'
    '"properties":{"correlation_id":%s,"reply_to":"","delivery_mode":2,'
    '"delivery_info":{"exchange":"","routing_key":%s},"priority":0,"delivery_tag":"%s"}}'
)
