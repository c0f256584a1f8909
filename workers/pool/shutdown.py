"""The message ``shutdown`` drains a worker as SIGTERM does (DESIGN §4, IpcMessage).

A worker of several agents stops taking the calls and events of those that are named, and ends once it has
left them all.
"""

from typing import Any

import structlog
from pydantic import ValidationError

from goondan_tasks.agent_registry import ShutdownRequest, ShutdownRequests
from goondan_tasks.messages import IpcMessage
from workers.pool.consumed_queues import leave, served_agents
from workers.pool.drain import ask_to_drain
from workers.pool.left_queues import LeftQueues, queues_of
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

    def __init__(self, requests: ShutdownRequests, consumer: Any, left: LeftQueues) -> None:
        self._requests = requests
        self._consumer = consumer
        self._left = left
        self._since = requests.now()
        self._is_leaving = False

    def look(self) -> None:
        """Leave the agents that somebody wants to be left, also of those whose calls others have for now.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        agents = sorted({*served_agents(self._consumer), *self._left.agents})
        if self._is_leaving or not agents:
            return
        wanted = self._requests.heed(self._consumer.hostname, agents, self._since)
        if wanted:
            logger.info("worker.shutdown_asked", reasons=wanted)
        if len(wanted) == len(agents):
            self._is_leaving = True
            ask_to_drain(self._consumer.pool)
        elif wanted:
            self._left.give_up(wanted)
            leave(self._consumer, {queue for agent in wanted for queue in queues_of(agent)})
