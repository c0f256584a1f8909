"""Our Celery pool, without a worker around it."""

from celery.worker import state

from workers.pool import CallPool, Place


class Reserved:
    """What Celery keeps of a message that it has received."""

    def __init__(self, task_id: str) -> None:
        self.id = task_id
        self.requeued = False

    def reject(self, requeue: bool) -> None:
        self.requeued = requeue


def test_a_task_that_goes_back_to_its_queue_is_no_longer_reserved() -> None:
    pool, request = CallPool(limit=0), Reserved("task-1")
    state.task_reserved(request)
    pool._enter(Place(request.id, lambda: None))
    pool.return_backlog()
    assert request.requeued
    assert (list(state.reserved_requests), dict(state.requests)) == ([], {})
