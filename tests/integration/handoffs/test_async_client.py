"""The client for asyncio: requests, events and brains."""

import asyncio
import threading
from contextlib import aclosing
from pathlib import Path

import pytest

from goondan_tasks.client import AsyncClient, AsyncPendingCall, Client
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallClosedError,
    HandoffError,
    HandoffTimeoutError,
    WaitTimeout,
)
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.notebook import Notebook
from tests.waiting import wait_until

PATIENCE = 60


def test_many_requests_wait_side_by_side(client: Client) -> None:
    async def ask() -> list[object]:
        own = AsyncClient(client)
        asked = (
            own.request("bob", number, instance_key=f"s-{number}", timeout=PATIENCE) for number in range(50)
        )
        return [answer.response for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == list(range(50))


def test_failed_request_raises_its_error(client: Client) -> None:
    async def ask() -> None:
        own = AsyncClient(client)
        with pytest.raises(AgentNotFoundError):
            await own.request("nobody")
        with pytest.raises(HandoffError, match="on purpose"):
            await own.request("bob", {"do": "fail", "why": "on purpose"}, timeout=PATIENCE)
        with pytest.raises(HandoffTimeoutError):
            await own.request("mute", 1, instance_key="as-late", timeout=0.2)
        assert (await own.request("mute", 1, instance_key="as-async", is_async=True, timeout=30)).is_async

    asyncio.run(ask())
    client.reply(client.receive("mute", "as-async", timeout=30))  # type: ignore[arg-type]


def test_request_that_is_cancelled_is_called_off(client: Client, notes: Notebook, tmp_path: Path) -> None:
    slow = {"do": "wait", "log": notes.path, "until": str(tmp_path / "never")}

    async def ask() -> None:
        task = asyncio.create_task(
            AsyncClient(client).request("bob", slow, instance_key="as-c", timeout=PATIENCE)
        )
        await asyncio.to_thread(wait_until, lambda: notes.told() == ["start"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    wait_until(lambda: notes.told() == ["start", "cancelled"])


def test_producer_receives_and_answers(client: Client) -> None:
    async def serve() -> list[object]:
        own = AsyncClient(client)
        ids = [
            (
                await own.request("mute", n, instance_key="as-b", is_async=True, timeout=PATIENCE)
            ).correlation_id
            for n in range(3)
        ]
        await own.send("mute", 3, instance_key="as-b")
        for number in range(4):
            received = await own.receive("mute", "as-b", timeout=PATIENCE)
            assert received is not None
            assert received.input == number
            if number == 1:
                await own.fail(received, "no")
            else:
                await own.reply(received, number * 2)
        assert received is not None
        with pytest.raises(CallClosedError):
            await own.reply(received, 1)
        assert await own.receive("mute", "as-b", timeout=0) is None
        results = [await (await own.pending(call_id)) for call_id in ids]
        return [result.output if result.error is None else result.error.code for result in results]

    assert asyncio.run(serve()) == [0, "E_AGENT_FAILED", 4]


def test_waiting_receives_leave_loops_threads_free(client: Client) -> None:
    async def wait() -> None:
        own = AsyncClient(client)
        waiting = [asyncio.create_task(own.receive("mute", f"as-w-{n}", PATIENCE)) for n in range(40)]
        await asyncio.sleep(0.2)
        assert (await own.request("bob", 1, instance_key="as-w", timeout=PATIENCE)).response == 1
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()

    asyncio.run(wait())


def test_streams_and_receives_leave_no_thread_blocking_exit(client: Client) -> None:
    names = ("goondan-follow", "goondan-receive")

    def threads() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name in names]

    async def follow() -> None:
        own = AsyncClient(client)
        receiving = asyncio.create_task(own.receive("mute", "as-daemon-receive"))
        async with aclosing(own.request_stream("mute", 1, instance_key="as-daemon-stream")) as events:
            await anext(events)
            following = asyncio.create_task(anext(events))
            await asyncio.to_thread(wait_until, lambda: {one.name for one in threads()} == set(names))
            assert [one for one in threads() if not one.daemon] == []
            following.cancel()
            await asyncio.wait([following])
        receiving.cancel()

    asyncio.run(asyncio.wait_for(follow(), PATIENCE))
    wait_until(lambda: not threads())


def test_event_after_ended_receive_goes_to_next_receive(client: Client) -> None:
    async def wait_and_give_up() -> None:
        waiting = asyncio.create_task(AsyncClient(client).receive("mute", "as-g"))
        await asyncio.sleep(0.2)
        waiting.cancel()
        client.send("mute", "mine", instance_key="as-g")  # its thread still waits, and gets it
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(wait_and_give_up())
    received = client.receive("mute", "as-g", timeout=PATIENCE)
    assert received is not None
    assert (received.input, received.attempt) == ("mine", 1)
    client.reply(received)


def test_event_may_be_given_back(client: Client) -> None:
    for number in range(2):
        client.send("mute", number, instance_key="as-r")
    for _ in range(5):
        received = client.receive("mute", "as-r", timeout=PATIENCE)
        assert received is not None
        assert (received.input, received.attempt) == (0, 1)
        asyncio.run(AsyncClient(client).give_back(received))
    assert received is not None
    with pytest.raises(CallClosedError):
        client.reply(received)
    for number in range(2):
        received = client.receive("mute", "as-r", timeout=PATIENCE)
        assert received is not None
        assert received.input == number
        client.reply(received)


def test_event_that_was_cancelled_is_not_given_back(client: Client) -> None:
    asked = client.request("mute", 1, instance_key="as-x", is_async=True, timeout=PATIENCE)
    received = client.receive("mute", "as-x", timeout=PATIENCE)
    assert received is not None
    client.cancel(asked.correlation_id)
    client.give_back(received)
    result = client.pending(asked.correlation_id).result(PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_CANCELLED"


def test_handle_of_call_has_coroutines_in_async_code(handoffs_stack: LocalStack) -> None:
    async def program() -> None:
        async with await AsyncClient.connect(handoffs_stack.redis_url) as own:
            asked = await own.request("mute", None, instance_key="as-h", is_async=True, timeout=PATIENCE)
            handle = await own.pending(asked.id)
            assert isinstance(handle, AsyncPendingCall)
            assert await handle.status() == "queued"
            assert await handle.progress() is None
            with pytest.raises(WaitTimeout):
                await handle.result(timeout=0)
            await handle.cancel()
            assert (await handle).status == (await handle.result(PATIENCE)).status == "error"

    asyncio.run(program())
