"""Sending a call's message to its agent's queue."""

from typing import TYPE_CHECKING, Protocol

from broker_config import serializer
from broker_config.options import celery_url, declared_queues
from broker_config.queues import TOOL_CALL_TASK
from broker_config.settings import Settings, hidden_password
from broker_config.task_message import TaskMessage
from goondan_tasks.errors import BrokerUnreachableError, extra
from goondan_tasks.events import is_event, message_of, queue_of, task_of
from goondan_tasks.messages import ToolCall
from goondan_tasks.names import write_traceparent

if TYPE_CHECKING:
    from kombu import Connection

#: the limit of each operation while sending, in seconds
SEND_SECONDS = 5


def call_message(call_id: str, call: ToolCall, wire: bytes) -> TaskMessage:
    """Make the task message of a call, whose JSON is ``wire``. An event is sent as its IpcMessage.

    The worker shows the arguments to monitors (:mod:`goondan_tasks.monitors`), so the message does not.
    """
    if is_event(call):
        message = message_of(call)
        task, shadow = task_of(call), None
        kwargs = b'{"message":%b}' % serializer.encode(message.to_wire())
    else:
        task, shadow = TOOL_CALL_TASK, call.tool_name or "(no tool)"
        kwargs = b'{"call":%b}' % wire
    return TaskMessage(
        task=task,
        task_id=call_id,
        queue=queue_of(call),
        kwargs=kwargs,
        shadow=shadow,
        root_id=call.root_id,
        parent_id=call.parent_id,
        traceparent=write_traceparent(call.trace_id, call.span_id),
    )


class Dispatch(Protocol):
    """Sends messages to their queues: within the ledger's script, or through a separate broker."""

    def inline(self, call_id: str, call: ToolCall, wire: bytes) -> bytes:
        """Return what the ledger's script pushes onto the queue; empty if :meth:`send` sends the message.

        ``wire`` is the call's JSON.
        """

    def send(self, call_id: str, call: ToolCall) -> None:
        """Send the message if the ledger's script does not."""


class RedisDispatch:
    """For a broker that is the ledger's Redis: one script writes both record and message."""

    def inline(self, call_id: str, call: ToolCall, wire: bytes) -> bytes:
        """Return the queue's list element (kombu/transport/redis.py ``_put``)."""
        return call_message(call_id, call, wire).to_redis()

    def send(self, call_id: str, call: ToolCall) -> None:
        """Do nothing, since the script has pushed the message."""


def broker_connection(broker_url: str) -> "Connection":
    """Return a connection to a separate broker; it is opened on first use.

    Raises:
        ConfigError: the extra ``broker`` is not installed.
    """
    with extra("broker"):  # importing kombu takes a sixth of a client's start, and few clients need it
        from kombu import Connection

    return Connection(
        celery_url(broker_url),
        connect_timeout=SEND_SECONDS,
        # kombu's Redis transport ignores connect_timeout
        transport_options={"socket_timeout": SEND_SECONDS, "socket_connect_timeout": SEND_SECONDS},
    )


def broker_errors(connection: "Connection") -> tuple[type[BaseException], ...]:
    """Return the exceptions raised when the broker cannot be reached or refuses a message."""
    from kombu.exceptions import LimitExceeded, OperationalError

    return (OperationalError, LimitExceeded, *connection.connection_errors, *connection.channel_errors)


class KombuDispatch:
    """For a separate broker: kombu sends the message after the record was written.

    A producer that dies in between leaves a record without a message. Submitting the call again sends the
    message; otherwise the call expires at its deadline.
    """

    def __init__(self, broker_url: str) -> None:
        self._shown_url = hidden_password(broker_url)
        self._connection = broker_connection(broker_url)
        self._errors = broker_errors(self._connection)

    def inline(self, call_id: str, call: ToolCall, wire: bytes) -> bytes:
        """Return nothing, since the script cannot reach this broker."""
        return b""

    def send(self, call_id: str, call: ToolCall) -> None:
        """Publish the message.

        Raises:
            BrokerUnreachableError: the broker cannot be reached, or refuses the message.
        """
        try:
            wire = serializer.encode(call.to_wire())
            self._publish(call_message(call_id, call, wire), call.agent_name)
        except self._errors as error:
            raise BrokerUnreachableError(
                f"The broker at {self._shown_url} cannot be reached: {error}",
                suggestion="Start the broker, or correct GOONDAN_BROKER_URL.",
            ) from error

    def _publish(self, message: TaskMessage, agent_name: str) -> None:
        from kombu.pools import producers

        [queue] = [one for one in declared_queues([agent_name]) if one.name == message.queue]
        with producers[self._connection].acquire(block=True, timeout=2 * SEND_SECONDS) as producer:
            producer.publish(
                message.body,
                routing_key=message.queue,
                exchange="",
                declare=[queue],  # brokers drop messages for queues that do not exist yet
                content_type="application/json",
                content_encoding="utf-8",
                headers=message.headers,
                correlation_id=message.task_id,
                timeout=SEND_SECONDS,
                retry=True,
                retry_policy={"max_retries": 1},
            )


def dispatch_for(settings: Settings) -> Dispatch:
    """Return a RedisDispatch if broker and ledger are the same Redis, else a KombuDispatch."""
    if settings.effective_broker_url == settings.redis_url:
        return RedisDispatch()
    return KombuDispatch(settings.effective_broker_url)
