"""Plain code that async code asks for."""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from workers.concurrency.event_loop import beside_loop, is_on_loop
from workers.concurrency.threads import on_new_thread

place: ContextVar[str] = ContextVar("place", default="nowhere")


def aside(function: Any) -> Any:
    async def ask() -> Any:
        return await beside_loop(function, on_new_thread)

    return asyncio.run(ask())


def test_work_beside_loop_runs_on_thread_without_loop() -> None:
    assert aside(lambda: (threading.current_thread() is threading.main_thread(), is_on_loop())) == (
        False,
        False,
    )


def test_function_beside_loop_sees_callers_context() -> None:
    async def ask() -> str:
        place.set("here")
        return await beside_loop(place.get, on_new_thread)

    assert asyncio.run(ask()) == "here"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3)])
def test_exception_beside_loop_is_raised_to_caller(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def ask() -> BaseException | None:
        try:
            await beside_loop(fail, on_new_thread)
        except (ValueError, SystemExit) as raised:
            return raised
        return None

    assert asyncio.run(ask()) is error


def test_stop_iteration_does_not_get_lost() -> None:
    def fail() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        aside(fail)


def test_caller_that_stopped_waiting_is_not_notified() -> None:
    go_on = threading.Event()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(beside_loop(lambda: go_on.wait(10), on_new_thread), 0.05)
        go_on.set()
        await asyncio.sleep(0.05)

    asyncio.run(ask())
