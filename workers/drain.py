"""An orderly stop (DESIGN "Delivery" rule 6).

Celery's warm shutdown stops the main loop before the pool has drained, and with it acknowledgements
and renewals. So a signal first drains: no new calls, reserved ones go back at once, running ones keep
everything until they end or the grace period does. Only then Celery is told to shut down.
"""

import signal
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import structlog
from celery import bootsteps
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state
from redis.exceptions import RedisError

from goondan_tasks.errors import BrokerUnreachableError
from workers.pool import CallPool
from workers.runtime import WorkerRuntime, process_runtime
from workers.shutdown import stop_consuming

logger = structlog.get_logger(__name__)

LOOK_SECONDS = 0.1

#: how long the extensions that listen to ``worker.stopping`` are waited for
LISTEN_SECONDS = 1.0

#: how long after the grace period a worker stops whose main loop does not turn
LATEST_SECONDS = 2.0


class Drain(bootsteps.StartStopStep):
    """The consumer step that takes SIGTERM and SIGINT; only with our own pool."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._consumer = consumer
        self._end: float | None = None
        super().__init__(consumer, **options)

    def include_if(self, consumer: Any) -> bool:
        """Celery's own pools keep Celery's own shutdown."""
        return isinstance(consumer.pool, CallPool)

    def start(self, consumer: Any) -> None:
        """Take the signals over from Celery; after a reconnection a drain that has begun goes on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._end is not None:
            consumer.hub.call_soon(self._begin)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._end is not None:
            state.should_terminate = EX_FAILURE  # type: ignore[assignment]  # asked twice: stop at once
            return
        runtime = process_runtime()
        grace = runtime.settings.grace_seconds
        self._end = monotonic() + grace
        logger.info("worker.draining", signal=signal.Signals(number).name, grace_seconds=grace)
        self._tell_extensions(runtime)
        if state.reserved_requests or runtime.delivery.awaits_confirmation or runtime.delivery.retries:
            self._consumer.hub.call_soon(self._begin)
            self._stop_later(grace + LATEST_SECONDS)
        else:
            _stop()  # Celery looks at this even while it tries to reach the broker again

    def _tell_extensions(self, runtime: WorkerRuntime) -> None:
        """Let extensions hear of it on another thread: this may have interrupted whatever they wait for."""
        listener = threading.Thread(target=runtime.revisions.stop, args=[LISTEN_SECONDS])
        listener.daemon = True
        listener.start()
        listener.join(LISTEN_SECONDS)

    def _begin(self) -> None:
        self._consumer.timer.call_repeatedly(LOOK_SECONDS, self._look)
        runtime = process_runtime()
        runtime.stand_by.end()
        stop_consuming(self._consumer, set(self._consumer.app.amqp.queues.consume_from))
        self._consumer.pool.return_backlog()
        _settle(runtime.delivery.retries.drain)
        # its place is free for a worker that takes calls; the next beat says what is left of it
        _settle(lambda: runtime.roster.remove_worker(self._consumer.hostname))

    def _look(self) -> None:
        delivery = process_runtime().delivery
        is_busy = state.reserved_requests or delivery.awaits_confirmation
        if is_busy and self._end is not None and monotonic() < self._end:
            return
        try:
            _settle(delivery.abandon)
        finally:
            _stop()

    def _stop_later(self, seconds: float) -> None:
        """Stop even if the loop does not turn, because the broker is away."""
        timer = threading.Timer(seconds, _stop)
        timer.daemon = True
        timer.start()


def _stop() -> None:
    state.should_stop = EX_OK  # type: ignore[assignment]


def _settle(what: Callable[[], None]) -> None:
    try:
        what()
    except (RedisError, BrokerUnreachableError) as error:
        logger.warning("worker.not_settled", reason=str(error))  # the leases run out by themselves
