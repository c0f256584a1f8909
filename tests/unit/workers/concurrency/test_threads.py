"""Threads that are woken only when they are needed."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from tests.waiting import wait_until
from workers.concurrency.threads import DaemonThreads

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


@pytest.fixture
def obstacle() -> Callable[[], object]:
    """Return a job that lasts until the test ends, as far as the test is concerned."""
    return lambda: threading.Event().wait(PATIENCE)


def test_short_jobs_run_in_order_and_wake_next_to_no_thread(threads: DaemonThreads) -> None:
    ran: list[tuple[int, str]] = []
    for number in range(500):
        threads.run(lambda number=number: ran.append((number, threading.current_thread().name)))  # type: ignore[misc]
    wait_until(lambda: len(ran) == 500, PATIENCE)
    assert [number for number, _ in ran] == list(range(500))
    # one, unless the machine lets it wait so long that the watch takes it for stuck
    assert len({name for _, name in ran}) < 10


def test_a_job_that_lasts_holds_up_nothing_behind_it(
    threads: DaemonThreads, obstacle: Callable[[], object]
) -> None:
    done: Future[str] = Future()
    threads.run(obstacle)
    threads.run(lambda: done.set_result("behind"))
    assert done.result(PATIENCE / 2) == "behind"


def test_many_that_last_are_all_soon_at_work(threads: DaemonThreads) -> None:
    everybody = threading.Barrier(33)
    for _ in range(32):
        threads.run(lambda: everybody.wait(PATIENCE))
    everybody.wait(PATIENCE / 2)


def test_a_job_known_to_last_has_a_thread_at_once(threads: DaemonThreads) -> None:
    together = threading.Barrier(3)
    for _ in range(2):
        threads.run(lambda: together.wait(PATIENCE), lasts=True)
    together.wait(PATIENCE)
    assert threads.count == 2


def test_threads_are_used_again(threads: DaemonThreads) -> None:
    for _ in range(20):
        done: Future[None] = Future()
        threads.run(lambda done=done: done.set_result(None), lasts=True)  # type: ignore[misc]
        done.result(PATIENCE)
        wait_until(lambda: threads.idle == threads.count, PATIENCE)
    assert threads.count == 1


def test_what_was_put_off_is_flushed_when_nothing_is_left(threads: DaemonThreads, flushes: Flushes) -> None:
    threads.run(lambda: None)
    wait_until(lambda: flushes.count, PATIENCE)


def test_what_was_put_off_is_flushed_while_a_job_lasts(
    threads: DaemonThreads, flushes: Flushes, obstacle: Callable[[], object]
) -> None:
    threads.run(obstacle)
    threads.run(obstacle)
    before = flushes.count
    wait_until(lambda: flushes.count > before, PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_another_thread_leads_when_a_job_has_ended_the_one_that_did(threads: DaemonThreads) -> None:
    first: Future[threading.Thread] = Future()

    def job() -> None:
        first.set_result(threading.current_thread())
        raise LookupError("a fault of ours")

    threads.run(job)
    first.result(PATIENCE).join(PATIENCE)  # what pytest hears of a thread must not come in another test
    done: Future[None] = Future()
    threads.run(lambda: done.set_result(None))
    done.result(PATIENCE)


class TakenFirst(deque[Callable[[], object]]):
    """Jobs of which somebody else takes the last one just after they were counted."""

    def __len__(self) -> int:
        count = super().__len__()
        self.clear()
        return count


def test_the_watch_lives_on_when_whoever_leads_takes_the_last_job_before_it(
    threads: DaemonThreads, obstacle: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_jobs", TakenFirst([obstacle]))
        threads._take_over(1)
    done: Future[str] = Future()
    threads.run(obstacle)
    threads.run(lambda: done.set_result("behind"))
    assert done.result(PATIENCE / 2) == "behind"
