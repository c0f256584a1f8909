"""The task bodies. Celery imports this module by name (``include``); a producer never does."""

from functools import partial
from typing import Any

from celery.exceptions import Ignore, Reject

from broker_config.queues import (
    DELEGATE_RESULT_TASK,
    DELEGATE_TASK,
    EVENT_TASK,
    TOOL_CALL_TASK,
    agent_of,
)
from broker_config.task_message import ORIGIN
from goondan_tasks.celery import app
from goondan_tasks.errors import GoondanError
from goondan_tasks.ledger.record import Verdict
from workers.concurrency.event_loop import drive
from workers.delivery.incoming import Incoming
from workers.extensions.events import running
from workers.pool.drain import note_shutdown
from workers.runtime import WorkerRuntime, process_runtime

STRATEGY = "workers.pool.consumer:strategy"


@app.task(name=TOOL_CALL_TASK, bind=True, Strategy=STRATEGY)
def tool_call(self: Any, call: Any = None) -> None:
    """Carry out a call."""
    _carry_out(self, call)


@app.task(name=DELEGATE_TASK, bind=True, Strategy=STRATEGY)
def delegate(self: Any, message: Any = None) -> None:
    """Let an agent handle a request."""
    _carry_out(self, message)


@app.task(name=DELEGATE_RESULT_TASK, bind=True, Strategy=STRATEGY)
def delegate_result(self: Any, message: Any = None) -> None:
    """Let an agent handle an answer."""
    _carry_out(self, message)


@app.task(name=EVENT_TASK, bind=True, Strategy=STRATEGY)
def event(self: Any, message: Any = None) -> None:
    """Let an agent handle an event."""
    _carry_out(self, message)


def _carry_out(task: Any, wire: Any) -> None:
    """Carry out a message under one of Celery's own pools; ours does not use this body.

    Raises:
        Ignore: at the end. Celery would report a success to its monitors, whatever the call's result is.
    """
    runtime, worker = process_runtime(), task.request.hostname
    queue, traceparent = task.request.delivery_info["routing_key"], task.request.get("traceparent")
    was_stored = task.request.get("origin") == ORIGIN
    incoming = Incoming(task.request.id, queue, wire, task.name, traceparent, was_stored=was_stored)
    if incoming.is_shutdown:
        note_shutdown(runtime, incoming.wire)
    elif not incoming.is_only_told:
        _deliver(runtime, incoming, worker)
        runtime.monitors.flush_soon()
    raise Ignore


def _deliver(runtime: WorkerRuntime, incoming: Incoming, worker: str) -> None:
    delivery = runtime.delivery
    try:
        runtime.serve(agent_of(incoming.queue) or "")
        claim = delivery.claim(incoming, worker)
    except GoondanError as error:
        if runtime.standby.leaves(incoming.placeholder(), error):
            raise Reject(error.message, requeue=True) from error
        delivery.refuse(incoming, worker, error)
        return
    if claim.verdict is not Verdict.RUN:
        delivery.settle(claim)
        return
    coroutine = delivery.carry_out(claim, partial(delivery.result_writer.answer, claim))
    ended = drive(coroutine)
    result = runtime.event_loop.submit(coroutine).result() if ended is None else ended[0]
    delivery.result_writer.finish(claim, result)
    delivery.flush()
    running.set(None)  # the call no longer runs on this thread
