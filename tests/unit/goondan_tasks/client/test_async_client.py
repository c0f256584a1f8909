"""The asyncio client: made from the blocking one; what is cancelled is undone."""

import asyncio
import inspect
import threading

import pytest

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.client.async_client import AsyncSchedules, Undoable
from goondan_tasks.client.schedules import Schedules
from goondan_tasks.client.threads import ClientThreads
from goondan_tasks.contract.errors import BrokerUnreachableError
from tests.waiting import wait_until

#: for workers, which hand their calls over themselves, and for the client's own parts
NOT_ASYNC = {
    "ask",
    "broker_errors",
    "call_off",
    "cancel_open",
    "expect",
    "follower",
    "following",
    "forget",
    "give_up",
    "hub",
    "listen",
    "look",
    "now",
    "patience",
    "producer",
    "retrying",
    "threads",
    "time_of",
} | {
    "send_messages",
    "submit_again",
    "submit_batches",
    "submit_drafts",
    "submit_event",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_async_client_has_methods_of_client() -> None:
    assert public(AsyncClient) == public(Client) - NOT_ASYNC


@pytest.mark.parametrize("name", sorted(public(AsyncClient) - {"turn", "schedules"}))
def test_async_method_is_coroutine_with_parameters_of_client(name: str) -> None:
    method, original = getattr(AsyncClient, name), getattr(Client, name)
    assert inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    assert list(inspect.signature(method).parameters) == list(inspect.signature(original).parameters)


class SlowWork:
    """Work that ends when the test says so, and what was undone of it."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = threading.Event()
        self.undone: list[str] = []
        self.undoable = Undoable(self.work, self.undone.append, ClientThreads("undoing"))

    def work(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(30)
        return "request"

    def run(self) -> str:
        try:
            return self.undoable.run()
        finally:
            self.has_ended.set()

    async def result(self) -> str:
        return await self.undoable.result(asyncio.to_thread(self.run))


def test_cancelled_work_is_undone_when_it_is_done() -> None:
    slow = SlowWork()

    async def cancel() -> None:
        working = asyncio.create_task(slow.result())
        await asyncio.to_thread(slow.has_begun.wait, 30)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert slow.undone == []
        slow.may_end.set()

    asyncio.run(cancel())
    wait_until(lambda: slow.undone == ["request"])


def test_finished_work_cancelled_late_is_undone_once() -> None:
    slow = SlowWork()

    async def cancel() -> None:
        working = asyncio.create_task(slow.result())
        await asyncio.sleep(0)  # it has begun
        slow.may_end.set()
        wait_until(slow.has_ended.is_set)  # and this loop has not heard of its end
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(cancel())
    assert slow.undone == ["request"]


def test_work_that_is_not_cancelled_is_not_undone() -> None:
    slow = SlowWork()
    slow.may_end.set()
    assert asyncio.run(slow.result()) == "request"
    assert slow.undone == []


def refuse_to_undo(_: str) -> None:
    raise BrokerUnreachableError("Redis is away")


def test_cancelled_work_stays_cancelled_when_undoing_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = SlowWork()
    slow.undoable = Undoable(slow.work, refuse_to_undo, ClientThreads("undoing"))

    async def cancel() -> None:
        running: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        slow.may_end.set()
        await asyncio.to_thread(slow.run)
        waiting = asyncio.create_task(slow.undoable.result(running))
        await asyncio.sleep(0)  # it has begun to wait
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancel())
    assert "could not be undone" in caplog.text


def test_work_is_done_although_loop_ends_first() -> None:
    done = threading.Event()

    async def begin() -> None:
        threads = ClientThreads()
        threads.run(done.set)
        threads.close()

    asyncio.run(begin())
    assert done.wait(30)


@pytest.mark.parametrize("name", sorted(public(Schedules)))
def test_schedules_of_async_client_have_methods_of_client(name: str) -> None:
    method, original = getattr(AsyncSchedules, name), getattr(Schedules, name)

    assert inspect.iscoroutinefunction(method)
    parameters = list(inspect.signature(method).parameters)
    assert parameters == list(inspect.signature(original).parameters)
