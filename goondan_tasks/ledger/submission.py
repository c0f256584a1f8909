"""A call on its way into the ledger."""

import hashlib
from dataclasses import dataclass

from pydantic_core import PydanticSerializationError

from broker_config import serializer
from goondan_tasks.agents.handling import content_of, is_event
from goondan_tasks.messages import ToolCall

_ARGS = {"args"}


@dataclass(frozen=True, slots=True)
class Submission:
    """A call ready to be accepted: its identity, its JSON and digest, and its message unless sent otherwise.

    One with a ``fault`` is not sent but answered with it. An event goes into its ``mailbox``; ``patience_ms``
    is how long it may wait there, by default the queue timeout.
    """

    id: str
    call: ToolCall
    call_json: bytes
    digest: str
    message: bytes = b""
    fault: str = ""
    mailbox: str = ""
    patience_ms: int | None = None


def digest_of(call: ToolCall, args: bytes | None = None) -> str:
    """What must not differ when the same identity is submitted again; ``args`` are a tool call's, as JSON."""
    if is_event(call):
        args = serializer.encode(content_of(call))
    elif args is None:
        args = serializer.encode(call.args)
    return hashlib.sha256(b"%b %b" % (call.tool_name.encode(), args)).hexdigest()[:32]


def call_json(call: ToolCall, args: bytes) -> bytes:
    """Return a call's JSON, of which the arguments are written already.

    pydantic writes the rest in a third of the time that :mod:`broker_config.serializer` takes, but would let
    pass what is no JSON: so only where nothing else may be whatever a producer likes.

    Raises:
        NotJsonError: it has none.
    """
    if call.args is None or call.message or call.auth or call.origin:
        return serializer.encode(call.to_wire())
    try:
        rest = call.model_dump_json(by_alias=True, exclude_none=True, exclude=_ARGS).encode()
    except PydanticSerializationError as error:
        raise serializer.NotJsonError(str(error)) from error
    return b'%b,"args":%b}' % (rest[:-1], args)
