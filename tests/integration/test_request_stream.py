"""``request_stream``: a client follows a Turn, whose agent is played by the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from redis import Redis

from broker_config import serializer
from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.client import (
    AsyncClient,
    Client,
    TextDelta,
    ToolCalled,
    TurnAccepted,
    TurnEnded,
    TurnEvent,
)
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.turn_events import Told
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallClosedError,
    HandoffError,
    HandoffTimeoutError,
)
from goondan_tasks.testing import LocalStack

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PATIENCE = 60.0
CALLED = ToolCalled(step=0, id="call_1", call_id="c-1", tool="jobs__begin", args={})
KEYS = Keys()


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(PENDING_BUNDLE, workers=0) as stack:
        yield stack


@pytest.fixture
def client(stack: LocalStack) -> Client:
    return stack.client


@pytest.fixture
def redis(stack: LocalStack) -> Iterator[Redis]:
    with connect(stack.redis_url) as redis:
        yield redis


def text(characters: str) -> TextDelta:
    return TextDelta(step=0, text=characters, answer_id="a")


def tell(redis: Redis, event_id: str, *events: Told) -> None:
    """Write to the stream of a Turn as a worker does."""
    entries = serializer.encode([event.to_wire() for event in events])
    redis.xadd(KEYS.turn_stream(event_id), {"entries": entries}, nomkstream=True)


def received(client: Client) -> ReceivedEvent:
    event = client.receive("builder", timeout=PATIENCE)
    assert event is not None
    return event


def is_cancelled(client: Client, event: ReceivedEvent) -> bool:
    with pytest.raises(CallClosedError):
        client.reply(event, "too late")
    result = client.pending(event.id).result(PATIENCE)
    return result.error is not None and result.error.code == "E_TOOL_CANCELLED"


def test_events_come_as_they_are_told_and_the_stream_goes_with_the_last(client: Client, redis: Redis) -> None:
    events = client.request_stream("builder", "x", timeout=PATIENCE)
    accepted = next(events)
    assert isinstance(accepted, TurnAccepted)
    event, key = received(client), KEYS.turn_stream(accepted.id)
    assert accepted.id == event.id
    assert 0 < redis.ttl(key) <= 2 * PATIENCE + 60

    tell(redis, event.id, text("one "))
    assert next(events) == text("one ")
    redis.xadd(key, {"entries": b'[{"type": "of tomorrow"}, {"type": "text"}, 7]'})
    redis.xadd(key, {"entries": b"no JSON"})
    tell(redis, event.id, CALLED, text("two"))
    assert [next(events), next(events)] == [CALLED, text("two")]

    client.reply(event, {"done": True})
    ended = next(events)
    assert isinstance(ended, TurnEnded)
    assert (ended.result.response, ended.result.id) == ({"done": True}, event.id)
    assert list(events) == []
    assert not redis.exists(key)


def test_nothing_is_lost_while_redis_restarts(stack: LocalStack, client: Client, redis: Redis) -> None:
    heard: list[TurnEvent] = []
    events = client.request_stream("builder", "x", timeout=PATIENCE)
    heard.append(next(events))
    event = received(client)
    tell(redis, event.id, text("one"))
    heard.append(next(events))
    rest = threading.Thread(target=lambda: heard.extend(events))
    rest.start()

    stack.redis.process.kill()
    stack.redis.process.wait(PATIENCE)
    stack.redis.launch()
    tell(redis, event.id, text("two"))
    client.reply(event, "three")
    rest.join(PATIENCE)

    assert heard[1:3] == [text("one"), text("two")]
    assert [type(one) for one in heard[3:]] == [TurnEnded]


@pytest.mark.parametrize("is_to_cancel", [True, False])
def test_closing_early_cancels_the_turn_if_that_is_wanted(client: Client, is_to_cancel: bool) -> None:
    for _ in client.request_stream("builder", "x", timeout=PATIENCE, cancel_on_close=is_to_cancel):
        event = received(client)
        break

    if is_to_cancel:
        assert is_cancelled(client, event)
    else:
        client.reply(event, "answered")
        assert client.pending(event.id).result(PATIENCE).output == "answered"


def test_failures_are_raised_as_those_of_request_are(client: Client) -> None:
    with pytest.raises(AgentNotFoundError, match="bilder"):
        next(client.request_stream("bilder", "x"))
    with pytest.raises(TypeError, match="instance_key"):
        client.request_stream("builder", "x", instancekey="k")  # type: ignore[call-arg]

    events = client.request_stream("builder", "x", timeout=PATIENCE)
    next(events)
    client.fail(received(client), "no wood")
    with pytest.raises(HandoffError, match="no wood"):
        next(events)

    events = client.request_stream("builder", "x", timeout=0.2)
    next(events)
    event = received(client)
    with pytest.raises(HandoffTimeoutError, match=r"did not answer within 0\.2 s"):
        next(events)
    assert is_cancelled(client, event)


def test_task_that_is_cancelled_cancels_its_turn(client: Client, redis: Redis) -> None:
    async def cancelled() -> ReceivedEvent:
        events = AsyncClient(client).request_stream("builder", "x", timeout=PATIENCE)
        await anext(events)
        waiting = asyncio.create_task(anext(events))
        event = await asyncio.to_thread(received, client)
        tell(redis, event.id, text("one"))
        assert await waiting == text("one")

        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return event

    event = asyncio.run(cancelled())
    assert is_cancelled(client, event)
    assert not redis.exists(KEYS.turn_stream(event.id))


def test_async_iterator_ends_with_the_answer(client: Client, redis: Redis) -> None:
    async def answered() -> list[TurnEvent]:
        async with aclosing(AsyncClient(client).request_stream("builder", "x", timeout=PATIENCE)) as events:
            heard = [await anext(events)]
            event = await asyncio.to_thread(received, client)
            tell(redis, event.id, text("one"))
            heard.append(await anext(events))
            await asyncio.to_thread(client.reply, event, "two")
            return [*heard, *[one async for one in events]]

    accepted, told, ended = asyncio.run(answered())
    assert isinstance(accepted, TurnAccepted)
    assert told == text("one")
    assert isinstance(ended, TurnEnded)
    assert ended.result.response == "two"
