"""What stands on the queues, and messages as a plain Celery program sends them."""

import json
import uuid
from typing import Any

from celery import Celery
from redis import Redis

from broker_config.queues import wake_up_key
from tests.celery_apps import close_connections


def messages(redis: Redis, agent: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return headers and ``message`` of what waits on an agent's queue of events, the oldest first."""
    found = []
    for element in reversed(redis.lrange(f"agent.{agent}.events", 0, -1)):
        envelope = json.loads(element)
        _, kwargs, _ = json.loads(envelope["body"])
        found.append((envelope["headers"], kwargs["message"]))
    return found


class PlainProducer:
    """A Celery program without this package."""

    def __init__(self, redis_url: str) -> None:
        self._app = Celery(broker=redis_url, backend=redis_url)
        self._redis = Redis.from_url(redis_url)
        self._app.conf.update(task_serializer="json", accept_content=["json"], result_serializer="json")

    def __enter__(self) -> "PlainProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self._redis.close()
        close_connections(self._app)
        self._app.close()

    def send(
        self, agent: str, message: Any, *, task: str = "goondan.delegate", wakes: bool = True, **options: Any
    ) -> str:
        """Send a message; return its task id. An idle worker that is not woken takes it within a second."""
        task_id = str(options.pop("task_id", uuid.uuid4()))
        queue = options.pop("queue", f"agent.{agent}.events")
        self._app.send_task(task, kwargs={"message": message}, queue=queue, task_id=task_id, **options)
        if wakes:
            self._redis.lpush(wake_up_key(queue), "1")
        return task_id

    def answer(self, task_id: str, seconds: float = 30) -> dict[str, Any]:
        """Wait for the result record."""
        answer: dict[str, Any] = self._app.AsyncResult(task_id).get(timeout=seconds)
        return answer
