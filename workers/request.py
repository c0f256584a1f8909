"""Celery's Request for tool calls: our own pool runs them without Celery's tracer.

Everything else stays Celery's: revocation, acknowledgement, events for Flower, ``inspect active``.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

from celery.app.task import Task
from celery.exceptions import TaskRevokedError
from celery.worker import strategy as celery_strategy
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed, DecodeError

from goondan_tasks.errors import ToolInputValidationError
from goondan_tasks.messages import ToolCallResult
from workers.incoming import Incoming
from workers.runtime import process_runtime

#: how much of an output Flower shows
SHOWN_OUTPUT = 200


class CallRequest(Request):  # type: ignore[misc] - celery is not typed here
    """A tool call that a worker has received."""

    def execute_using_pool(self, pool: Any, **options: Any) -> Any:
        """Hand the call to ``pool``: to ours as it is, to Celery's own pools as a task."""
        run_call = getattr(pool, "run_call", None)
        if run_call is None:
            return super().execute_using_pool(pool, **options)
        if self.revoked():
            raise TaskRevokedError(self.id)
        run_call(self)
        return None

    @property
    def incoming(self) -> Incoming:
        """The message's content."""
        wire = self.kwargs.get("call") if isinstance(self.kwargs, dict) else None
        return Incoming(self.id, self.delivery_info["routing_key"] or "", wire)

    def on_finished(self, result: ToolCallResult | None, started: float) -> None:
        """Acknowledge the message and tell Flower; ``None`` means there was nothing to run."""
        shown = "not run here" if result is None else shown_result(result)
        self.on_success((False, shown, monotonic() - started))


def shown_result(result: ToolCallResult) -> str:
    """Return the little of a result that Flower shows."""
    content = result.output if result.error is None else result.error.message
    code = "" if result.error is None else f" {result.error.code}"
    return f"{result.status}{code} {content!r}"[:SHOWN_OUTPUT]


def strategy(task: Task[Any, Any], app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Make Celery's message handler, which also answers messages whose body cannot be read.

    Celery acknowledges such a message and forgets it (celery/worker/consumer/consumer.py
    ``on_decode_error``), and its producer would wait for ever.
    """
    handle = celery_strategy.default(task, app, consumer, **options)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        try:
            _ = message.payload
        except (DecodeError, ContentDisallowed, ValueError) as error:
            incoming = Incoming(message.headers["id"], message.delivery_info["routing_key"], None)
            reason = ToolInputValidationError(f"The message cannot be read: {error}")
            process_runtime().delivery.refuse(incoming, consumer.hostname, reason)
            return ack()
        return handle(message, body, ack, reject, callbacks)

    return on_message
