"""Coroutines that begin on a thread and go on on the loop."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from workers.event_loop import EventLoopThread, drive, move_to_loop


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    loop = EventLoopThread()
    loop.start()
    yield loop
    loop.stop()


def test_a_coroutine_that_never_waits_ends_on_its_thread() -> None:
    async def plain() -> int:
        return threading.get_ident()

    assert drive(plain()) == (threading.get_ident(),)


def test_a_coroutine_moves_to_the_loop_and_goes_on_there(loop: EventLoopThread) -> None:
    places: list[int] = []

    async def moving() -> str:
        places.append(threading.get_ident())
        await move_to_loop()
        places.append(threading.get_ident())
        await asyncio.sleep(0)
        return "done"

    coroutine = moving()
    assert drive(coroutine) is None
    assert loop.submit(coroutine).result(timeout=5) == "done"
    assert places[0] == threading.get_ident() != places[1]


def test_moving_on_the_loop_stays_where_it_is() -> None:
    async def staying() -> int:
        await move_to_loop()
        return 1

    assert asyncio.run(staying()) == 1


def test_what_a_coroutine_raises_on_its_thread_is_raised() -> None:
    async def failing() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        drive(failing())


def test_many_coroutines_overlap_on_the_loop(loop: EventLoopThread) -> None:
    arrived = 0
    everybody = asyncio.Event()

    async def meet() -> None:
        nonlocal arrived
        await move_to_loop()
        arrived += 1
        if arrived == 100:
            everybody.set()
        await everybody.wait()

    futures = []
    for _ in range(100):
        coroutine = meet()
        assert drive(coroutine) is None
        futures.append(loop.submit(coroutine))
    for future in futures:
        future.result(timeout=10)
