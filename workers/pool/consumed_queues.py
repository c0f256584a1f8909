"""The queues that a worker consumes, of which it may leave some while it runs; on the main thread."""

from collections.abc import Collection
from typing import Any

from broker_config.queues import agent_of
from workers.pool.pool import CallPool


def served_agents(consumer: Any) -> list[str]:
    """Return the agents that a worker takes calls or events of; a draining one has none left."""
    agents = map(agent_of, consumer.app.amqp.queues.consume_from)
    return sorted({agent for agent in agents if agent is not None})


def stop_consuming(consumer: Any, queues: Collection[str]) -> None:
    """Take no more messages of these queues, after a reconnection neither."""
    for queue in [name for name in consumer.app.amqp.queues.consume_from if name in queues]:
        consumer.cancel_task_queue(queue)


def leave(consumer: Any, queues: Collection[str]) -> None:
    """Stop consuming these queues; what is reserved goes back to where others take it from."""
    stop_consuming(consumer, queues)
    if isinstance(consumer.pool, CallPool):
        consumer.pool.return_backlog()
