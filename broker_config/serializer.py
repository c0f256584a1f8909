"""Reads and writes the JSON on the wire, strictly by RFC 8259."""

import itertools
import json
import re
from _json import encode_basestring, make_encoder
from array import array
from collections.abc import Callable
from typing import Any

#: How many levels a value from outside may have; records add a few. Every Python version must be able to read
#: it: the limit of 3.11 is about 900, half of that where our code recurses; that of 3.14 is 60,000.
DEEPEST = 256

_NO_BRACKET_OR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))
_TEXTS = re.compile(rb'"[^"]*"')
#: maps brackets to signed bytes, +1 or -1
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


class NotJsonError(ValueError):
    """A value has no JSON form, or a text is not JSON; the message says why."""


class LoneSurrogateError(NotJsonError):
    """A text contains half of a surrogate pair, which has no UTF-8 form."""


def encode(value: Any, deepest: int | None = None, *, repairs: bool = False) -> bytes:
    """Write ``value`` as compact UTF-8 JSON. For values from outside, ``deepest`` should be :data:`DEEPEST`.

    ``repairs`` writes lone surrogates as :func:`well_formed` does.

    Raises:
        LoneSurrogateError: it contains a lone surrogate.
        NotJsonError: it contains NaN, Infinity, another type or a cycle, or it has more levels than
            ``deepest`` or than Python can write.
    """
    try:
        text = _written(value)
        data = (well_formed(text) if repairs else text).encode("utf-8")
    except RecursionError as error:
        raise NotJsonError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise LoneSurrogateError(f"text holds a lone surrogate ({error.object[error.start]!a})") from error
    except (TypeError, ValueError) as error:
        raise NotJsonError(str(error)) from error
    if deepest is not None and data.count(b"[") + data.count(b"{") > deepest and _depth(data) > deepest:
        raise NotJsonError(f"nested too deeply: {deepest} levels are allowed")
    return data


def well_formed(text: str) -> str:
    """Return a text without surrogates: pairs become characters, lone ones U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _depth(data: bytes) -> int:
    """Return the number of levels of the output of :func:`encode`, in a fraction of the time of encoding."""
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _NO_BRACKET_OR_QUOTE)
    brackets = _TEXTS.sub(b"", plain.replace(b'""', b""))  # where texts are adjacent, too
    return max(itertools.accumulate(array("b", brackets.translate(_STEPS))), default=0)


def decode(data: str | bytes | bytearray | memoryview, *, repairs: bool = False) -> Any:
    """Read JSON; objects become dicts, and integers keep all their digits.

    ``repairs`` reads lone surrogates as :func:`well_formed` does.

    Raises:
        NotJsonError: ``data`` is not JSON by RFC 8259, or nested too deeply.
    """
    text = data if isinstance(data, str) else bytes(data)
    try:
        value = parse_text(text if isinstance(text, str) else _text_of(text))
    except RecursionError as error:
        raise NotJsonError("nested too deeply") from error
    except json.JSONDecodeError as error:
        raise NotJsonError(_place_and_reason(error)) from error
    except UnicodeDecodeError as error:
        raise NotJsonError(f"the byte at offset {error.start} is not {error.encoding.upper()}") from error
    except ValueError as error:
        has_long_number = str(error).startswith(_LONG_NUMBER)
        raise NotJsonError("a number has too many digits" if has_long_number else str(error)) from error
    if (r"\u" if isinstance(text, str) else rb"\u") in text:  # type: ignore[operator]
        # only an escape can contain a lone surrogate
        try:
            encode(value)
        except LoneSurrogateError:
            if not repairs:
                raise
            return parse_text(encode(value, repairs=True).decode())
    return value


#: how Python's message about an integer with thousands of digits begins; the rest is advice for programs
_LONG_NUMBER = "Exceeds the limit"
#: our wordings for messages of Python's JSON parser
_REASONS = {
    "Expecting value": "a value is expected here",
    "Expecting property name enclosed in double quotes": "a name in double quotes is expected here",
    "Expecting ':' delimiter": "a colon is expected here",
    "Expecting ',' delimiter": "a comma is expected here",
    "Extra data": "the document ends before this",
    "Unterminated string starting at": "this text has no closing quote",
    "Invalid control character at": "a control character must be written as an escape",
    "Illegal trailing comma before end of object": "no comma is allowed before the end",
    "Illegal trailing comma before end of array": "no comma is allowed before the end",
}


def _place_and_reason(error: json.JSONDecodeError) -> str:
    if not error.doc.strip():
        return "it is empty"
    return f"line {error.lineno}, column {error.colno}: {_REASONS.get(error.msg, error.msg)}"


def _text_of(data: bytes) -> str:
    return data.decode(json.detect_encoding(data), "surrogatepass")  # as json.loads does


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _written(value: Any) -> str:
    try:
        return "".join(_chunks(value, 0))
    except RecursionError:
        return _encoder.encode(value)  # says whether that is a cycle


# made once; json.dumps and json.loads with options make new ones for every call
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
#: what the encoder makes again in each `encode`, but for the search for cycles; in half the time
_chunks = make_encoder(None, _encoder.default, encode_basestring, None, ":", ",", False, False, False)
#: writes a string as JSON, for templates; a lone surrogate is kept and cannot be encoded as UTF-8
quote: Callable[[str], str] = encode_basestring
#: reads JSON text without the checks of :func:`decode`; may raise ValueError or RecursionError
parse_text = json.JSONDecoder(parse_constant=_refuse_constant).decode
