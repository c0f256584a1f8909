"""Celery's task events about calls, for monitors such as Flower.

A worker sends the beginning of each run. The process that stores a call's result sends its end, so monitors
show the same as the ledger, also for calls whose worker died, and for those that no worker received.
"""

import base64
import contextlib
import logging
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from redis import Redis
from redis.exceptions import NoPermissionError, RedisError

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.messages import (
    JsonObject,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    epoch_milliseconds,
)
from goondan_tasks.contract.names import EVENT_TOOLS
from goondan_tasks.contract.redaction import KNOWN_SECRETS, hidden_in_log, is_named_as_secret
from goondan_tasks.fleet.agent_registry import AgentRegistry

logger = logging.getLogger(__name__)

#: the limit of shown arguments and outputs, and of a shown error
SHOWN_CHARACTERS, ERROR_CHARACTERS = 200, 1_000

#: how many events are kept for a broker that is away
MOST_EVENTS = 9_000


#: how long the list of live workers is cached
ALIVE_SECONDS = 1.0

#: Celery's names (celery/events/event.py)
_EXCHANGE, _ROUTING_KEY = "celeryev", "task.multi"

_FORBIDDEN = "Flower and other monitors hear nothing: %s. Give this user of Redis the channels `&/*`."

_names_in = re.compile(r'"([^"\\]{1,100})":').findall


def task_name(agent: str | None, tool: str) -> str:
    """Return the name of a call's task, such as ``coder.bash__exec``.

    It has no spaces, since Flower searches for names word by word.
    """
    return f"{agent}.{tool[:SHOWN_CHARACTERS].replace(' ', '-') or '(no-tool)'}"


def shown(value: Any, text: bytes | None = None) -> str:
    """Return the beginning of a value as JSON, without secrets; ``text`` is that JSON, if known."""
    try:
        beginning = _beginning(serializer.encode(value) if text is None else text)
        # searching the whole value would cost more than all the rest
        if KNOWN_SECRETS.are_known or any(map(is_named_as_secret, _names_in(beginning))):
            return _beginning(serializer.encode(hidden_in_log(value)))
    except (serializer.NotJsonError, RecursionError):
        return "(not JSON)"
    return beginning


def _beginning(text: bytes) -> str:
    return text[:SHOWN_CHARACTERS].decode("utf-8", "ignore")


def shown_arguments(
    tool: str, agent: str | None, instance: object, args: Any, text: bytes | None = None
) -> str:
    """Return a call's arguments as shown in monitors; for an event these are its input and its sender.

    ``text`` is the JSON of ``args`` or its beginning, if known.
    """
    instance_text = str(instance)[:SHOWN_CHARACTERS]
    payload = args.get("payload") if tool in EVENT_TOOLS and isinstance(args, Mapping) else None
    if not isinstance(payload, Mapping):
        return f"{instance_text} {shown(args, text)}"
    rest = {name: value for name, value in payload.items() if value is not None}
    content = next((rest.pop(name) for name in ("input", "response", "error") if name in rest), None)
    sender = str(args.get("from"))[:SHOWN_CHARACTERS]
    return f"{shown(content)} {sender} -> {agent}@{instance_text} {shown(rest)}"


def ended(result: ToolCallResult) -> JsonObject:
    """Return the fields of a task event that follow from a call's final result (celery/worker/request.py)."""
    seconds = None if result.meta.duration_ms is None else result.meta.duration_ms / 1000
    if result.error is None:
        return {"type": "task-succeeded", "result": f"ok {shown(result.output)}", "runtime": seconds}
    return failed(result.error, seconds, has_begun=result.meta.started_at is not None)


def failed(error: ToolCallError, seconds: float | None, *, has_begun: bool) -> JsonObject:
    """Return the same for a call that ended with an error, so many seconds after its handler began."""
    text = error_text(error)
    if error.code == ToolCancelledError.code:
        kind = {"type": "task-revoked", "terminated": has_begun, "signum": None, "expired": False}
    else:
        details = error.traceback or "\n".join(filter(None, [text, error.suggestion, error.help_url]))
        traceback = KNOWN_SECRETS.hidden_in_log(details)
        kind = {"type": "task-failed", "exception": text, "traceback": traceback}
    # Flower's list shows only the result
    return {**kind, "result": text[:SHOWN_CHARACTERS], "runtime": seconds}


def error_text(error: ToolCallError) -> str:
    return KNOWN_SECRETS.hidden_in_log(f"{error.code}: {error.message}")[:ERROR_CHARACTERS]


def about(call_id: str, call: ToolCall) -> JsonObject:
    """Return the fields of a task event that identify the call."""
    return {
        "uuid": call_id,
        "name": task_name(call.agent_name, call.tool_name),
        "args": "()",
        "kwargs": shown_arguments(call.tool_name, call.agent_name, call.instance_key, call.args),
        "root_id": call.root_id or call_id,
        "parent_id": call.parent_id,
    }


class Monitors:
    """Sends events to the monitors; thread-safe.

    While Redis is away, or refuses them, the events wait; nothing else is affected.
    """

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._is_on = settings.events == "on"
        self._registry = AgentRegistry(redis, Keys(settings.namespace))
        self._waiting: deque[JsonObject] = deque(maxlen=MOST_EVENTS)
        self._sending = threading.Lock()
        self._alive: Collection[str] = ()
        self._looked_at = -ALIVE_SECONDS
        #: whether Redis has refused the last message for want of a right
        self._is_forbidden = False

    def add(self, worker: str, event: Mapping[str, Any], at: float | None = None) -> None:
        """Queue an event for the next :meth:`flush`; ``at`` is its time in s since the epoch."""
        if self._is_on:
            timestamp = time.time() if at is None else at
            self._waiting.append({"hostname": worker, "timestamp": timestamp, **event})

    def add_end(self, call: ToolCall, result: ToolCallResult) -> None:
        """Queue the end of a call; a successful one was described when it began."""
        if self._is_on:
            call_id = result.meta.id
            described = {"uuid": call_id} if result.error is None else about(call_id, call)
            self.add(result.meta.worker or "", {**described, **ended(result)})

    def add_retry(self, call: ToolCall, result: ToolCallResult) -> None:
        """Queue that a run failed with ``result`` and will be retried."""
        if self._is_on:
            retried = {**ended(result), "type": "task-retried"}
            self.add(result.meta.worker or "", {**about(result.meta.id, call), **retried})

    def add_pending(self, call: ToolCall, result: ToolCallResult) -> None:
        """Queue that a call is pending, so its worker has nothing more to do.

        Celery has no such state: the task stays STARTED, and its result says what it waits for.
        """
        if self._is_on:
            state = f"pending: waits for its {result.meta.awaits}"
            if result.meta.awaits == "completion":
                state = f"{state}, {shown(result.handle)}"
            event = {**about(result.meta.id, call), "type": "task-pending", "result": state}
            self.add(result.meta.worker or "", event)

    def tell_end(self, call: ToolCall, result: ToolCallResult, *, received: float, lost_by: str) -> None:
        """Send the end of a call that no worker sends; ``lost_by`` is the dead worker that had it, if any.

        ``received`` is when a worker claimed it, else when it was queued, in ms since the epoch.
        """
        fields = {**about(result.meta.id, call), **ended(result), "received": received / 1000}
        if lost_by and "traceback" in fields:
            fields["traceback"] += f"\nWorker {lost_by} had the call, {result.meta.worker} has settled it."
        finished = result.meta.finished_at
        at = None if finished is None else epoch_milliseconds(finished) / 1000
        self._tell(result.meta.worker or "", fields, lost_by, at)

    def tell_retry(self, call_id: str, call: ToolCall, worker: str, *, received: float, lost_by: str) -> None:
        """Send that a call is retried after its worker died; to be sent before the call is queued again."""
        reason = f"Worker {lost_by} died before the call had ended; it is run again."
        retried = {"type": "task-retried", "exception": reason, "traceback": reason, "result": reason}
        fields = {**about(call_id, call), **retried, "received": received / 1000}
        self._tell(worker, fields, lost_by)

    def _tell(self, worker: str, event: JsonObject, lost_by: str, at: float | None = None) -> None:
        if not self._is_on:
            return
        self.add(worker, event, at)
        # Flower takes each sender for a worker, and keeps a dead worker's last number of active calls
        offline = {lost_by} if worker in self._workers() else {lost_by, worker}
        for name in offline - {""}:
            self.add(name, {"type": "worker-offline", "active": 0})
        self.flush()

    def _workers(self) -> Collection[str]:
        if time.monotonic() - self._looked_at >= ALIVE_SECONDS:
            with contextlib.suppress(RedisError):
                self._alive = {worker.name for worker in self._registry.workers()}
                self._looked_at = time.monotonic()
        return self._alive

    def flush(self) -> None:
        """Send all waiting events in one message, and return when it is sent."""
        with self._sending:
            events = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if events and not self.publish(serializer.encode(events)):
                self._waiting.extendleft(reversed(events))

    def drop(self) -> None:
        """Drop all waiting events."""
        self._waiting.clear()

    def publish(self, events: bytes, routing_key: str = _ROUTING_KEY) -> bool:
        """Send a JSON event, or a list of them, in one message; return whether Redis has taken it."""
        try:
            self._publish(events, routing_key)
        except NoPermissionError as error:
            if not self._is_forbidden:
                logger.warning(_FORBIDDEN, error)
            self._is_forbidden = True
            return False
        except (RedisError, OSError):  # reported by other uses of Redis
            return False
        self._is_forbidden = False
        return True

    def _publish(self, events: bytes, routing_key: str) -> None:
        """Publish as kombu does (kombu/transport/redis.py ``_put_fanout``), which makes a client for each."""
        database = self._redis.get_connection_kwargs().get("db") or 0
        delivery_info = {"exchange": _EXCHANGE, "routing_key": routing_key}
        message = {
            "body": base64.b64encode(events).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {},
            "properties": {
                "body_encoding": "base64",
                "delivery_info": delivery_info,
                "delivery_mode": 1,
                "delivery_tag": str(uuid.uuid4()),
                "priority": 0,
            },
        }
        self._redis.publish(f"/{database}.{_EXCHANGE}/{routing_key}", serializer.encode(message))
