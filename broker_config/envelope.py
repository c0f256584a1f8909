"""kombu's envelope around a message, whoever has written it (kombu/transport/virtual/base.py ``Message``)."""

import base64
import bz2
import functools
import json
import lzma
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

#: names of an encoding of the body that leaves it as it is
_PLAIN = ("", "utf-8")

#: the longest body that a compressed one may become: some 1,000 times longer than it is, or far more
LONGEST_BODY = 64 * 2**20

#: what Celery, kombu and Flower read without looking, and what it must be; what is something else is left out
_TEXTS = (
    "argsrepr", "eta", "expires", "group", "kwargsrepr", "lang", "origin", "parent_id", "root_id", "shadow",
    "traceparent",
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


#: by the names that kombu gives them (kombu/compression.py)
_DECOMPRESSORS: Mapping[str, Callable[[], _Decompressor]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    # its dictionary is as large as the message says
    "application/x-lzma": functools.partial(lzma.LZMADecompressor, memlimit=2 * LONGEST_BODY),
}


def read_envelope(data: bytes, queue: str) -> dict[str, Any]:
    """Read a task message that came by ``queue``; the body inside is read by the worker.

    kombu and Celery take for granted what is looked at here: one message without it would end the worker, and
    after that the next one. By which queue it came is not for the producer to say.

    Raises:
        ValueError: it is no task message; the message says why.
    """
    try:
        return _envelope_of(_read(data.decode()), data, queue)
    except RecursionError as error:  # to write something takes more depth than to read it
        raise ValueError("it is nested too deeply") from error
    except MemoryError as error:
        raise ValueError("it takes more memory than there is") from error


def _envelope_of(message: Any, data: bytes, queue: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError("it is no object")
    properties, headers = (_object(message, name) for name in ("properties", "headers"))
    if rb"\ud" in data or rb"\uD" in data:  # there may be half a character, which nobody can send on
        _leave_out_unsendable(headers)
        _leave_out_unsendable(properties)
    if not isinstance(headers.get("task"), str):
        raise ValueError("its headers name no task")
    for name in ("body", "content-type", "content-encoding"):
        if not isinstance(message.get(name), str | None):
            raise ValueError(f"its {name} is no text")
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


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


# made once: json.loads makes a new one for every call with options
_read = json.JSONDecoder(parse_constant=_refuse_constant).decode


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
