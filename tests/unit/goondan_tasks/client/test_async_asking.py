"""Requests of async code that nobody waits for any more."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.client.async_asking import Asking
from tests.waiting import wait_until


class Desk:
    """A client whose requests stand when the test says so."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_stand = threading.Event()
        self.called_off: list[str] = []
        self.client: Any = SimpleNamespace(call_off=self.called_off.append)

    def ask(self) -> Any:
        self.has_begun.set()
        assert self.may_stand.wait(30)
        return "call", "request"


def test_a_request_that_is_cancelled_on_its_way_is_called_off_when_it_stands() -> None:
    desk = Desk()

    async def ask() -> None:
        asking = asyncio.create_task(Asking(desk.client, desk.ask).result())
        await asyncio.to_thread(desk.has_begun.wait, 30)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert desk.called_off == []
        desk.may_stand.set()

    asyncio.run(ask())
    wait_until(lambda: desk.called_off == ["request"])


def test_a_request_that_stands_when_it_is_cancelled_is_called_off() -> None:
    desk = Desk()
    desk.may_stand.set()

    async def ask() -> None:
        asking = asyncio.create_task(Asking(desk.client, desk.ask).result())
        await asyncio.sleep(0)  # it is on its way
        wait_until(desk.has_begun.is_set)  # and this loop has not heard of it
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(ask())
    wait_until(lambda: "request" in desk.called_off)


def test_a_request_that_is_waited_for_goes_on() -> None:
    desk = Desk()
    desk.may_stand.set()

    _, asked = asyncio.run(Asking(desk.client, desk.ask).result())
    assert str(asked) == "request"
    assert desk.called_off == []
