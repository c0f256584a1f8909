"""How a call's message gets onto its agent's queue."""

import json
from typing import Protocol

from kombu import Connection
from kombu.pools import producers

from broker_config.options import celery_url
from broker_config.queues import TOOL_CALL_TASK, call_queue
from broker_config.settings import Settings
from broker_config.task_message import TaskMessage
from goondan_tasks.messages import ToolCall

#: how much of the arguments Flower shows
SHOWN_ARGUMENTS = 200


def call_message(call_id: str, call: ToolCall) -> TaskMessage:
    """Make the task message of a call; Flower shows the tool's name and a little of its arguments."""
    shown = json.dumps(call.args, ensure_ascii=True, default=repr)[:SHOWN_ARGUMENTS]
    return TaskMessage(
        task=TOOL_CALL_TASK,
        task_id=call_id,
        queue=call_queue(call.agent_name),
        kwargs={"call": call.to_wire()},
        shadow=call.tool_name or "(no tool)",
        kwargsrepr=f"{call.instance_key} {shown}",
    )


class Dispatch(Protocol):
    """The road of a message: inside the ledger's own script, or through a broker beside it."""

    def inline(self, call_id: str, call: ToolCall) -> bytes:
        """Return what the ledger's script pushes onto the queue; empty if :meth:`send` does it."""

    def send(self, call_id: str, call: ToolCall) -> None:
        """Send the message, if the ledger's script does not."""


class RedisDispatch:
    """The broker is the ledger's Redis: record and message stand there together, or neither does."""

    def inline(self, call_id: str, call: ToolCall) -> bytes:
        """Return the queue's list element (kombu/transport/redis.py ``_put``)."""
        return call_message(call_id, call).to_redis()

    def send(self, call_id: str, call: ToolCall) -> None:
        """Do nothing: the script has done it."""


class KombuDispatch:
    """The broker is another one: kombu's transport for it carries the message after the record.

    A producer that dies in between leaves a record without a message; it expires at its deadline.
    """

    def __init__(self, broker_url: str) -> None:
        self._connection = Connection(celery_url(broker_url), connect_timeout=5)

    def inline(self, call_id: str, call: ToolCall) -> bytes:
        """Return nothing: the script has no way to this broker."""
        return b""

    def send(self, call_id: str, call: ToolCall) -> None:
        """Publish the message.

        Raises:
            kombu.exceptions.OperationalError: the broker cannot be reached.
        """
        message = call_message(call_id, call)
        with producers[self._connection].acquire(block=True, timeout=10) as producer:
            producer.publish(
                message.body,
                routing_key=message.queue,
                exchange="",
                content_type="application/json",
                content_encoding="utf-8",
                headers=message.headers,
                correlation_id=message.task_id,
                retry=True,
                retry_policy={"max_retries": 2, "timeout": 5},
            )


def dispatch_for(settings: Settings) -> Dispatch:
    """Choose the road: through the ledger's script whenever broker and ledger are one Redis."""
    if settings.effective_broker_url == settings.redis_url:
        return RedisDispatch()
    return KombuDispatch(settings.effective_broker_url)
