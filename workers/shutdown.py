"""The message ``shutdown`` drains a worker as SIGTERM does (DESIGN §4, IpcMessage).

A worker of several agents stops taking the calls and events of those that are named, and ends once it has
left them all.
"""

import os
import signal
from collections.abc import Collection
from typing import Any

import structlog
from pydantic import ValidationError

from broker_config.queues import agent_of, call_queue, events_queue
from goondan_tasks.agents.events import IpcMessage
from goondan_tasks.shutdown import ShutdownRequest, ShutdownRequests
from workers.pool import CallPool
from workers.runtime import WorkerRuntime

logger = structlog.get_logger(__name__)


def note_shutdown(runtime: WorkerRuntime, wire: Any) -> None:
    """Pass a ``shutdown`` IpcMessage on to the workers that it is about, this one included.

    Its payload is ``{agent or worker, reason?}``; without either it is about the agent it was sent to. One
    that makes no sense is dropped.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    try:
        message = IpcMessage.from_wire(wire)
        payload = message.payload
        is_named = payload.get("worker") or payload.get("agent")
        request = ShutdownRequest.from_wire(payload if is_named else {**payload, "agent": message.to})
    except ValidationError as error:
        logger.warning("shutdown.refused", reason=str(error))
        return
    runtime.shutdowns.ask(request)
    logger.info("shutdown.asked", sender=message.from_agent, target=request.target, reason=request.reason)


class ShutdownWatch:
    """Sees to the requests that are about this worker; on the main thread."""

    def __init__(self, requests: ShutdownRequests, consumer: Any) -> None:
        self._requests = requests
        self._consumer = consumer
        self._since = requests.now()
        self._is_leaving = False

    def look(self) -> None:
        """Leave the agents that somebody wants to be left.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        agents = served_agents(self._consumer)
        if self._is_leaving or not agents:
            return
        wanted = self._requests.heed(self._consumer.hostname, agents, self._since)
        if wanted:
            logger.info("worker.shutdown_asked", reasons=wanted)
        if len(wanted) == len(agents):
            self._is_leaving = True
            os.kill(os.getpid(), signal.SIGTERM)
        elif wanted:
            for agent in wanted:
                self._leave(agent)

    def _leave(self, agent: str) -> None:
        stop_consuming(self._consumer, {call_queue(agent), events_queue(agent)})
        if isinstance(self._consumer.pool, CallPool):
            self._consumer.pool.return_backlog()


def stop_consuming(consumer: Any, queues: Collection[str]) -> None:
    """Take no more messages of these queues, after a reconnection neither."""
    for queue in [name for name in consumer.app.amqp.queues.consume_from if name in queues]:
        consumer.cancel_task_queue(queue)


def served_agents(consumer: Any) -> list[str]:
    """Return the agents that a worker takes calls or events of; a draining one has none left."""
    agents = map(agent_of, consumer.app.amqp.queues.consume_from)
    return sorted({agent for agent in agents if agent is not None})
