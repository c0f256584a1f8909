"""The events that wait for an instance, in the order in which it gets them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from broker_config.connections import rows_of
from goondan_tasks.contract.events import mailbox_name
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL, EVENT_TOOL, OUTSIDE
from goondan_tasks.contract.redaction import hidden_by_place, hidden_in_log
from goondan_tasks.fleet.usage import user_of
from goondan_tasks.history.trace import SHOWN_CHARACTERS, Excerpt, excerpt
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord

#: the most events that are read at once
MOST_EVENTS = 200
_KINDS = MappingProxyType({DELEGATE_TOOL: "request", EVENT_TOOL: "event", DELEGATE_RESULT_TOOL: "answer"})


class WaitingEvent(WireModel):
    """An event in a mailbox: the first is handled, or is the next; the others wait behind it."""

    id: str
    state: str
    #: ``request``, ``event``, or the ``answer`` to a request of the instance
    kind: str
    #: the event's own type
    type: str | None = None
    #: the agent and its instance, as ``agent@instance``, or the connector; ``client`` for any other program
    sender: str
    #: the user in whose name it was sent
    user: str | None = None
    #: when it was accepted
    since: str
    #: the beginning of its input, or of the answer, without secrets
    text: Excerpt
    correlation_id: str | None = None


class Mailbox(WireModel):
    """The mailbox of an instance of an agent."""

    agent: str
    instance_key: str
    #: how many events it holds
    count: int
    #: the first of them, in order
    events: tuple[WaitingEvent, ...]


def read_mailbox(ledger: Ledger, agent: str, instance_key: str, limit: int) -> Mailbox:
    """Return the first events of a mailbox, at most MOST_EVENTS; those that have ended are left out.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    key = ledger.keys.mailbox(mailbox_name(agent, instance_key))
    with ledger.redis.pipeline(transaction=False) as pipe:
        pipe.llen(key)
        pipe.lrange(key, 0, min(limit, MOST_EVENTS) - 1)
        count, ids = rows_of(pipe)
    records = ledger.records([one.decode(errors="replace") for one in ids or ()])
    events = [_event(record) for record in records if record is not None and record.finished_at is None]
    return Mailbox(agent=agent, instance_key=instance_key, count=count or 0, events=tuple(events))


def _event(record: CallRecord) -> WaitingEvent:
    call = record.call
    args: Mapping[str, Any] = call.args if isinstance(call.args, Mapping) else {}
    payload = args.get("payload")
    content: Mapping[str, Any] = payload if isinstance(payload, Mapping) else {}
    kind = content.get("type")
    return WaitingEvent(
        id=record.id,
        state=record.state,
        kind=_KINDS.get(call.tool_name, "event"),
        type=kind if isinstance(kind, str) else None,
        sender=_sender(args, content),
        user=user_of(call.auth) or None,
        since=iso_time(record.queued_at),
        text=_text(content.get("input", content.get("response", content.get("error")))),
        correlation_id=call.correlation_id,
    )


def _sender(args: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    agent, instance = args.get("from") or OUTSIDE, args.get("fromInstanceKey")
    if agent != OUTSIDE:
        return str(agent) if instance is None else f"{agent}@{instance}"
    source = content.get("source")
    return str(source.get("name") or OUTSIDE) if isinstance(source, Mapping) else OUTSIDE


def _text(value: Any) -> Excerpt:
    """Return the beginning of a value; a text is shown as it is, not as JSON."""
    if not isinstance(value, str):
        return excerpt(value)
    text, size = hidden_by_place(hidden_in_log(value)), len(value.encode(errors="replace"))
    return Excerpt(text=text[:SHOWN_CHARACTERS], size=size, is_cut=len(text) > SHOWN_CHARACTERS)
