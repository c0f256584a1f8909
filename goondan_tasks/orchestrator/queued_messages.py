"""The messages of an agent's calls, put in order from outside while no worker takes them."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from broker_config import serializer
from broker_config.queues import call_queue, events_queue
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.new_call import draft_call

#: how many messages of a queue are looked at, those first that a worker would take first
MOST_AT_ONCE = 500

_ENDED = {b"done", b"dead"}


class QueuedMessages:
    """The messages in the queues of one Redis."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._redis = ledger.redis

    def tidy(self, agent: str) -> None:
        """Remove the messages of calls that have ended, and record the calls that plain Celery queued."""
        for queue in (call_queue(agent), events_queue(agent)):
            self._tidy(agent, queue)

    def _tidy(self, agent: str, queue: str) -> None:
        messages = self._redis.lrange(queue, -MOST_AT_ONCE, -1)
        ids = [_id_of(message) for message in messages]
        with self._redis.pipeline(transaction=False) as pipe:
            for call_id in ids:
                pipe.hget(self._ledger.keys.call(call_id), "status")
            statuses = pipe.execute()
        with self._redis.pipeline(transaction=False) as pipe:
            for message, status in zip(messages, statuses, strict=True):
                if status in _ENDED:
                    pipe.lrem(queue, -1, message)  # type: ignore[arg-type]
            pipe.execute()
        if queue == call_queue(agent):
            unknown = zip(ids, messages, statuses, strict=True)
            self._record([_submission(agent, one, text) for one, text, status in unknown if not status])

    def _record(self, submissions: list[Submission | None]) -> None:
        found = [submission for submission in submissions if submission is not None]
        if found:
            self._ledger.submit_all(found, "")


def _id_of(message: Any) -> str:
    try:
        return str(serializer.decode(message)["headers"]["id"])
    except (serializer.NotJsonError, LookupError, TypeError):
        return ""  # no Celery message; a worker will say so


def _submission(agent: str, call_id: str, message: Any) -> Submission | None:
    """Return what plain Celery has queued as a call; ``None`` if a worker must refuse it."""
    wire = _wire_of(message)
    if not call_id or not isinstance(wire, Mapping):
        return None
    draft = draft_call({"agentName": agent, "toolCallId": call_id, **wire})
    if draft.fault or draft.call.agent_name != agent:
        return None
    digest = digest_of(draft.call, serializer.encode(draft.call.args))
    return Submission(call_id, draft.call, serializer.encode(draft.call.to_wire()), digest)


def _wire_of(message: Any) -> Any:
    try:
        envelope = serializer.decode(message)
        body = envelope["body"]
        if envelope["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body)
        return serializer.decode(body)[1]["call"]
    except (serializer.NotJsonError, binascii.Error, LookupError, TypeError, AttributeError):
        return None
