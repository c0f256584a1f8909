"""The JSON on the wire: strict on the way out, plain on the way in."""

import itertools
import json
import re
from array import array
from collections.abc import Callable
from typing import Any

#: Levels of a value from outside; a record has a few more around it. Each Python must be able to read it: the
#: limit of 3.11 itself is about 900, and half of that where our code walks through a value; of 3.14, 60,000.
DEEPEST = 256

_NEITHER_BRACKET_NOR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))
_TEXTS = re.compile(rb'"[^"]*"')
#: each bracket as a step up or down, a signed byte
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


class NotJsonError(ValueError):
    """A value has no JSON form, or a text is not JSON; the message says why."""


def encode(value: Any, deepest: int | None = None) -> bytes:
    """Write ``value`` as compact UTF-8 JSON; what comes from outside, with :data:`DEEPEST`.

    Raises:
        NotJsonError: it holds NaN, Infinity, a lone surrogate, a foreign type, a cycle, or has more
            levels than ``deepest``, or than Python can write.
    """
    try:
        data = _write(value).encode("utf-8")
    except RecursionError as error:
        raise NotJsonError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise NotJsonError(f"text holds a lone surrogate ({error.object[error.start]!a})") from error
    except (TypeError, ValueError) as error:
        raise NotJsonError(str(error)) from error
    if deepest is not None and data.count(b"[") + data.count(b"{") > deepest and _depth(data) > deepest:
        raise NotJsonError(f"nested too deeply: {deepest} levels are allowed")
    return data


def _depth(data: bytes) -> int:
    """Return the number of levels of what :func:`encode` wrote, in a small part of the time that took."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NEITHER_BRACKET_NOR_QUOTE)
    brackets = _TEXTS.sub(b"", plain.replace(b'""', b""))  # between texts, too: two become one
    return max(itertools.accumulate(array("b", brackets.translate(_STEPS))), default=0)


def decode(data: str | bytes | bytearray | memoryview) -> Any:
    """Read JSON as it stands: every object stays a dict, integers keep all their digits.

    Raises:
        NotJsonError: ``data`` is not JSON by RFC 8259, or nested too deeply.
    """
    text = data if isinstance(data, str) else bytes(data)
    try:
        value = _read(text if isinstance(text, str) else _text_of(text))
    except RecursionError as error:
        raise NotJsonError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise NotJsonError(_place_and_reason(error)) from error
    except ValueError as error:
        raise NotJsonError(str(error)) from error
    if (r"\u" if isinstance(text, str) else rb"\u") in text:  # type: ignore[operator]
        encode(value)  # only an escape can smuggle in a lone surrogate
    return value


#: what Python's reader says, in our words
_REASONS = {
    "Expecting value": "a value belongs here",
    "Expecting property name enclosed in double quotes": "a name in double quotes belongs here",
    "Expecting ':' delimiter": "a colon belongs here",
    "Expecting ',' delimiter": "a comma belongs here",
    "Extra data": "the document ends before this",
    "Unterminated string starting at": "this text has no closing quote",
    "Invalid control character at": "a control character must be written as an escape",
    "Illegal trailing comma before end of object": "no comma may stand before the end",
    "Illegal trailing comma before end of array": "no comma may stand before the end",
}


def _place_and_reason(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return "it is empty"
    return f"line {error.lineno}, column {error.colno}: {_REASONS.get(error.msg, error.msg)}"


def _text_of(data: bytes) -> str:
    return data.decode(json.detect_encoding(data), "surrogatepass")  # as json.loads does


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


# made once: json.dumps and json.loads make a new one for every call with options
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
#: writes one text as JSON, for templates; a lone surrogate stays one, and has no UTF-8 form
quote: Callable[[str], str] = json.encoder.encode_basestring
_read = json.JSONDecoder(parse_constant=_refuse_constant).decode
