"""The queues that a worker consumes, and those that it pauses; on the main thread."""

from collections.abc import Collection, Iterable
from typing import Any

import structlog

from broker_config.queues import agent_of, call_queue, events_queue

logger = structlog.get_logger(__name__)


def served_agents(consumer: Any) -> list[str]:
    """Return the agents whose queues a worker consumes: none while it drains."""
    agents = map(agent_of, consumer.app.amqp.queues.consume_from)
    return sorted({agent for agent in agents if agent is not None})


def stop_consuming(consumer: Any, queues: Collection[str]) -> None:
    """Stop consuming these queues, also after a reconnection."""
    for queue in [name for name in consumer.app.amqp.queues.consume_from if name in queues]:
        consumer.cancel_task_queue(queue)


def leave(consumer: Any, queues: Collection[str]) -> None:
    """Stop consuming these queues, and return all reserved messages for other workers."""
    stop_consuming(consumer, queues)
    consumer.pool.return_backlog()


class PausedQueues:
    """Pauses and resumes the queues of agents."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.names: frozenset[str] = frozenset()

    @property
    def agents(self) -> set[str]:
        """The agents of these queues."""
        return {agent for agent in map(agent_of, self.names) if agent is not None}

    def leave(self, standing_by: Collection[str], paused: Collection[str] = ()) -> None:
        """Pause exactly the queues of these agents, and resume the others.

        ``standing_by`` are the agents whose active revision this worker lacks, ``paused`` those that an
        operator has paused.
        """
        wanted = {queue for agent in (*standing_by, *paused) for queue in queues_of(agent)}
        left = wanted.intersection(self._consumer.app.amqp.queues.consume_from)
        back = self.names - wanted
        self.names = (self.names | left) - back
        if left:
            lacking = sorted(left.intersection(queue for agent in standing_by for queue in queues_of(agent)))
            if lacking:
                logger.warning("worker.stands_by", queues=lacking, reason="it lacks the active revision")
            leave(self._consumer, left)
        if back:
            logger.info("worker.goes_on", queues=sorted(back))
            for queue in sorted(back):
                self._consumer.add_task_queue(queue)

    def give_up(self, agents: Iterable[str]) -> None:
        """Never resume the queues of these agents."""
        self.names -= {queue for agent in agents for queue in queues_of(agent)}


def queues_of(agent: str) -> tuple[str, str]:
    """Return the queues of an agent's calls and events."""
    return call_queue(agent), events_queue(agent)
