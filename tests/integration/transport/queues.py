"""Messages in an agent's queue."""

import json
from typing import cast

from redis import Redis

from broker_config.queues import wake_up_key
from broker_config.task_message import TaskMessage

QUEUE = "agent.coder"


def push(redis: Redis, *call_ids: str, queue: str = QUEUE, ring: bool = True) -> None:
    """Queue calls."""
    for call_id in call_ids:
        message = TaskMessage("goondan.tool_call", call_id, queue, b'{"call":{}}')
        redis.lpush(queue, message.to_redis())
    if ring:
        redis.lpush(wake_up_key(queue), 1)


def waiting(redis: Redis) -> list[str]:
    """Return the ids of the messages in the queue, the one that is taken next in front."""
    messages = cast("list[bytes]", redis.lrange(QUEUE, 0, -1))
    return [json.loads(message)["headers"]["id"] for message in reversed(messages)]
