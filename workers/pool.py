"""Our Celery pool: sync handlers on daemon threads, async handlers on one event loop.

The pool bounds the calls in progress, whatever their colour. A call takes a thread while it talks to
Redis or runs a sync handler, and none while its async handler waits. Daemon threads let the process
end although a handler will not (``concurrent.futures`` would join it). Chosen by ``worker_pool``;
Celery's own ``-P threads`` and ``-P processes`` keep every promise but speed.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from os import getpid
from time import monotonic
from typing import Any

from celery.concurrency.base import BasePool, apply_target

from goondan_tasks.ledger.record import Claim
from goondan_tasks.messages import ToolCallResult
from workers.event_loop import drive
from workers.request import CallRequest
from workers.runtime import WorkerRuntime, process_runtime

Job = Callable[[], None]


class DaemonThreads:
    """Threads that run jobs, made when none is idle."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self.count = 0

    def run(self, job: Job) -> None:
        """Run ``job`` on an idle thread, or on a new one."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self.count += 1
                threading.Thread(target=self._work, name=f"goondan-call-{self.count}", daemon=True).start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._idle += 1


class CallPool(BasePool):
    """The pool; ``limit`` is ``--concurrency``."""

    limit: int

    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._threads = DaemonThreads()
        self._lock = threading.Lock()
        self._in_progress = 0
        self._backlog: deque[tuple[Job, CallRequest | None]] = deque()

    def on_start(self) -> None:
        """Build the process's runtime before the first call needs it."""
        process_runtime()

    def run_call(self, request: CallRequest) -> None:
        """Carry out a tool call when a place is free."""
        self._enter(partial(self._begin, request), request)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> None:
        def job() -> None:
            try:
                apply_target(target, args, kwargs, callback, accept_callback)
            finally:
                self._leave()

        self._enter(job, None)

    @property
    def in_progress(self) -> int:
        """How many calls are being carried out."""
        return self._in_progress

    def take_backlog(self) -> list[CallRequest]:
        """Give up the calls that have not begun; the caller returns them to their queues."""
        with self._lock:
            waiting = [request for _, request in self._backlog if request is not None]
            self._backlog.clear()
        return waiting

    def _enter(self, job: Job, request: CallRequest | None) -> None:
        with self._lock:
            if self._in_progress >= self.limit:
                self._backlog.append((job, request))
                return
            self._in_progress += 1
        self._threads.run(job)

    def _leave(self) -> None:
        with self._lock:
            if not self._backlog:
                self._in_progress -= 1
                return
            job, _ = self._backlog.popleft()
        self._threads.run(job)

    def _begin(self, request: CallRequest) -> None:
        runtime = process_runtime()
        begun = monotonic()
        request.on_accepted(getpid(), begun)
        claim = runtime.delivery.claim(request.incoming, request.hostname)
        if claim is None:
            self._end(request, None, begun)
            return
        coroutine = runtime.delivery.carry_out(claim)
        ended = drive(coroutine)
        finish = partial(self._finish, runtime, request, claim, begun)
        if ended is not None:
            finish(ended[0])
            return
        future = runtime.event_loop.submit(coroutine)
        future.add_done_callback(lambda done: self._threads.run(partial(finish, done.result())))

    def _finish(
        self,
        runtime: WorkerRuntime,
        request: CallRequest,
        claim: Claim,
        begun: float,
        result: ToolCallResult,
    ) -> None:
        runtime.delivery.finish(claim, result)
        self._end(request, result, begun)

    def _end(self, request: CallRequest, result: ToolCallResult | None, begun: float) -> None:
        request.on_finished(result, begun)
        self._leave()

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "threads": self._threads.count, "running": self._in_progress}


def await_result(runtime: WorkerRuntime, claim: Claim) -> ToolCallResult:
    """Carry out a claimed call on this thread; for Celery's own pools."""
    coroutine = runtime.delivery.carry_out(claim)
    ended = drive(coroutine)
    if ended is not None:
        return ended[0]
    future: Future[ToolCallResult] = runtime.event_loop.submit(coroutine)
    return future.result()
