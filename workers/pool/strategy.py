"""Celery's message handler for tool calls and events, which answers messages that hold no task, too."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery.app.task import Task
from celery.worker import state
from celery.worker import strategy as celery_strategy
from kombu.exceptions import ContentDisallowed, DecodeError

from goondan_tasks.errors import GoondanError, ToolCancelledError, ToolInputValidationError
from workers.delivery.call_request import CallRequest, Reserved, incoming_of
from workers.pool.pool import CallPool
from workers.pool.shutdown import note_shutdown
from workers.runtime import process_runtime

logger = logging.getLogger(__name__)

LONGEST_TASK_ID = 200


def strategy(task: Task[Any, Any], app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Make the handler of one task (Celery's ``Task.Strategy``).

    Celery acknowledges a message whose body it cannot read and forgets it, and its producer would
    wait for ever; one whose body has another form ends the worker (``on_task_received`` in
    celery/worker/consumer/consumer.py). A revoked one it drops in silence; here it is a cancelled call.
    """
    handle = celery_strategy.default(task, app, consumer, **options)
    pool = consumer.pool if isinstance(consumer.pool, CallPool) else None

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        error = _error_of(message)
        if error is not None:
            _answer(message, error, consumer.hostname)
            return message.ack_log_error(logger, consumer.connection_errors)
        if pool is None or _waits_for_celery(message.headers):
            return handle(message, body, ack, reject, callbacks)
        return _take(pool, CallRequest(message, consumer))

    return on_message


def _take(pool: CallPool, request: CallRequest) -> None:
    incoming = request.incoming()
    if incoming.is_shutdown:
        note_shutdown(process_runtime(), incoming.wire)
        request.note()
    elif incoming.is_only_told:
        request.note()
    else:
        pool.take(request)


def _waits_for_celery(headers: Mapping[str, Any]) -> bool:
    """Say whether Celery itself has something to do: a countdown or an expiry was asked for."""
    return bool(headers.get("eta") or headers.get("expires"))


def _error_of(message: Any) -> GoondanError | None:
    fault = _fault_of(message)
    if fault is not None:
        return ToolInputValidationError(f"The message cannot be read: {fault}.")
    return ToolCancelledError("The call was revoked.") if message.headers["id"] in state.revoked else None


def _fault_of(message: Any) -> str | None:
    if not _is_task_id(message.headers.get("id")):
        return "it has no task id"
    try:
        payload = message.payload
    except (DecodeError, ContentDisallowed, ValueError) as error:
        return str(error)
    if isinstance(payload, list) and len(payload) == 3:
        return None
    return "its body is not [args, kwargs, embed]"


def _is_task_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TASK_ID and value.isprintable()


def _answer(message: Any, error: GoondanError, worker: str) -> None:
    call_id, queue = message.headers.get("id"), message.delivery_info.get("routing_key")
    if not _is_task_id(call_id):
        logger.error("dropped a message without a task id from queue %s", queue)
        return
    incoming = incoming_of(message, is_readable=not isinstance(error, ToolInputValidationError))
    process_runtime().delivery.refuse(incoming, worker, error, Reserved.of(message))
