"""Our Celery pool, without a worker around it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker import state

from goondan_tasks.ledger.record import Verdict
from workers.concurrency.places import Entrant
from workers.pool.pool import CallPool, Pace


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
    pool._places.enter(Entrant(lambda: None, cast(Any, request)))
    pool.return_backlog()
    assert request.requeued
    assert (list(state.reserved_requests), dict(state.requests)) == ([], {})


def test_each_of_two_messages_of_one_task_goes_back() -> None:
    pool, messages = CallPool(limit=0), [Reserved("task-1"), Reserved("task-1")]
    for message in messages:
        state.task_reserved(message)
        pool._places.enter(Entrant(lambda: None, cast(Any, message)))
    pool.return_backlog()
    assert [message.requeued for message in messages] == [True, True]


def test_a_worker_that_stops_turns_away_what_still_comes() -> None:
    class Message(Reserved):
        def reserve(self) -> None:
            state.task_reserved(self)

    pool, message = CallPool(limit=0), Message("task-1")
    pool.turn_away()
    pool.take(cast(Any, message))
    assert message.requeued
    assert list(state.reserved_requests) == []


class Claimed(Reserved):
    """The message of a call that was claimed in the trip that reserved it."""

    reserved = SimpleNamespace(verdict=Verdict.RUN)
    worker = "w1"

    def incoming(self) -> str:
        return self.id


class Returns:
    """A delivery that remembers which claims it was told to queue again."""

    def __init__(self) -> None:
        self.requeued: list[str] = []

    def claimed(self, incoming: str, *_: Any) -> str:
        return incoming

    def requeue(self, claim: str) -> None:
        self.requeued.append(claim)


def test_a_claim_whose_message_went_with_its_connection_is_queued_again() -> None:
    pool, delivery = CallPool(limit=0), Returns()
    pool._runtime = cast(Any, SimpleNamespace(delivery=delivery))
    # Celery's state does not know it, as after a reconnection
    pool._places.enter(Entrant(lambda: None, cast(Any, Claimed("call-1"))))
    pool.return_backlog()
    assert delivery.requeued == ["call-1"]


@pytest.mark.parametrize(
    ("places", "seconds", "is_quick"),
    [(1, 0.004, True), (1, 0.006, False), (8, 0.015, True), (8, 0.03, False), (500, 0.1, False)],
)
def test_calls_count_as_quick_by_how_long_they_keep_others_waiting(
    places: int, seconds: float, is_quick: bool
) -> None:
    pace = Pace(places)
    for _ in range(3):
        pace.count(seconds)
    assert (pace.ended, pace.is_quick) == (3, is_quick)
