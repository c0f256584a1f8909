"""Our Celery pool: sync handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, whatever their colour. A call takes a thread while it talks to
Redis or runs a sync handler, and none while its async handler waits. It is chosen by ``worker_pool``;
Celery's own ``-P threads`` and ``-P processes`` keep every promise but speed.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from os import getpid
from time import monotonic
from typing import Any

import structlog
from celery.concurrency.base import BasePool, apply_target
from redis.exceptions import RedisError

from broker_config.queues import TOOL_CALL_TASK
from goondan_tasks.errors import BrokerUnreachableError, GoondanError
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import ToolCallResult
from workers.event_loop import drive
from workers.first_only import FirstOnly
from workers.incoming import Incoming
from workers.runtime import WorkerRuntime, process_runtime
from workers.summary import summary
from workers.threads import DaemonThreads, Job

logger = structlog.get_logger(__name__)

#: what is called when a task is over, with its result if there was a run
End = Callable[[ToolCallResult | None], None]


@dataclass(frozen=True, slots=True)
class Place:
    """One of the pool's places; ``job`` begins what is to be done in it, and does not wait."""

    task_id: str
    job: Job


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._threads = DaemonThreads()
        self._lock = threading.Lock()
        self._taken = 0
        self._backlog: deque[Place] = deque()

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        process_runtime()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> None:
        """Take a task from Celery: a tool call runs without Celery's tracer, any other with it.

        ``args`` are those of Celery's trace functions (celery/worker/request.py
        ``create_request_cls``): task name, task id, request, body and its content type and encoding.
        """
        name, task_id, request = args[:3]
        if name == TOOL_CALL_TASK:
            job = partial(self._begin, task_id, request, accept_callback, callback)
        else:
            job = partial(self._trace, target, args, kwargs, callback, accept_callback)
        self._enter(Place(task_id, job))

    def take_backlog(self) -> list[str]:
        """Give up the tasks that have not begun; their messages must go back to their queues."""
        with self._lock:
            task_ids = [place.task_id for place in self._backlog]
            self._backlog.clear()
        return task_ids

    def _enter(self, place: Place) -> None:
        with self._lock:
            if self._taken >= self.limit:
                self._backlog.append(place)
                return
            self._taken += 1
        place.job()

    def _leave(self) -> None:
        with self._lock:
            if not self._backlog:
                self._taken -= 1
                return
            following = self._backlog.popleft()
        self._threads.run(following.job)  # this may be the courier's thread, which must not be kept

    def _trace(self, *args: Any) -> None:
        def job() -> None:
            apply_target(*args)
            self._leave()

        self._threads.run(job)

    def _begin(self, task_id: str, request: dict[str, Any], accept: Any, callback: Any) -> None:
        begun = monotonic()
        accept(getpid(), begun)
        incoming = Incoming.of(task_id, request)
        end = partial(self._end, callback, begun)
        delivery = process_runtime().delivery
        try:
            delivery.claim(incoming, request["hostname"], lambda claim: self._claimed(claim, end))
        except GoondanError as error:
            delivery.refuse(incoming, request["hostname"], error)
            end(None)

    def _claimed(self, claim: Claim, end: End) -> None:
        self._threads.run(partial(self._carry_out, claim, end))

    def _carry_out(self, claim: Claim, end: End) -> None:
        runtime = process_runtime()
        if claim.verdict is not Verdict.RUN:
            _settle(runtime, claim)
            end(None)
            return
        finish = FirstOnly(partial(_finish, runtime, claim, end))
        coroutine = runtime.delivery.carry_out(claim, finish)
        ended = drive(coroutine)
        if ended is not None:
            finish(ended[0])
            return
        future = runtime.event_loop.submit(coroutine)
        future.add_done_callback(lambda done: self._threads.run(partial(finish, done.result())))

    def _end(self, callback: Any, begun: float, result: ToolCallResult | None) -> None:
        # failed, return value, seconds: what Celery's trace functions return
        callback((False, summary(result), monotonic() - begun))
        self._leave()

    def _get_info(self) -> dict[str, Any]:
        info = super()._get_info()  # type: ignore[misc]  # celery-types does not know it
        return {**info, "threads": self._threads.count, "in-progress": self._taken}


def _settle(runtime: WorkerRuntime, claim: Claim) -> None:
    try:
        runtime.delivery.settle(claim)
    except (RedisError, BrokerUnreachableError) as error:
        logger.warning("call.not_settled", call_id=claim.run.id, reason=str(error))  # a sweep will


def _finish(runtime: WorkerRuntime, claim: Claim, end: End, result: ToolCallResult) -> None:
    runtime.delivery.finish(claim, result, partial(end, result))
