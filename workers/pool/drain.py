"""An orderly stop of a worker (DESIGN "Delivery" rule 6).

Celery's warm shutdown stops the main loop, and with it acknowledgements and renewals, before the pool has
drained. So a signal drains the worker first: it takes no new calls, returns reserved ones at once, and keeps
running ones until they end or the grace period is over. OAuth refreshes in flight are waited for beyond that.
Only then is Celery told to shut down.
"""

import math
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any

import structlog
from celery import bootsteps
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state
from redis.exceptions import RedisError

from broker_config.hard_end import HardEnd
from broker_config.process_identity import this_process
from broker_config.vital_thread import vital_thread
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.machine.process import sighup_ends_process
from goondan_tasks.oauth.manager import LONGEST_SECONDS
from workers.pool.consumed_queues import stop_consuming
from workers.pool.refusal import refusing_without_threads
from workers.runtime import WorkerRuntime, process_runtime

logger = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1

#: how long extensions may take to handle ``worker.stopping``
LISTEN_SECONDS = 5.0

#: how long after the grace period a worker stops whose main loop is stuck
LATEST_SECONDS = 2.0

#: how long an idle worker waits for its main loop, which does not turn while Celery reconnects to the broker
TURN_SECONDS = 0.5

#: how long Celery's own shutdown may take: within the grace period, and after it. Redis may be silent
SHUTDOWN_SECONDS, LATE_SHUTDOWN_SECONDS = 15.0, 3.0

#: how long a worker may take that is asked twice to stop
ASKED_TWICE_SECONDS = 2.0


class Drain(bootsteps.StartStopStep):
    """The consumer step that handles SIGTERM, SIGINT and SIGHUP; only with our own pool."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._consumer = consumer
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._is_asked = False
        #: waits for the signal, and then for the end of the drain
        self._thread: threading.Thread | None = None
        self._hard_end = HardEnd()
        self._end: float | None = None
        self._has_begun = False
        #: when the main loop of an idle worker must have turned
        self._turned_by = math.inf
        #: tells extensions that the worker stops, while its calls end
        self._listener = threading.Thread(target=self._tell_extensions, name="goondan-stopping", daemon=True)
        self._may_tell = threading.Event()
        self._listen_until = 0.0
        # asked now: Celery installs its own handler later, which restarts the program
        self._sighup_ends_process = sighup_ends_process()
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Take over the signals from Celery; after a reconnection, continue a drain that has begun.

        Raises:
            SystemExit: the system has no thread left. A drain starts none.
        """
        if self._thread is None:
            with refusing_without_threads():
                self._hard_end.start()
                self._listener.start()
                self._thread = vital_thread("goondan-drain", self._run, is_over=lambda: self._end is not None)
                self._thread.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        process_runtime().lease_guard.report_signals()
        # if it is ignored, as under nohup, the worker outlives its terminal
        signal.signal(signal.SIGHUP, self._on_signal if self._sighup_ends_process else signal.SIG_IGN)
        if self._end is not None:
            consumer.hub.call_soon(self._begin)

    def _on_signal(self, number: int, _frame: Any) -> None:
        """Request the drain without taking a lock: the interrupted code may hold any of them."""
        if self._is_asked:
            if number != signal.SIGHUP:  # a closing terminal may send it twice
                state.should_terminate = EX_FAILURE  # type: ignore[assignment]  # asked twice: stop at once
                self._hard_end.within(ASKED_TWICE_SECONDS)
            return
        self._is_asked = True
        self._consumer.pool.is_draining = True
        self._signals.put(number)  # reentrant, unlike an event's set()

    def _run(self) -> None:
        self._wait()
        while not self._check():
            sleep(LOOK_SECONDS)

    def _wait(self) -> None:
        self._drain(self._signals.get())

    def _drain(self, number: int) -> None:
        runtime = process_runtime()
        grace = runtime.settings.grace_seconds
        self._end = monotonic() + grace
        logger.info("worker.draining", signal=signal.Signals(number).name, grace_seconds=grace)
        self._listen_until = monotonic() + LISTEN_SECONDS
        self._may_tell.set()
        self._consumer.hub.call_soon(self._begin)
        is_idle = not _is_busy(runtime, self._consumer.pool)
        self._turned_by = monotonic() + TURN_SECONDS if is_idle else math.inf

    def _tell_extensions(self) -> None:
        self._may_tell.wait()
        process_runtime().revisions.stop(LISTEN_SECONDS)

    def _check(self) -> bool:
        """Stop the worker without its main loop: an idle one that does not turn, any one at the latest.

        Redis may be silent, and hold the main thread in a command of Celery's, or in its shutdown. So nothing
        here sends a command. Returns whether nothing is left to check.
        """
        now = monotonic()
        is_late = self._end is not None and now >= self._end + LATEST_SECONDS
        is_stuck = not self._has_begun and now >= self._turned_by
        if (is_late or is_stuck) and self._may_end(process_runtime()):
            _stop()  # Celery looks at this even while it reconnects to the broker
        if state.should_stop is None:
            return False
        self._hard_end.within(LATE_SHUTDOWN_SECONDS if is_late else SHUTDOWN_SECONDS)
        return is_late

    def _begin(self) -> None:
        self._has_begun = True
        self._consumer.timer.call_repeatedly(LOOK_SECONDS, self._look)
        runtime = process_runtime()
        runtime.standby.end()
        self._consumer.pool.drain()  # before the queues are cancelled, which ends the wait for a reservation
        stop_consuming(self._consumer, set(self._consumer.app.amqp.queues.consume_from))
        self._consumer.pool.return_backlog()
        # frees its entry for a worker that takes calls; the next heartbeat publishes what is left
        _settle(lambda: runtime.agent_registry.remove_worker(this_process().id))
        self._look()

    def _look(self) -> None:
        runtime = process_runtime()
        if _is_busy(runtime, self._consumer.pool) and self._end is not None and monotonic() < self._end:
            return
        if not self._may_end(runtime):
            return
        try:
            _settle(runtime.delivery.result_writer.abandon)
        finally:
            state.active_requests.clear()  # monitors keep showing the number in the last heartbeat
            _stop()

    def _may_end(self, runtime: WorkerRuntime) -> bool:
        """Return whether extensions have handled the event, and no OAuth refresh is in flight.

        A provider that rotates tokens would lose one. No more refreshes begin; those that have begun may
        outlast the grace period.
        """
        if self._listener.is_alive() and monotonic() < self._listen_until:
            return False
        longest = (self._end or monotonic()) + LONGEST_SECONDS
        return runtime.refreshes.close() or monotonic() >= longest


def _is_busy(runtime: WorkerRuntime, pool: Any) -> bool:
    return pool.is_busy or runtime.delivery.result_writer.awaits_confirmation


def _stop() -> None:
    state.should_stop = EX_OK  # type: ignore[assignment]


def _settle(what: Callable[[], None]) -> None:
    try:
        what()
    except (RedisError, BrokerUnreachableError) as error:
        logger.warning("worker.not_settled", reason=str(error))  # the leases expire
