"""Requests that a worker stops, or leaves some of its agents."""

import os
import signal
from typing import Any

import structlog

from goondan_tasks.fleet.agent_registry import ShutdownRequests
from workers.pool.consumed_queues import PausedQueues, leave, queues_of, served_agents

logger = structlog.get_logger(__name__)


def ask_to_drain(pool: Any) -> None:
    """Drain as SIGTERM does, on the main thread; only once: a second signal ends the worker at once."""
    if not pool.is_draining:
        os.kill(os.getpid(), signal.SIGTERM)


class ShutdownWatch:
    """Carries out the shutdown requests for this worker; on the main thread."""

    def __init__(self, requests: ShutdownRequests, consumer: Any, left: PausedQueues) -> None:
        self._requests = requests
        self._consumer = consumer
        self._left = left
        self._since = requests.now()
        self._is_leaving = False

    def look(self) -> None:
        """Leave the agents that a shutdown request names, including those whose queues are paused.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        agents = sorted({*served_agents(self._consumer), *self._left.agents})
        if self._is_leaving or not agents:
            return
        wanted = self._requests.agents_to_stop(self._consumer.hostname, agents, self._since)
        if wanted:
            logger.info("worker.shutdown_asked", reasons=wanted)
        if len(wanted) == len(agents):
            self._is_leaving = True
            ask_to_drain(self._consumer.pool)
        elif wanted:
            self._left.give_up(wanted)
            leave(self._consumer, {queue for agent in wanted for queue in queues_of(agent)})
