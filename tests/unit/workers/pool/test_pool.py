"""Our Celery pool, without a worker around it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker import state

from broker_config.queue_reader import Batch
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.ledger.record import Verdict
from tests.waiting import wait_until
from workers.concurrency.slots import QueuedJob
from workers.concurrency.threads import DaemonThreads
from workers.pool.pool import MOST_SLOTS, CallPool


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
    pool._slots.enter(QueuedJob(lambda: None, cast(Any, request)))
    pool.return_backlog()
    assert request.requeued
    assert (list(state.reserved_requests), dict(state.requests)) == ([], {})


def test_each_of_two_messages_of_one_task_goes_back() -> None:
    pool, messages = CallPool(limit=0), [Reserved("task-1"), Reserved("task-1")]
    for message in messages:
        state.task_reserved(message)
        pool._slots.enter(QueuedJob(lambda: None, cast(Any, message)))
    pool.return_backlog()
    assert [message.requeued for message in messages] == [True, True]


def test_the_next_message_does_not_wait_for_the_turn_of_one_that_went_back() -> None:
    pool = CallPool(limit=0)
    pool.take(cast(Any, Arriving("call-1")))
    pool.return_backlog()
    assert pool._latest is not None
    assert pool._latest.is_over


def test_messages_whose_delivery_was_lost_are_delivered_after_a_reconnection() -> None:
    pool, delivered = CallPool(limit=2), []
    pool._slots.most_released = 1
    pool.channel = SimpleNamespace(deliver=lambda tag, queue, message: delivered.append(tag))
    pool._hub = cast(Any, SimpleNamespace(call_soon=lambda callback: None))  # it loses what it is given
    pool.deliver(Batch(messages=[("tag-1", "agent.smith.events", b"{}")]))
    assert (delivered, pool._slots.takes_events) == ([], False)
    pool._hub = cast(Any, SimpleNamespace(call_soon=lambda callback: callback()))
    pool.deliver_waiting()
    assert (delivered, pool._slots.takes_events) == (["tag-1"], True)


def test_a_fault_that_cannot_be_told_costs_no_place() -> None:
    class Speechless(Faulty):
        def refuse(self, incoming: str, worker: str, error: GoondanError, reserved: Any) -> None:
            self.refused.append(incoming)
            raise LookupError("a fault of ours")

    pool, delivery = CallPool(limit=1), Speechless(at_claim=True)
    carry_out(pool, delivery, 2)
    wait_until(lambda: pool._slots.taken == 0 and len(delivery.refused) == 2)
    assert pool._latest is not None
    assert pool._latest.is_over


def test_a_worker_that_stops_turns_away_what_still_comes() -> None:
    class Message(Reserved):
        def reserve(self) -> None:
            state.task_reserved(self)

    pool, message = CallPool(limit=0), Message("task-1")
    pool.drain()
    pool.take(cast(Any, message))
    assert message.requeued
    assert list(state.reserved_requests) == []


class Arriving(Reserved):
    """A message on its way through the pool."""

    worker = "w1"
    job = None
    released_slot = None
    acknowledged = False
    has_ended = False

    def reserve(self) -> None: ...

    def accept(self) -> None: ...

    def end(self) -> None: ...

    def acknowledge(self) -> None: ...

    @property
    def incoming(self) -> str:
        return self.id

    @property
    def log_fields(self) -> dict[str, str]:
        return {"call_id": self.id}


class Faulty:
    """A delivery that has a fault, here or there."""

    def __init__(self, *, at_claim: bool) -> None:
        self._at_claim = at_claim
        self.refused: list[str] = []

    def claim(self, incoming: str, worker: str, turn: object) -> Any:
        if self._at_claim:
            raise LookupError("a fault of ours")
        return SimpleNamespace(verdict=Verdict.SHARED, run=SimpleNamespace(call=CALL, id=incoming))

    def settle(self, claim: Any) -> None:
        raise LookupError("a fault of ours")

    def refuse(self, incoming: str, worker: str, error: GoondanError, reserved: Any) -> None:
        self.refused.append(f"{incoming}: {error.message}")

    def flush(self) -> None: ...


CALL = SimpleNamespace(agent_name="smith", tool_name="echo__args")


def carry_out(pool: CallPool, delivery: Faulty, count: int) -> None:
    """Let so many messages come to a pool."""
    event_loop = SimpleNamespace(flush=lambda: None)
    pool._runtime = cast(Any, SimpleNamespace(delivery=delivery, event_loop=event_loop))
    pool._threads = DaemonThreads(pool.flush)
    pool._threads.start()
    for number in range(count):
        pool.take(cast(Any, Arriving(f"call-{number}")))


@pytest.mark.parametrize("at_claim", [True, False])
def test_a_fault_of_ours_costs_no_place_and_is_told(*, at_claim: bool) -> None:
    pool, delivery = CallPool(limit=1), Faulty(at_claim=at_claim)
    carry_out(pool, delivery, 5)
    wait_until(lambda: pool._slots.taken == 0 and len(delivery.refused) == 5)
    assert "call-4: The worker could not begin the call: LookupError('a fault of ours')" in delivery.refused


def test_a_pool_grows_and_shrinks_within_bounds() -> None:
    pool = CallPool(limit=2)
    pool.grow(3)
    pool.shrink(4)
    assert pool.limit == pool.num_processes == 1
    for too_many in (-1, MOST_SLOTS):
        with pytest.raises(ValueError, match="1 to 10,000 slots"):
            pool.grow(too_many)
    assert pool.limit == 1
