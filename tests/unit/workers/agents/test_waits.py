"""Waiting without a place."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from goondan_tasks.contract.errors import LimitError
from tests.waiting import wait_until
from workers.concurrency.slots import Wait
from workers.concurrency.waits import Waits
from workers.turns.pipeline import blocking


class Doorman:
    """Counts those who step out, and lets them in when the test says so."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self.outside = 0
        self.exits = 0
        self.has_given_up = False
        self._waiting: list[Callable[[], object]] = []

    def release_slot(self, wait: Wait = Wait.AGENT) -> "Doorman":
        self.outside += 1
        self.exits += 1
        return self

    def end(self, then: Callable[[], object]) -> None:
        self._waiting.append(then)
        if self.is_open:
            self.open()

    def open(self) -> None:
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            self.outside -= 1
            then()

    def give_up(self) -> bool:
        self.has_given_up = True
        self.open()
        return False

    @property
    def knocks(self) -> int:
        return len(self._waiting)


async def comes_true(condition: Callable[[], bool]) -> None:
    """Let the other tasks go on until this is so."""
    await asyncio.to_thread(wait_until, condition)


@contextmanager
def blocked(waits: Waits) -> Iterator[None]:
    """Wait as plain code does."""
    waiting = waits.without_slot(is_async=False)
    blocking(waiting.__aenter__())
    try:
        yield
    finally:
        blocking(waiting.__aexit__(*sys.exc_info()))


def goes_on() -> bool:
    """Say of a run that it is not over."""
    return False


def test_many_waits_of_one_run_are_one_absence() -> None:
    doorman = Doorman()
    waits = Waits(doorman.release_slot, goes_on)
    inside = []

    async def wait(seconds: float) -> None:
        async with waits.without_slot(is_async=True):
            await asyncio.sleep(seconds)
            inside.append(doorman.outside)

    async def run() -> None:
        await asyncio.gather(*(wait(number / 100) for number in range(5)))

    asyncio.run(run())
    assert inside == [1] * 5
    assert (doorman.outside, doorman.exits) == (0, 1)


def test_each_successive_wait_is_separate_absence() -> None:
    doorman = Doorman()
    waits = Waits(doorman.release_slot, goes_on)
    for _ in range(3):
        with blocked(waits):
            assert doorman.outside == 1
        assert doorman.outside == 0
    assert doorman.exits == 3


def test_thread_goes_on_only_when_it_has_place() -> None:
    doorman = Doorman(is_open=False)
    waits = Waits(doorman.release_slot, goes_on)
    is_back = threading.Event()

    def run() -> None:
        with blocked(waits):
            pass
        is_back.set()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run)
        wait_until(lambda: doorman.knocks)
        assert not is_back.is_set()
        doorman.open()
        assert is_back.wait(30)


def test_wait_before_run_returns_frees_no_slot() -> None:
    doorman = Doorman(is_open=False)
    waits = Waits(doorman.release_slot, goes_on)
    went_on: list[str] = []

    async def wait(name: str, until: asyncio.Event) -> None:
        async with waits.without_slot(is_async=True):
            await until.wait()
        went_on.append(name)

    async def main() -> None:
        at_once, second = asyncio.Event(), asyncio.Event()
        at_once.set()
        tasks = [asyncio.create_task(wait("first", at_once))]
        await comes_true(lambda: doorman.knocks == 1)
        tasks += [asyncio.create_task(wait("second", second)), asyncio.create_task(wait("third", at_once))]
        await asyncio.sleep(0.01)
        assert (doorman.exits, doorman.knocks) == (1, 1)
        doorman.open()
        await asyncio.gather(tasks[0])
        second.set()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert sorted(went_on) == ["first", "second", "third"]
    assert (doorman.outside, doorman.exits) == (0, 1)


@pytest.mark.parametrize("is_back", [False, True])
def test_run_that_is_over_ends_without_place(*, is_back: bool) -> None:
    """It is cancelled while it waits for an answer, or when the answer is there and its place is not."""
    doorman = Doorman(is_open=False)
    is_over = threading.Event()
    waits = Waits(doorman.release_slot, is_over.is_set)
    answer = asyncio.Event()

    async def run() -> None:
        try:
            async with waits.without_slot(is_async=True):
                await answer.wait()
        finally:
            async with waits.without_slot(is_async=True):  # while it cleans up, it has no place to lend
                assert doorman.exits == 1

    async def main() -> None:
        task = asyncio.create_task(run())
        await asyncio.sleep(0.01)
        if is_back:
            answer.set()
            await comes_true(lambda: doorman.knocks == 1)
        is_over.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 60)

    asyncio.run(main())
    assert doorman.has_given_up


def test_run_that_was_answered_for_lends_no_place() -> None:
    """Plain code that goes on behind its limit: its place is somebody else's by now."""
    doorman = Doorman()
    waits = Waits(doorman.release_slot, lambda: True)
    with blocked(waits):
        assert doorman.exits == 0


def test_cancelled_wait_of_continuing_run_retakes_slot() -> None:
    doorman = Doorman(is_open=False)
    waits = Waits(doorman.release_slot, goes_on)

    async def run() -> None:
        async with waits.without_slot(is_async=True):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(run())
        await asyncio.sleep(0)
        for _ in range(3):  # however often
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        doorman.open()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert doorman.outside == 0


def test_error_inside_wait_is_raised_after_return() -> None:
    doorman = Doorman()
    waits = Waits(doorman.release_slot, goes_on)

    async def run() -> None:
        async with waits.without_slot(is_async=True):
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        asyncio.run(run())
    with pytest.raises(ValueError, match="blocked"), blocked(waits):
        raise ValueError("blocked")
    assert (doorman.outside, doorman.exits) == (0, 2)


def test_wait_that_is_not_allowed_never_begins() -> None:
    may_wait = False
    doorman = Doorman()

    def release_slot(wait: Wait = Wait.AGENT) -> Doorman:
        if not may_wait:
            raise LimitError("too many")
        return doorman.release_slot()

    waits = Waits(release_slot, goes_on)

    async def run() -> None:
        async with waits.without_slot(is_async=True):
            pytest.fail("it waits")

    with pytest.raises(LimitError):
        asyncio.run(run())
    with pytest.raises(LimitError), blocked(waits):
        pytest.fail("it waits")
    may_wait = True
    with blocked(waits):
        assert doorman.outside == 1
    assert doorman.outside == 0
