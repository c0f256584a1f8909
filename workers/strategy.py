"""Celery's message handler for tool calls, which answers messages that cannot be read, too."""

import logging
from collections.abc import Callable
from typing import Any

from celery.app.task import Task
from celery.worker import strategy as celery_strategy
from kombu.exceptions import ContentDisallowed, DecodeError

from goondan_tasks.errors import ToolInputValidationError
from workers.incoming import Incoming
from workers.runtime import process_runtime

logger = logging.getLogger(__name__)


def strategy(task: Task[Any, Any], app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Make the handler of one task (Celery's ``Task.Strategy``).

    Celery acknowledges a message whose body it cannot read and forgets it (``on_decode_error`` in
    celery/worker/consumer/consumer.py); its producer would wait for ever.
    """
    handle = celery_strategy.default(task, app, consumer, **options)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        try:
            _ = message.payload
        except (DecodeError, ContentDisallowed, ValueError) as error:
            incoming = Incoming(message.headers["id"], message.delivery_info["routing_key"], None)
            reason = ToolInputValidationError(f"The message cannot be read: {error}")
            process_runtime().delivery.refuse(incoming, consumer.hostname, reason)
            return message.ack_log_error(logger, consumer.connection_errors)
        return handle(message, body, ack, reject, callbacks)

    return on_message
