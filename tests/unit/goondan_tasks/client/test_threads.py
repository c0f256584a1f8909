"""The threads of the client for asyncio."""

import asyncio
import contextvars
import threading

import pytest

from goondan_tasks.client.threads import MOST_THREADS, ClientThreads
from goondan_tasks.contract.errors import BrokerUnreachableError
from tests.waiting import wait_until

#: the threads that clients of earlier tests have left in this process
EARLIER: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _earlier() -> None:
    EARLIER.update(threading.enumerate())


def ours() -> list[threading.Thread]:
    named = [thread for thread in threading.enumerate() if thread.name == "goondan-client"]
    return [thread for thread in named if thread not in EARLIER]


def test_trips_that_hang_leave_programs_own_executor_alone() -> None:
    end = threading.Event()

    async def program() -> str:
        threads = ClientThreads()
        hanging = [asyncio.ensure_future(threads.run(end.wait)) for _ in range(2 * MOST_THREADS)]
        await asyncio.sleep(0)
        told = await asyncio.wait_for(asyncio.to_thread(lambda: "mine"), 30)
        assert len(ours()) == MOST_THREADS
        assert all(thread.daemon for thread in ours())
        end.set()
        assert await asyncio.gather(*hanging) == [True] * len(hanging)
        threads.close()
        return told

    assert asyncio.run(program()) == "mine"
    wait_until(lambda: ours() == [])


def test_trip_without_free_thread_fails_and_never_runs() -> None:
    end, made = threading.Event(), list[str]()

    async def program() -> None:
        threads = ClientThreads()
        hanging = [asyncio.ensure_future(threads.run(end.wait)) for _ in range(MOST_THREADS)]
        with pytest.raises(BrokerUnreachableError):
            await threads.run_within(0.0, lambda: made.append("late"))
        left = asyncio.ensure_future(threads.run_within(600.0, lambda: made.append("left")))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        end.set()
        await asyncio.gather(*hanging)
        await threads.run_within(600.0, lambda: made.append("soon"))
        threads.close()

    asyncio.run(program())
    assert made == ["soon"]
    wait_until(lambda: ours() == [])


def test_trip_runs_and_raises_in_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def fail() -> None:
        raise ValueError(variable.get())

    async def program() -> None:
        threads = ClientThreads()
        variable.set("of the caller")
        for _ in range(3):  # after a close, too
            with pytest.raises(ValueError, match="of the caller"):
                await threads.run(fail)
            threads.close()

    asyncio.run(program())
    wait_until(lambda: ours() == [])


def test_trip_cancelled_before_its_start_never_runs() -> None:
    end = threading.Event()
    made: list[int] = []

    async def program() -> None:
        threads = ClientThreads()
        hanging = [asyncio.ensure_future(threads.run(end.wait)) for _ in range(MOST_THREADS)]
        waiting = asyncio.ensure_future(threads.run(made.append, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        end.set()
        await asyncio.gather(*hanging)
        threads.close()

    asyncio.run(program())
    wait_until(lambda: ours() == [])
    assert made == []
