"""Messages of a server, line by line. An answer that cannot be read fails the call it belongs to at once.

Without that the call would wait for its time limit: its answer has come, and cannot be read.
"""

import re

from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter
from pydantic import ValidationError
from pydantic_core import from_json

#: how much of each end of an answer that is not valid JSON is searched for its id: the rest is its result,
#: and a search through millions of brackets would keep every other server waiting
END_BYTES = 1024
_MEMBER = rb'\s*"(?:[^"\\]|\\.)*+"\s*+:\s*+(?:"(?:[^"\\]|\\.)*+"|[^\s"\[\]{},:]++)\s*+'
#: what stands before the result, and after it: members that are neither objects nor arrays
_BEFORE = re.compile(rb"\s*\{((?:" + _MEMBER + rb',)*)\s*"(?:result|error)"\s*:')
_AFTER = re.compile(rb"((?:," + _MEMBER + rb")++)\}\s*\Z")


def read_message(line: bytes) -> JSONRPCMessage | None:
    """Return the message that a line holds; in place of an answer that cannot be read, the error of its call.

    ``None`` if it is neither. An answer is an object with an ``id``, and a ``result`` or an ``error``.
    """
    try:
        content = from_json(line)
    except ValueError as fault:
        content, reason = _without_result(line), str(fault)
    else:
        try:
            # validate_json would convert all of it for each kind of message that it might be
            return jsonrpc_message_adapter.validate_python(content, by_name=False)
        except ValidationError:
            reason = "it is not a response of JSON-RPC"
    if not isinstance(content, dict) or not content.keys() & {"result", "error"}:
        return None
    number = content.get("id")
    if isinstance(number, bool) or not isinstance(number, int | str):
        return None
    message = f"its answer cannot be read: {reason}"
    return JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=PARSE_ERROR, message=message))


def _without_result(line: bytes) -> object:
    """Return an answer with 0 for its result, by its first and last bytes; ``None`` if it is no answer."""
    before = _BEFORE.match(line, 0, END_BYTES)
    if before is None:
        return None
    after = _AFTER.search(line, max(before.end(), len(line) - END_BYTES))
    try:
        # what comes last counts, and in a line that breaks off the end may be a part of the result
        return from_json(b'{"result":0%b,%b"":0}' % (after[1] if after else b"", before[1]))
    except ValueError:
        return None
