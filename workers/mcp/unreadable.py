"""Answers of a server that are not valid messages: the call they belong to fails at once.

Without that a call would wait for its time limit: its answer has come, and cannot be read.
"""

import json
import re

from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError

#: a string, even one without an end (else each quote would be tried to the end of the line), a bracket, or
#: another scalar
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]|[^\s"\[\]{},:]++')


def error_for(line: bytes, fault: ValueError) -> JSONRPCError | None:
    """Return the error in whose place an invalid answer stands; ``None`` if the line is no answer at all.

    An answer is an object with an ``id``, and a ``result`` or an ``error``, however deep it is nested.
    """
    members = _members(line)
    if not ({b'"result"', b'"error"'} & members.keys()):
        return None
    number = _scalar(members.get(b'"id"', b""))
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    message = f"its answer cannot be read: {_reason(fault)}"
    return JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=PARSE_ERROR, message=message))


def _members(line: bytes) -> dict[bytes, bytes]:
    """Return the members of an object, by their names as written; of an array or object only its bracket."""
    if not line.lstrip().startswith(b"{"):
        return {}
    tokens = []
    depth = 0
    for match in _TOKEN.finditer(line):
        token = match.group()
        if token in b"]}":
            depth -= 1
        elif depth == 1:
            tokens.append(token)
        if token in b"[{":
            depth += 1
    return dict(zip(tokens[::2], tokens[1::2], strict=False))


def _scalar(token: bytes) -> object:
    try:
        return json.loads(token)
    except ValueError:
        return None


def _reason(fault: ValueError) -> str:
    """Return what pydantic says is wrong, without what the server sent."""
    lines = (line.strip().partition(" [type=")[0] for line in str(fault).splitlines())
    broken = next((line for line in lines if line.startswith("Invalid JSON: ")), "")
    return broken.removeprefix("Invalid JSON: ") or "it is not a response of JSON-RPC"
