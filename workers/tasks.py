"""The task bodies. Celery imports this module by name (``include``); a producer never does."""

from concurrent.futures import Future
from typing import Any

from broker_config.queues import TOOL_CALL_TASK
from goondan_tasks.celery import app
from goondan_tasks.errors import GoondanError
from goondan_tasks.ledger.record import Claim, Verdict
from workers.event_loop import drive
from workers.first_only import FirstOnly
from workers.incoming import Incoming
from workers.runtime import process_runtime
from workers.summary import summary


@app.task(name=TOOL_CALL_TASK, bind=True, Strategy="workers.strategy:strategy")
def tool_call(self: Any, call: Any = None) -> str:
    """Carry out a call under one of Celery's own pools; ours does the same without this body."""
    runtime, worker = process_runtime(), self.request.hostname
    incoming = Incoming(self.request.id, self.request.delivery_info["routing_key"], call)
    claimed: Future[Claim] = Future()
    try:
        runtime.delivery.claim(incoming, worker, claimed.set_result)
        runtime.delivery.flush()
    except GoondanError as error:
        runtime.delivery.refuse(incoming, worker, error)
        return summary(None)
    claim = claimed.result()
    if claim.verdict is not Verdict.RUN:
        runtime.delivery.settle(claim)
        return summary(None)
    finish = FirstOnly(lambda result: runtime.delivery.finish(claim, result))
    coroutine = runtime.delivery.carry_out(claim, finish)
    ended = drive(coroutine)
    result = runtime.event_loop.submit(coroutine).result() if ended is None else ended[0]
    finish(result)
    runtime.delivery.flush()
    return summary(result)
