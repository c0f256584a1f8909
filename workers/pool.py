"""Our Celery pool: sync handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, whatever their colour. A call takes a thread while it talks to
Redis or runs a sync handler, and none while its async handler waits. It is chosen by ``worker_pool``;
Celery's own ``-P threads`` and ``-P processes`` keep every promise but speed.
"""

import contextlib
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
from celery.worker import state
from redis.exceptions import RedisError

from broker_config.queues import TOOL_CALL_TASK
from goondan_tasks.errors import BrokerUnreachableError, GoondanError
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.messages import ToolCall, ToolCallResult
from workers.event_loop import drive
from workers.first_only import FirstOnly
from workers.incoming import Incoming
from workers.runtime import process_runtime
from workers.summary import summary
from workers.threads import SHORT_SECONDS, DaemonThreads, Job

logger = structlog.get_logger(__name__)

#: while so many calls wait here for a place, Celery is not woken to fetch more
ENOUGH = 32

#: what is called when a task is over, with its result if there was a run
End = Callable[[ToolCallResult | None], None]


@dataclass(frozen=True, slots=True)
class Place:
    """One of the pool's places; ``job`` begins what is to be done in it."""

    task_id: str
    job: Job
    lasts: bool = False


class Pace:
    """How many calls have ended, and how long they took."""

    def __init__(self) -> None:
        self.ended = 0
        self._seconds = 0.0

    def count(self, seconds: float) -> None:
        """Count one that took ``seconds``."""
        self.ended += 1
        self._seconds += seconds

    @property
    def is_quick(self) -> bool:
        """Whether they were short, on the average."""
        return self._seconds <= self.ended * SHORT_SECONDS


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()
        self._taken = 0
        self._backlog: deque[Place] = deque()
        #: what Celery is still to be told
        self._ended: deque[Callable[[], None]] = deque()
        self._pace = Pace()
        #: the tools whose last run was not short
        self._lasting: set[tuple[str, str]] = set()

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        self._runtime = process_runtime()
        self._threads = DaemonThreads(self._flush)
        self._threads.start()

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
            self._enter(Place(task_id, partial(self._begin, task_id, request, accept_callback, callback)))
        else:
            job = partial(self._trace, target, args, kwargs, callback, accept_callback)
            self._enter(Place(task_id, job, lasts=True))

    def return_backlog(self) -> None:
        """Put the messages of the tasks that have not begun back to where they are taken from next."""
        with self._lock:
            places = list(self._backlog)
            self._backlog.clear()
        for place in reversed(places):
            request = state.requests.get(place.task_id)
            if request is not None:
                request.reject(requeue=True)

    def take_pace(self) -> Pace:
        """Return how calls went since this was last asked."""
        pace, self._pace = self._pace, Pace()
        return pace

    def _enter(self, place: Place) -> None:
        with self._lock:
            if self._taken >= self.limit:
                self._backlog.append(place)
                return
            self._taken += 1
        self._threads.run(place.job, lasts=place.lasts)

    def _leave(self) -> None:
        with self._lock:
            if not self._backlog:
                self._taken -= 1
                return
            following = self._backlog.popleft()
        self._threads.run(following.job, lasts=following.lasts)

    def _trace(self, *args: Any) -> None:
        apply_target(*args)
        self._leave()

    def _begin(self, task_id: str, request: dict[str, Any], accept: Any, callback: Any) -> None:
        begun = monotonic()
        accept(getpid(), begun)
        incoming = Incoming.of(task_id, request)
        end = partial(self._end, callback, begun)
        delivery = self._runtime.delivery
        try:
            delivery.claim(incoming, request["hostname"], partial(self._claimed, end))
        except GoondanError as error:
            delivery.refuse(incoming, request["hostname"], error)
            end(None)

    def _claimed(self, end: End, claim: Claim) -> None:
        call = claim.run.call
        lasts = (call.agent_name, call.tool_name) in self._lasting
        self._threads.run(partial(self._carry_out, claim, end), lasts=lasts)

    def _carry_out(self, claim: Claim, end: End) -> None:
        if claim.verdict is not Verdict.RUN:
            self._settle(claim)
            end(None)
            return
        begun = monotonic()
        finish = FirstOnly(partial(self._finish, claim, end, begun))
        coroutine = self._runtime.delivery.carry_out(claim, finish)
        ended = drive(coroutine)
        if ended is None:
            future = self._runtime.event_loop.submit(coroutine)
            future.add_done_callback(lambda done: self._threads.run(partial(finish, done.result())))
            return
        finish(ended[0])
        self._learn(claim.run.call, monotonic() - begun)

    def _learn(self, call: ToolCall, seconds: float) -> None:
        tool = (call.agent_name, call.tool_name)
        if seconds > SHORT_SECONDS:
            self._lasting.add(tool)
        else:
            self._lasting.discard(tool)

    def _settle(self, claim: Claim) -> None:
        try:
            self._runtime.delivery.settle(claim)
        except (RedisError, BrokerUnreachableError) as error:
            logger.warning("call.not_settled", call_id=claim.run.id, reason=str(error))  # a sweep will

    def _finish(self, claim: Claim, end: End, begun: float, result: ToolCallResult) -> None:
        self._runtime.delivery.finish(claim, result)
        self._pace.count(monotonic() - begun)
        end(result)

    def _end(self, callback: Any, begun: float, result: ToolCallResult | None) -> None:
        # failed, return value, seconds: what Celery's trace functions return
        self._ended.append(partial(callback, (False, summary(result), monotonic() - begun)))
        self._leave()

    def _flush(self) -> None:
        """Send what waits for company, and tell Celery what has ended: it acknowledges, and asks for more."""
        self._runtime.delivery.flush()
        while self._ended and len(self._backlog) < ENOUGH:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._ended.popleft()()

    def _get_info(self) -> dict[str, Any]:
        info = super()._get_info()  # type: ignore[misc]  # celery-types does not know it
        return {**info, "threads": self._threads.count, "in-progress": self._taken}
