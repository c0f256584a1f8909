"""The task bodies. Celery imports this module by name (``include``); a producer never does."""

from typing import Any

from broker_config.queues import TOOL_CALL_TASK
from goondan_tasks.celery import app
from workers.event_loop import drive
from workers.incoming import Incoming
from workers.runtime import process_runtime
from workers.summary import summary


@app.task(name=TOOL_CALL_TASK, bind=True, Strategy="workers.strategy:strategy")
def tool_call(self: Any, call: Any = None) -> str:
    """Carry out a call under one of Celery's own pools; ours does the same without this body."""
    runtime = process_runtime()
    incoming = Incoming(self.request.id, self.request.delivery_info["routing_key"], call)
    claim = runtime.delivery.claim(incoming, self.request.hostname)
    if claim is None:
        return summary(None)
    coroutine = runtime.delivery.carry_out(claim)
    ended = drive(coroutine)
    result = runtime.event_loop.submit(coroutine).result() if ended is None else ended[0]
    runtime.delivery.finish(claim, result)
    return summary(result)
