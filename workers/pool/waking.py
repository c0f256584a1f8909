"""A worker queues the scheduled calls of all agents at their times, and admits those that wait for limits."""

import random
import threading
from collections.abc import Callable
from contextlib import suppress

import structlog
from redis.exceptions import RedisError

from broker_config.vital_thread import vital_thread
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.table_rows import only_advice
from goondan_tasks.ledger.timer import WAKE_SECONDS, Woken

logger = structlog.get_logger(__name__)

#: the shortest pause between two looks: calls that come within it are queued together
LEAST_SECONDS = 0.03


def start_waking(wake: Callable[[], Woken], due: str) -> Callable[[], None]:
    """Look for the calls whose time has come, on a thread of its own; ``due`` is the name of their key.

    Celery's main thread would be late: it also sweeps, announces the worker, and waits for Redis meanwhile.
    Returns what ends the thread.
    """
    is_over = threading.Event()

    def look_on() -> None:
        while not is_over.wait(_pause(wake, due)):
            pass

    vital_thread("goondan-timer", look_on, is_over=is_over.is_set).start()
    return is_over.set


def _pause(wake: Callable[[], Woken], due: str) -> float:
    """Look once; return for how many seconds to wait.

    Workers look at slightly different moments, else all of them would ask Redis for the same calls at once.
    """
    seconds = WAKE_SECONDS
    try:
        with suppress(BrokerUnreachableError), only_advice(due):
            seconds = wake().seconds
    except RedisError:
        logger.debug("worker.not_woken", exc_info=True)  # the heartbeat reports the outage
    return min(WAKE_SECONDS, max(LEAST_SECONDS, seconds) + random.random() * LEAST_SECONDS)  # noqa: S311
