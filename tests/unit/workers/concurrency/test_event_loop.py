"""Coroutines that begin on a thread and go on on the loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from workers.concurrency.event_loop import EventLoopThread, drive, move_to_loop

place: ContextVar[str] = ContextVar("place", default="nowhere")


@pytest.fixture
def loop() -> Iterator[EventLoopThread]:
    loop = EventLoopThread()
    loop.start()
    yield loop
    loop.stop()


def test_coroutine_that_never_waits_ends_on_its_thread() -> None:
    async def plain() -> int:
        return threading.get_ident()

    assert drive(plain()) == (threading.get_ident(),)


def test_coroutine_moves_to_loop_and_continues_there(loop: EventLoopThread) -> None:
    places: list[int] = []

    async def moving() -> str:
        places.append(threading.get_ident())
        await move_to_loop()
        places.append(threading.get_ident())
        await asyncio.sleep(0)
        return "done"

    coroutine = moving()
    assert drive(coroutine) is None
    assert loop.submit(coroutine).result(timeout=30) == "done"
    assert places[0] == threading.get_ident() != places[1]


def test_moving_while_on_loop_changes_nothing() -> None:
    async def staying() -> int:
        await move_to_loop()
        return 1

    assert asyncio.run(staying()) == 1


def test_exception_of_coroutine_on_its_thread_is_raised() -> None:
    async def failing() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        drive(failing())


def test_many_coroutines_overlap_on_loop(loop: EventLoopThread) -> None:
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
        future.result(timeout=30)


def test_deferred_work_runs_in_its_context_at_flush(
    loop: EventLoopThread,
) -> None:
    called: list[tuple[int, str]] = []
    ended = threading.Event()
    for name in ("first", "second"):
        place.set(name)
        loop.put_off(lambda: called.append((threading.get_ident(), place.get())))
    loop.submit(asyncio.sleep(0)).result(timeout=30)  # the loop is awake, but nobody has flushed
    assert called == []
    loop.put_off(ended.set)
    loop.flush()
    loop.flush()
    assert ended.wait(30)
    [thread] = {thread for thread, _ in called}
    assert thread != threading.get_ident()
    assert [where for _, where in called] == ["first", "second"]


def test_work_deferred_during_catch_up_still_runs(loop: EventLoopThread) -> None:
    wake_ups, ended = 0, threading.Event()

    def again() -> None:
        nonlocal wake_ups
        wake_ups += 1
        loop.put_off(again if wake_ups < 1000 else ended.set)
        threading.Thread(target=loop.flush).start() if wake_ups % 100 == 0 else loop.flush()

    loop.put_off(again)
    loop.flush()
    assert ended.wait(30)
    assert wake_ups == 1000


def test_flushing_stopped_loop_does_no_harm() -> None:
    gone = EventLoopThread()
    gone.start()
    gone.stop()
    gone.put_off(lambda: None)
    gone.flush()
