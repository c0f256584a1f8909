"""Threads that are woken when they are needed, and used again."""

import asyncio
import itertools
import threading
from concurrent.futures import Future

import pytest
from structlog.testing import capture_logs

from tests.waiting import wait_until
from workers.concurrency import threads as module
from workers.concurrency.threads import DaemonThreads, InOrder, on_new_thread

PATIENCE = 30


class Flushes:
    """Counts how often what was put off was flushed."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def flushes() -> Flushes:
    return Flushes()


@pytest.fixture
def threads(flushes: Flushes) -> DaemonThreads:
    threads = DaemonThreads(flushes)
    threads.start()
    return threads


def test_each_job_has_thread_at_once(threads: DaemonThreads) -> None:
    together = threading.Barrier(33)
    for _ in range(32):
        threads.run(lambda: together.wait(PATIENCE))
    together.wait(PATIENCE)
    assert threads.count == 32


def test_threads_are_used_again(threads: DaemonThreads) -> None:
    for _ in range(20):
        done: Future[None] = Future()
        threads.run(lambda done=done: done.set_result(None))  # type: ignore[misc]
        done.result(PATIENCE)
        wait_until(lambda: threads.idle == threads.count, PATIENCE)
    assert threads.count == 1


def test_deferred_work_is_flushed_after_job_ends(threads: DaemonThreads, flushes: Flushes) -> None:
    threads.run(lambda: None)
    wait_until(lambda: flushes.count, PATIENCE)


def test_short_jobs_share_thread_in_order_and_flush(threads: DaemonThreads, flushes: Flushes) -> None:
    ran: list[tuple[int, str]] = []
    for number in range(500):
        threads.run_short(lambda number=number: ran.append((number, threading.current_thread().name)))  # type: ignore[misc]
    wait_until(lambda: len(ran) == 500 and flushes.count, PATIENCE)
    assert [number for number, _ in ran] == list(range(500))
    assert len({name for _, name in ran}) == 1


def test_job_runs_once_its_thread_can_start(threads: DaemonThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refusals, done = threading.Thread.start, itertools.count(), Future[None]()

    def refuse_twice(thread: threading.Thread) -> None:
        if next(refusals) < 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(threading.Thread, "start", refuse_twice)
    threads.run(lambda: done.set_result(None))
    done.result(PATIENCE)
    assert (next(refusals), threads.count) == (3, 1)


def test_freed_thread_takes_job_without_thread(
    threads: DaemonThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, done = threading.Event(), Future[None]()
    threads.run(lambda: go_on.wait(PATIENCE))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.run(lambda: done.set_result(None))
    go_on.set()
    done.result(PATIENCE)
    assert threads.count == 1


def test_fault_in_short_job_does_not_stop_others(threads: DaemonThreads) -> None:
    done: Future[None] = Future()
    threads.run_short(lambda: [][1])
    threads.run_short(lambda: done.set_result(None))
    done.result(PATIENCE)


def test_thread_goes_on_after_fault(threads: DaemonThreads, flushes: Flushes) -> None:
    def fail() -> None:
        raise SystemExit(3)

    with capture_logs() as logs:
        threads.run(fail)
        wait_until(lambda: threads.idle == 1, PATIENCE)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("thread.fault", "error")]
    assert flushes.count == 1
    done: Future[None] = Future()
    threads.run(lambda: done.set_result(None))
    done.result(PATIENCE)
    assert threads.count == 1


def test_follow_up_of_failed_job_still_runs() -> None:
    async def ask() -> None:
        followed = asyncio.Event()
        on_new_thread(lambda: [][1], followed.set)
        await asyncio.wait_for(followed.wait(), PATIENCE)

    asyncio.run(ask())


def test_threads_proceed_in_order_past_ended_ones() -> None:
    turns = [InOrder()]
    for _ in range(9):
        turns.append(InOrder(turns[-1]))
    went_on: list[int] = []

    def go(number: int) -> None:
        with turns[number]:
            went_on.append(number)

    turns[4].end()  # it needs no turn after all
    threads = [threading.Thread(target=go, args=[number]) for number in (9, 8, 7, 6, 5, 3, 2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [number for number in went_on if number < 4] == [0, 1, 2, 3]
    assert [number for number in went_on if number > 4] == [5, 6, 7, 8, 9]
