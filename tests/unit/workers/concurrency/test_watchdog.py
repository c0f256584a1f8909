"""Alarms for handlers that nobody can interrupt."""

import threading
import weakref
from collections.abc import Iterator
from queue import Empty, SimpleQueue

import pytest

from tests.waiting import wait_until
from workers.concurrency.watchdog import MOST_CALLED_OFF, Watchdog


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    watchdog.start()
    yield watchdog


def test_alarms_are_called_in_order_of_their_time(watchdog: Watchdog) -> None:
    called: SimpleQueue[str] = SimpleQueue()
    watchdog.watch(0.2, lambda: called.put("late"))
    watchdog.watch(0.05, lambda: called.put("early"))
    assert [called.get(timeout=30), called.get(timeout=30)] == ["early", "late"]


def test_alarm_that_was_called_off_is_not_called(watchdog: Watchdog) -> None:
    called: SimpleQueue[str] = SimpleQueue()
    call_off = watchdog.watch(0.05, lambda: called.put("off"))
    call_off()
    watchdog.watch(0.1, lambda: called.put("on"))
    assert called.get(timeout=30) == "on"
    with pytest.raises(Empty):
        called.get_nowait()


def test_calling_off_too_late_does_no_harm(watchdog: Watchdog) -> None:
    rang = threading.Event()
    call_off = watchdog.watch(0, rang.set)
    assert rang.wait(30)
    call_off()
    again = threading.Event()
    watchdog.watch(0, again.set)
    assert again.wait(30)


def test_cancelled_alarms_are_forgotten(watchdog: Watchdog) -> None:
    for call_off in [watchdog.watch(60, threading.Event().set) for _ in range(100)]:
        call_off()
    wait_until(lambda: not watchdog._alarms)


def test_cancelled_alarms_behind_slow_alarm_are_forgotten(watchdog: Watchdog) -> None:
    held = [threading.Event() for _ in range(3 * MOST_CALLED_OFF)]
    last = weakref.ref(held[-1])
    watchdog.watch(30, threading.Event().set)
    for event in held:
        watchdog.watch(60, event.set)()
    del event
    held.clear()
    assert last() is None
    assert watchdog.size <= MOST_CALLED_OFF + 2
