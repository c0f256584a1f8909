"""Pages about conversations: a list of instances, and one with its messages."""

import codecs
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from broker_config import serializer
from goondan_tasks.contract.errors import AgentNotFoundError, ConversationError, InstanceNotFoundError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import Message
from goondan_tasks.contract.redaction import hidden_by_place, hidden_in_log
from goondan_tasks.history.attempts import time_of
from goondan_tasks.history.mailbox import Mailbox
from goondan_tasks.ledger.record import CallRecord
from goondan_web.doors.console.asking import USUAL_ROWS, Asking, View
from goondan_web.doors.console.calls import row_of
from goondan_web.doors.console.chat import shown_messages
from goondan_web.doors.console.rendering import PATH, Shown
from goondan_web.doors.console.values import shown_json

#: how far a list of instances goes
_MOST_INSTANCES = 1_000
#: how many files a list shows
_FILES = 100
#: how much of a file is shown, in bytes
LONGEST_FILE = 262_144
#: how many bytes the messages of a page have, but for its last one
_ROOM = 16_000
#: how many of its latest calls a conversation shows
_CALLS = 6
#: how many calls are looked through for those of the messages
_MOST_CALLS = 200


def list_instances(asking: Asking) -> Shown:
    """Show the instances, the one used last first."""
    agent, text = asking.chosen("agent"), asking.chosen("key")
    limit = asking.number("from", 1, _MOST_INSTANCES) + USUAL_ROWS
    rows, rest = asking.part(asking.client.instances(agent, containing=text or "", limit=limit))
    data = {
        "rows": rows,
        "agents": asking.agents(),
        "filter": {"agent": agent, "key": text},
        "rest": rest,
    }
    return Shown("instances.html", "Conversations", data)


def show_instance(asking: Asking) -> Shown:
    """Show a conversation: its messages, and the calls and Turns that have not ended."""
    client, agent, key = asking.client, asking.path["agent"], asking.path["key"]
    info, mailbox = next(iter(client.instances(agent, key)), None), _mailbox(asking, agent, key)
    if info is None and mailbox is None:
        raise InstanceNotFoundError(f"Agent {agent[:200]!r} has no instance {key[:200]!r}.")
    messages, trouble = ([], None) if info is None else _messages(asking, agent, key)
    before = asking.number("before", len(messages), max(1, len(messages)))
    first = _first(messages, before)
    waits = set() if mailbox is None else {one.id for one in mailbox.events}
    records = client.calls(agent, _MOST_CALLS, instance=key)
    calls = [_row(one) for one in records]
    data = {
        "agent": agent,
        "key": key,
        "info": info,
        "messages": shown_messages(messages[first:before], records, key),
        "turns": [_turn(one) for one in reversed(records) if _is_running_turn(one)],
        "earlier": first or None,
        "count": len(messages),
        "trouble": trouble,
        "open": [call for call in calls if call["finishedAt"] is None and call["id"] not in waits],
        "calls": calls[:_CALLS],
        "mailbox": mailbox,
    }
    return Shown("instance.html", key, data)


def _first(messages: Sequence[Message], before: int) -> int:
    """Return from which message on there is room for those before another."""
    first, room = min(before, len(messages)), _ROOM
    while first and room > 0 and before - first < USUAL_ROWS:
        first -= 1
        room -= len(serializer.encode(messages[first].data))
    return first


def _row(record: CallRecord) -> dict[str, Any]:
    """Return what is shown of a call; what a person decides about has its arguments."""
    args = shown_json(record.call.args) if record.awaits == "approval" else None
    return {**row_of(record), "args": args}


def _mailbox(asking: Asking, agent: str, key: str) -> Mailbox | None:
    """Return what waits for the instance; ``None`` if nothing does."""
    with suppress(AgentNotFoundError):
        found = asking.client.mailbox(agent, key, USUAL_ROWS)
        return found if found.events else None
    return None


def list_instance_files(asking: Asking) -> Shown:
    """Show the files of the workdir, by path."""
    agent, key = asking.path["agent"], asking.path["key"]
    found = asking.client.files(agent, key)
    rows, rest = asking.part(found, _FILES)
    data = {"agent": agent, "key": key, "files": rows, "count": len(found), "rest": rest}
    return Shown("files.html", f"Files of {key}", data)


def show_file(asking: Asking) -> Shown:
    """Show the beginning of a file that is text."""
    agent, key, path = (asking.path[name] for name in ("agent", "key", "path"))
    part = asking.client.read_file(agent, key, path, 0, LONGEST_FILE)
    data = {
        "agent": agent,
        "key": key,
        "path": path,
        "size": part.size,
        "text": _text_of(part.data),
        "isCut": part.next_offset is not None,
    }
    return Shown("file.html", path, data)


def _text_of(data: bytes) -> str | None:
    """Return a text without secrets; ``None`` for what is none. A character may be cut at its end."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else hidden_by_place(hidden_in_log(text))


def _is_running_turn(record: CallRecord) -> bool:
    return is_event(record.call) and record.finished_at is None and record.claimed_at is not None


def _turn(record: CallRecord) -> dict[str, Any]:
    """Return what a page shows of a Turn that has not ended."""
    return {
        "id": record.id,
        "turn": record.call.turn_id,
        "state": record.state,
        "since": time_of(record.claimed_at or record.queued_at),
        "isKept": record.call.keep is not None,
    }


def _messages(asking: Asking, agent: str, key: str) -> tuple[list[Message], str | None]:
    """Return the messages, and why there are none if they cannot be read here."""
    try:
        return asking.client.conversation(agent, key), None
    except ConversationError as error:
        return [], str(error)


PAGES = (
    View(f"{PATH}/conversations", list_instances),
    View(f"{PATH}/conversations/{{agent}}/{{key}}", show_instance),
    View(f"{PATH}/conversations/{{agent}}/{{key}}/files", list_instance_files),
    View(f"{PATH}/conversations/{{agent}}/{{key}}/files/{{path}}", show_file),
)
