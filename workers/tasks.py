"""The task bodies. Celery imports this module by name (``include``); a producer never does."""

from typing import Any

from broker_config.queues import TOOL_CALL_TASK
from goondan_tasks.celery import app
from workers.incoming import Incoming
from workers.pool import await_result
from workers.request import shown_result
from workers.runtime import process_runtime


@app.task(
    name=TOOL_CALL_TASK,
    bind=True,
    Request="workers.request:CallRequest",
    Strategy="workers.request:strategy",
)
def tool_call(self: Any, call: Any = None) -> str:
    """Carry out a call under one of Celery's own pools; ours does without this body."""
    runtime = process_runtime()
    incoming = Incoming(self.request.id, self.request.delivery_info["routing_key"], call)
    claim = runtime.delivery.claim(incoming, self.request.hostname)
    if claim is None:
        return "not run here"
    result = await_result(runtime, claim)
    runtime.delivery.finish(claim, result)
    return shown_result(result)
