"""A Celery consumer of which only the queues are there."""

from types import SimpleNamespace


class Consumer:
    """A consumer of some queues; its pool has no lead and nothing to give back."""

    pool = SimpleNamespace(
        limit=1,
        lead=None,
        is_draining=False,
        return_backlog=lambda: None,
        intake=SimpleNamespace(renew=lambda: None),
    )
    hostname = "w"

    def __init__(self, *queues: str) -> None:
        self.queues = dict.fromkeys(queues)
        self.app = SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=self.queues)))

    def cancel_task_queue(self, queue: str) -> None:
        del self.queues[queue]

    def add_task_queue(self, queue: str) -> None:
        self.queues[queue] = None
