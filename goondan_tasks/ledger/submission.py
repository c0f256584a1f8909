"""Calls prepared for submission to the ledger."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from pydantic.alias_generators import to_camel
from pydantic.alias_generators import to_snake as snake_case

from broker_config import serializer
from broker_config.serializer import quote
from goondan_tasks.contract.call_fields import TEXTS, template_of
from goondan_tasks.contract.calls import identity_of, queue_element
from goondan_tasks.contract.errors import ToolCallConflictError
from goondan_tasks.contract.events import content_of, is_event, mailbox_of
from goondan_tasks.contract.messages import ToolCall, epoch_milliseconds

#: the fields that :func:`call_json` writes in places of their own or, as only approvals have them, never;
#: and the beginnings of the others
_TEXTS = tuple(map(snake_case, TEXTS))
_PLACED = frozenset({*_TEXTS, "v", "call_chain", "message", "args", "edited"})
_BEGINNINGS = {name: f',"{to_camel(name)}":'.encode() for name in ToolCall.model_fields}
_TEXTS_JSON = f'{{"v":1,{template_of(TEXTS)},"callChain":'
_texts = attrgetter(*_TEXTS)

#: the limits of one script call, in calls and approximate bytes: Redis serves no other client meanwhile
BATCH_CALLS = 200
BATCH_BYTES = 4 * 2**20


class Submission(NamedTuple):
    """A call ready to be accepted.

    ``message`` is empty if no script pushes it. A call with a ``fault`` is not sent: the fault is its answer.
    Only events have a ``mailbox``. ``patience_ms`` is how long the call may wait, by default the queue
    timeout.
    """

    id: str
    call: ToolCall
    call_json: bytes
    digest: str
    message: bytes = b""
    fault: str = ""
    mailbox: str = ""
    patience_ms: int | None = None

    @property
    def not_before(self) -> int | str:
        """The time in ms before which the call is not started, as scripts take it: empty if it has none."""
        return "" if self.call.not_before is None else epoch_milliseconds(self.call.not_before)

    @property
    def keep(self) -> int | str:
        """How long its stream is kept after its end, in s, as scripts take it: empty if it has none."""
        return "" if self.call.keep is None else math.ceil(self.call.keep)


def digest_of(call: ToolCall, args: bytes | None = None) -> str:
    """Return the digest that a second submission must repeat; ``args`` are a tool call's, as JSON."""
    if is_event(call):
        args = serializer.encode(content_of(call))
    elif args is None:
        args = serializer.encode(call.args)
    return hashlib.sha256(b"%b %b" % (call.tool_name.encode(), args)).hexdigest()[:32]


def call_json(call: ToolCall, args: bytes, message: bytes = b"") -> bytes:
    """Return a call's JSON, given the JSON of its arguments, and that of its message if it is written.

    A template takes a fifth of the time of pydantic, which also accepts values that are not JSON.

    Raises:
        NotJsonError: the call has no JSON form.
    """
    try:
        parts = [(_TEXTS_JSON % tuple(map(quote, _texts(call)))).encode()]
    except UnicodeEncodeError as error:
        raise serializer.NotJsonError(str(error)) from error
    parts.append(serializer.encode(call.call_chain) if call.call_chain else b"[]")
    for name in sorted(call.model_fields_set - _PLACED):  # the same bytes in every process
        if (value := getattr(call, name)) is not None:
            parts += _BEGINNINGS[name], serializer.encode(value)
    if call.message is not None:
        parts += b',"message":', message or serializer.encode(call.message.to_wire())
    if call.args is not None:
        parts += b',"args":', args
    return b"%b}" % b"".join(parts)


def event_submission(call: ToolCall, *, in_mailbox: bool = True) -> Submission:
    """Prepare an event for submission. An answer that its asker waits for needs no mailbox.

    Raises:
        NotJsonError: the event has no JSON form.
    """
    call_id, wire = identity_of(call), serializer.encode(call.to_wire())
    return Submission(
        call_id,
        call,
        wire,
        digest_of(call),
        queue_element(call_id, call, wire),
        mailbox=mailbox_of(call) if in_mailbox else "",
        patience_ms=None if call.timeout_seconds is None else round(call.timeout_seconds * 1000),
    )


def conflict_of(submission: Submission) -> ToolCallConflictError:
    """Return the error of a call or event whose id belongs to another one."""
    call = submission.call
    if is_event(call):
        return ToolCallConflictError(
            f"{call.agent_name}@{call.instance_key} has an event {call.tool_call_id!r} with other content.",
            suggestion="Use a new event id for a different event.",
        )
    return ToolCallConflictError(
        f"Call {submission.id} (toolCallId {call.tool_call_id!r}, turn {call.turn_id!r}) "
        "was submitted before with other arguments."
    )


def batches(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """Split submissions into batches within the limits of one script call."""
    begin = size = 0
    for end, one in enumerate(submissions):
        size += len(one.call_json) + len(one.message)
        if end > begin and (end - begin == BATCH_CALLS or size > BATCH_BYTES):
            yield submissions[begin:end]
            begin, size = end, len(one.call_json) + len(one.message)
    if begin < len(submissions):
        yield submissions[begin:]


def deadline_of(call: ToolCall) -> int | str:
    """Return the time in ms after which a call is not started, as scripts take it: empty if it has none."""
    return "" if call.deadline is None else epoch_milliseconds(call.deadline)


def trace_names(call_id: str, call: ToolCall) -> list[str]:
    """Return the traceId and correlationId of a call, each only if it may connect the call with others.

    Calls made by a run are found by their traceId. A correlationId that is neither the traceId nor the call's
    id was chosen by the caller. A tool call that stands alone has no names.
    """
    is_asked_for = call.parent_id is not None
    names = []
    if is_asked_for or is_event(call) or call.parent_span_id is not None or call.replay_of is not None:
        names.append(call.trace_id)
    if call.correlation_id not in {call.trace_id, call_id} and (not is_asked_for or is_event(call)):
        names.append(call.correlation_id)
    return names
