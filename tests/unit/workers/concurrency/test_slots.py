"""Slots: lent by those who wait, given back before anything new begins."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goondan_tasks.contract.errors import LimitError
from workers.concurrency.slots import KeptSlot, QueuedJob, ReleasedSlot, Slots, Wait
from workers.concurrency.threads import InOrder


def begin(queued: QueuedJob) -> None:
    queued.job()


class Job:
    """A call: whether it has begun, and whether it goes on."""

    def __init__(self) -> None:
        self.has_begun = False
        self.released_slot: ReleasedSlot | None = None
        self.is_away = False
        self.is_coming = False

    def begin(self) -> None:
        self.has_begun = True

    def go_on(self) -> None:
        assert self.is_coming
        self.is_coming = False


class SlotsUnderTest:
    """Slots, with the jobs that want one."""

    def __init__(self, limit: int, most_released: int) -> None:
        self.limit = limit
        self.places = Slots(lambda: self.limit, begin)
        self.places.most_released = most_released
        self.jobs: list[Job] = []

    def enter(self) -> Job:
        job = Job()
        self.jobs.append(job)
        self.places.enter(QueuedJob(job.begin, len(self.jobs), InOrder()))
        return job

    def leave(self, job: Job) -> None:
        self.jobs.remove(job)
        self.places.leave(job.released_slot)

    def go_away(self, job: Job, wait: Wait = Wait.AGENT) -> None:
        job.released_slot = self.places.release_slot(wait)
        job.is_away = True

    def come_back(self, job: Job) -> None:
        assert job.released_slot is not None
        job.is_away, job.is_coming = False, True
        job.released_slot.end(job.go_on)


def test_no_more_begin_than_there_are_places() -> None:
    shop = SlotsUnderTest(limit=2, most_released=9)
    first, second, third = (shop.enter() for _ in range(3))
    assert [job.has_begun for job in (first, second, third)] == [True, True, False]
    assert shop.places.backlog == 1
    shop.leave(first)
    assert third.has_begun


def test_calls_ending_together_admit_as_many_others() -> None:
    freed: list[None] = []
    slots = Slots(lambda: 3, begin, lambda: freed.append(None))
    assert all(slots.take() for _ in range(3))
    waiting = [Job() for _ in range(2)]
    for number, job in enumerate(waiting):
        slots.enter(QueuedJob(job.begin, number, InOrder()))
    slots.leave_all(3)
    assert [job.has_begun for job in waiting] == [True, True]
    assert (slots.free, len(freed)) == (1, 1)


def test_events_in_transit_count_as_waiting_turns() -> None:
    shop = SlotsUnderTest(limit=3, most_released=2)
    shop.go_away(shop.enter(), Wait.TOOLS)
    assert shop.places.takes_events
    shop.places.expect(1)
    assert (shop.places.takes_events, shop.places.free) == (False, 3)
    shop.places.expect(-1)
    assert shop.places.takes_events


def test_place_of_one_that_waits_goes_to_next() -> None:
    shop = SlotsUnderTest(limit=1, most_released=9)
    first, second = shop.enter(), shop.enter()
    shop.go_away(first)
    assert second.has_begun
    shop.come_back(first)
    assert first.is_coming
    shop.leave(second)
    assert not first.is_coming


def test_returning_call_gets_slot_before_unstarted_calls() -> None:
    shop = SlotsUnderTest(limit=1, most_released=9)
    first, second, third = (shop.enter() for _ in range(3))
    shop.go_away(first)
    shop.come_back(first)
    shop.leave(second)
    assert (first.is_coming, third.has_begun) == (False, False)
    shop.leave(first)
    assert third.has_begun


def test_call_ending_while_away_frees_slot_once() -> None:
    shop = SlotsUnderTest(limit=1, most_released=9)
    first, second = shop.enter(), shop.enter()
    shop.go_away(first)
    shop.leave(first)
    assert shop.places.taken == 1
    shop.come_back(first)  # its handler comes back all the same
    assert not first.is_coming
    third = shop.enter()
    assert not third.has_begun
    shop.leave(second)
    assert third.has_begun


def test_call_ending_while_awaiting_slot_proceeds_without() -> None:
    shop = SlotsUnderTest(limit=1, most_released=9)
    first, second = shop.enter(), shop.enter()
    shop.go_away(first)
    shop.come_back(first)
    shop.leave(first)
    assert not first.is_coming
    assert shop.places.taken == 1
    shop.leave(second)
    assert shop.places.taken == 0


def test_excess_waiting_calls_keep_slots_but_not_last() -> None:
    shop = SlotsUnderTest(limit=2, most_released=1)
    first, second, third = (shop.enter() for _ in range(3))
    shop.go_away(first)
    assert third.has_begun
    shop.go_away(second)
    fourth = shop.enter()
    assert not fourth.has_begun
    with pytest.raises(LimitError, match="2 calls of this worker wait"):
        shop.go_away(third)
    shop.come_back(second)
    assert not second.is_coming
    shop.go_away(third)
    shop.come_back(third)
    assert not third.is_coming


def test_calls_awaiting_tools_are_unlimited_but_limit_events() -> None:
    shop = SlotsUnderTest(limit=1, most_released=2)
    turns = [shop.enter() for _ in range(4)]
    taken = []
    for turn in turns:
        shop.go_away(turn, Wait.TOOLS)
        taken.append(shop.places.takes_events)
    assert taken == [True, False, False, False]
    # one of their tools asks an agent, whose Turn may begin
    tools = [shop.enter() for _ in range(4)]
    for tool in tools[:2]:
        shop.go_away(tool)
    assert not shop.places.takes_events
    shop.come_back(turns[0])
    assert shop.places.takes_events
    shop.go_away(tools[2], Wait.HANDLER)
    assert shop.places.takes_events


def test_added_slots_serve_returning_before_waiting_calls() -> None:
    shop = SlotsUnderTest(limit=1, most_released=9)
    first, second, third = (shop.enter() for _ in range(3))
    shop.go_away(first)
    shop.come_back(first)
    assert (second.has_begun, first.is_coming) == (True, True)
    shop.limit = 3
    shop.places.fill()
    assert (first.is_coming, third.has_begun) == (False, True)
    assert shop.places.taken == 3


def test_removed_slots_go_when_their_calls_end() -> None:
    shop = SlotsUnderTest(limit=3, most_released=9)
    jobs = [shop.enter() for _ in range(4)]
    shop.limit = 1
    for job in jobs[:2]:
        shop.leave(job)
    assert (shop.places.taken, jobs[3].has_begun) == (1, False)
    shop.leave(jobs[2])
    assert (shop.places.taken, jobs[3].has_begun) == (1, True)


def test_calls_not_begun_can_be_taken_away() -> None:
    shop = SlotsUnderTest(limit=1, most_released=9)
    running, *waiting = (shop.enter() for _ in range(3))
    assert [queued.message for queued in shop.places.take_waiting()] == [2, 3]
    assert shop.places.backlog == 0
    shop.leave(running)
    assert not any(job.has_begun for job in waiting)
    assert shop.places.taken == 0


def test_pool_lending_no_slots_resumes_calls_immediately() -> None:
    job = Job()
    job.is_coming = True
    released_slot = KeptSlot()
    released_slot.end(job.go_on)
    assert not job.is_coming
    assert released_slot.give_up()


def test_threads_that_lend_and_leave_lose_no_place() -> None:
    places = Slots(lambda: 3, begin)
    places.most_released = 5
    inside, most, lock, done = 0, 0, threading.Lock(), threading.Semaphore(0)

    def count(change: int) -> None:
        nonlocal inside, most
        with lock:
            inside += change
            most = max(most, inside)

    def carry_out(threads: ThreadPoolExecutor) -> None:
        def work() -> None:
            count(1)
            released_slot = None
            try:
                count(-1)
                released_slot = places.release_slot()
            except LimitError:
                count(1)
            else:
                back = threading.Event()
                released_slot.end(back.set)
                back.wait(30)
                count(1)
            count(-1)
            places.leave(released_slot)
            done.release()

        threads.submit(work)

    with ThreadPoolExecutor(64) as threads:
        for number in range(500):
            places.enter(QueuedJob(partial(carry_out, threads), number, InOrder()))
        assert all(done.acquire(timeout=30) for _ in range(500))
    assert most <= 3
    assert (places.taken, places.backlog, places._released.total(), places._idle) == (0, 0, 0, 0)


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, the places add up and nobody is forgotten."""

    @initialize(limit=st.integers(1, 4), most_released=st.integers(0, 4))
    def open(self, limit: int, most_released: int) -> None:
        self.shop = SlotsUnderTest(limit, most_released)

    def pick(self, data: st.DataObject, jobs: list[Job]) -> Job:
        return data.draw(st.sampled_from(jobs))

    @property
    def working(self) -> list[Job]:
        return [job for job in self.shop.jobs if job.has_begun and not job.is_away and not job.is_coming]

    @property
    def away(self) -> list[Job]:
        return [job for job in self.shop.jobs if job.is_away]

    @rule()
    def enter(self) -> None:
        self.shop.enter()

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        try:
            self.shop.go_away(self.pick(data, self.working), data.draw(st.sampled_from(Wait)))
        except LimitError:
            assert len(self.away) >= self.shop.places.most_released

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.shop.come_back(self.pick(data, self.away))

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.shop.leave(self.pick(data, self.working))

    @precondition(lambda self: any(job.is_coming for job in self.shop.jobs))
    @rule(data=st.data())
    def leave_before_it_is_back(self, data: st.DataObject) -> None:
        job = self.pick(data, [job for job in self.shop.jobs if job.is_coming])
        self.shop.leave(job)
        assert not job.is_coming

    @invariant()
    def places_add_up(self) -> None:
        places = self.shop.places
        assert len(self.working) + places._idle == places.taken <= self.shop.limit
        assert len(self.working) > 0 or not self.shop.jobs or self.away
        if places.taken < self.shop.limit:
            assert all(job.has_begun and not job.is_coming for job in self.shop.jobs)


TestAnyOrder = AnyOrder.TestCase
