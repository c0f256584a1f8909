"""Our Celery pool, without a worker around it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker import state

from broker_config.queue_reader import Batch
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.ledger.record import Verdict
from tests.unit.workers.runs import job_of
from tests.waiting import wait_until
from workers.concurrency.slots import QueuedJob
from workers.concurrency.threads import DaemonThreads, InOrder
from workers.pool.intake import ReservedMessage
from workers.pool.pool import MOST_SLOTS, CallPool


class Intake:
    """Keeps the messages that go back, and reads each one as its tag."""

    is_idle = True

    def __init__(self) -> None:
        self.returned: list[str] = []
        self.acknowledged: list[str] = []
        #: the ids of the calls whose records replace acknowledged messages
        self.replaced: list[str] = []

    def hold(self, batch: Batch) -> list[ReservedMessage]:
        return [ReservedMessage(*one) for one in batch.messages]

    def give_back(self, messages: Sequence[ReservedMessage]) -> None:
        self.returned += [message.tag for message in messages]

    def acknowledge(self, message: ReservedMessage, call_id: str = "") -> None:
        self.acknowledged.append(message.tag)
        self.replaced.append(call_id)

    def read(self, message: ReservedMessage, worker: str) -> Any:
        return Read(message.tag)


class Read:
    """What stands in a message."""

    def __init__(self, tag: str) -> None:
        self.id = tag

    def log_fields(self, worker: str) -> dict[str, str]:
        return {"call_id": self.id, "worker": worker}


def message(tag: str, queue: str = "agent.smith") -> ReservedMessage:
    return ReservedMessage(tag, queue, b"{}")


def pool_of(limit: int, *tags: str, queue: str = "agent.smith") -> tuple[CallPool, Intake]:
    """Make a pool to which these messages have come."""
    pool, intake = CallPool(limit=limit), Intake()
    pool.intake = cast(Any, intake)
    pool.deliver(Batch(messages=[(tag, queue, b"{}") for tag in tags]))
    return pool, intake


def test_messages_waiting_for_slot_return_to_queue() -> None:
    pool, intake = pool_of(0, "tag-1", "tag-2")
    pool.return_backlog()
    assert intake.returned == ["tag-1", "tag-2"]
    assert pool._slots.backlog == 0


def test_next_message_does_not_await_returned_message() -> None:
    pool, _ = pool_of(0, "tag-1")
    pool.return_backlog()
    assert pool._latest is not None
    assert pool._latest.is_over


def test_call_that_leaves_lead_meanwhile_keeps_pool_busy() -> None:
    pool, _ = pool_of(1)
    job = job_of(new_call("smith", "echo__args", {}, {}))

    class Lead:
        @property
        def is_idle(self) -> bool:
            pool.jobs[job.token] = job
            return True

    assert not pool.is_busy
    pool.lead = cast(Any, Lead())
    assert pool.is_busy


def test_event_whose_message_waits_may_begin_turn() -> None:
    pool, _ = pool_of(0)
    pool._slots.most_released = 1
    pool.deliver(Batch(messages=[("tag-1", "agent.smith.events", b"{}")]))
    assert not pool._slots.takes_events
    pool.return_backlog()
    assert pool._slots.takes_events


def test_stopping_worker_returns_messages_that_still_come() -> None:
    pool, intake = pool_of(0)
    pool.drain()
    pool.take(message("tag-1"))
    assert intake.returned == ["tag-1"]
    assert pool._slots.backlog == 0


class Delivery:
    """A delivery that refuses messages."""

    def __init__(self) -> None:
        self.refused: list[str] = []

    def refuse(self, incoming: Read, worker: str, error: GoondanError, *_: Any) -> None:
        self.refused.append(f"{incoming.id}: {error.message}")

    def flush(self) -> None: ...


class FaultAtClaim(Delivery):
    """A delivery with a fault of ours where calls are claimed."""

    def claim(self, incoming: Read, worker: str, turn: object) -> Any:
        raise LookupError("a fault of ours")


class FaultAtSettling(Delivery):
    """A delivery with a fault of ours where a claim that runs nothing is settled."""

    verdict = Verdict.SHARED

    def claim(self, incoming: Read, worker: str, turn: object) -> Any:
        return SimpleNamespace(verdict=self.verdict)

    def settle(self, claim: Any) -> None:
        self.refused.append("settled")
        raise LookupError("a fault of ours")


def carry_out(delivery: Delivery, *tags: str) -> tuple[CallPool, Intake]:
    """Let messages come to a pool with one slot."""
    pool, intake = pool_of(1)
    event_loop = SimpleNamespace(flush=lambda: None)
    pool._runtime = cast(Any, SimpleNamespace(delivery=delivery, event_loop=event_loop))
    pool.consumer = SimpleNamespace(hostname="w1")
    pool._threads = DaemonThreads(pool.flush)
    pool._threads.start()
    for tag in tags:
        pool.take(message(tag))
    return pool, intake


def test_claiming_fault_costs_no_slot_and_answers_call() -> None:
    delivery = FaultAtClaim()
    pool, intake = carry_out(delivery, "a", "b", "c")
    wait_until(lambda: pool._slots.taken == 0 and len(intake.acknowledged) == 3)
    text = "The worker could not begin the call: LookupError('a fault of ours')"
    assert sorted(delivery.refused) == [f"{tag}: {text}" for tag in "abc"]
    assert intake.acknowledged == ["a", "b", "c"]
    assert pool._latest is not None
    assert pool._latest.is_over


def test_fault_where_claim_is_settled_costs_no_slot() -> None:
    delivery = FaultAtSettling()
    pool, intake = carry_out(delivery, "a", "b")
    wait_until(lambda: pool._slots.taken == 0 and len(delivery.refused) == 2)
    assert intake.acknowledged == intake.replaced == ["a", "b"]


@pytest.mark.parametrize("verdict", [Verdict.TAKEN, Verdict.ABSENT])
def test_message_of_call_without_own_record_always_leaves(verdict: Verdict) -> None:
    delivery = FaultAtSettling()
    delivery.verdict = verdict
    pool, intake = carry_out(delivery, "a")
    wait_until(lambda: pool._slots.taken == 0 and intake.acknowledged == ["a"])
    assert intake.replaced == [""]


class FaultyRun(Delivery):
    """A delivery whose refusals cannot be sent."""

    def refuse(self, incoming: Any, worker: str, error: GoondanError, *_: Any) -> None:
        super().refuse(incoming, worker, error)
        raise LookupError("another fault of ours")


def test_fault_with_unsendable_refusal_costs_no_slot() -> None:
    delivery = FaultyRun()
    pool, _ = carry_out(delivery)
    job: Any = Begun()
    pool._slots.enter(QueuedJob(lambda: pool.prepare_and_run(job), job, InOrder()))
    wait_until(lambda: pool._slots.taken == 0 and len(delivery.refused) == 1)
    assert (pool.jobs, list(state.active_requests)) == ({}, [])


class Begun:
    """A claimed call whose check has a fault."""

    id, token, queue, agent, tool_name, worker = "call-1", "t-1", "agent.smith", "smith", "echo__args", "w1"
    begun_at = 0.0
    released_slot = original = None
    log_fields = SimpleNamespace(known=dict)

    def read(self) -> dict[str, Any]:
        return {}


def test_pool_grows_and_shrinks_within_bounds() -> None:
    pool = CallPool(limit=2)
    pool.grow(3)
    pool.shrink(4)
    assert pool.limit == pool.num_processes == 1
    for too_many in (-1, MOST_SLOTS):
        with pytest.raises(ValueError, match="1 to 10,000 slots"):
            pool.grow(too_many)
    assert pool.limit == 1


@pytest.mark.parametrize("begun_by", ["nothing", "handler", "end"])
def test_detached_call_reports_start_once_even_if_ended(
    monkeypatch: pytest.MonkeyPatch, begun_by: str
) -> None:
    told: list[str] = []
    for name in ("tell_claim", "tell_start"):
        monkeypatch.setattr(f"workers.pool.pool.{name}", lambda *_, name=name: told.append(name))
    limits = SimpleNamespace(watch=lambda *_: lambda: None, begin=lambda claim: None)
    delivery = SimpleNamespace(hold=lambda *_: lambda *_, **__: lambda: None, watchdog=limits)
    pool, _ = pool_of(1)
    pool._runtime = cast(Any, SimpleNamespace(delivery=delivery, limiter=limits, monitors=None))
    pool.consumer = SimpleNamespace(event_dispatcher=None)
    job = job_of(new_call("smith", "echo__args", {}, {}))
    job.plan = cast(Any, SimpleNamespace(has_layers=True, limit_seconds=1.0, is_isolated=False))
    job.begin(is_wrapped=True)
    if begun_by != "nothing":
        job.begin_handler()
    if begun_by == "end":
        job.end_handler()
    pool.detach(job)
    if begun_by == "nothing":
        assert told == ["tell_claim"]
        job.begin_handler()
    assert told == ["tell_claim", "tell_start"]
    state.active_requests.discard(job)
