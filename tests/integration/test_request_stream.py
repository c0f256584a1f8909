"""``request_stream`` and ``follow``: clients follow a Turn, whose agent is played by the test."""

import asyncio
import threading
import uuid
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
    FollowedEvent,
    TextDelta,
    ToolCalled,
    TurnAccepted,
    TurnEnded,
    TurnEvent,
)
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.reading import Position
from goondan_tasks.client.stream_hub import READ_AT_ONCE
from goondan_tasks.client.turn_events import Told
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    BrokerUnreachableError,
    CallClosedError,
    CallNotFoundError,
    HandoffError,
    HandoffTimeoutError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

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


def test_events_stream_live_until_turn_ends(client: Client, redis: Redis) -> None:
    events = client.request_stream("builder", "x", timeout=PATIENCE)
    accepted = next(events)
    assert isinstance(accepted, TurnAccepted)
    event, key = received(client), KEYS.turn_stream(accepted.id)
    assert accepted.id == event.id
    assert redis.ttl(key) > 7 * 86_400

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
    assert 0 < redis.ttl(key) <= 60


def test_no_event_is_lost_while_redis_restarts(stack: LocalStack, client: Client, redis: Redis) -> None:
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
def test_closing_early_cancels_turn_if_that_is_wanted(client: Client, is_to_cancel: bool) -> None:
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
    assert 0 < redis.ttl(KEYS.turn_stream(event.id)) <= 60


def test_async_iterator_ends_with_answer(client: Client, redis: Redis) -> None:
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


def kept(client: Client, keep: float | None = 60) -> tuple[str, ReceivedEvent]:
    """Ask for a Turn, and return its id and what the agent has received."""
    key = uuid.uuid4().hex
    asked = client.request("builder", "x", is_async=True, keep=keep, instance_key=key)
    return asked.id, received(client)


def wire(*events: FollowedEvent) -> list[JsonObject]:
    return [one.event.to_wire() for one in events]


def test_followers_get_same_from_wherever_they_begin(client: Client, redis: Redis) -> None:
    turn_id, event = kept(client)
    one, two = client.follow(turn_id), client.follow(turn_id)
    tell(redis, turn_id, text("one "))
    tell(redis, turn_id, CALLED, text("two"))
    first = [next(one), next(one)]
    assert wire(next(two)) == wire(first[0])
    two.close()
    client.reply(event, "done")

    rest = list(one)
    assert wire(*first, *rest)[:3] == [text("one ").to_wire(), CALLED.to_wire(), text("two").to_wire()]
    ended = rest[-1].event
    assert isinstance(ended, TurnEnded)
    assert (ended.result.response, ended.error) == ("done", None)
    assert wire(*client.follow(turn_id, after=first[1].cursor)) == wire(*rest)
    assert wire(*client.follow(turn_id, after=rest[-1].cursor)) == wire(rest[-1])


def test_unkept_turn_has_only_its_end(client: Client) -> None:
    turn_id, event = kept(client, None)
    client.fail(event, "no wood")

    [end] = client.follow(turn_id)

    assert isinstance(end.event, TurnEnded)
    assert end.event.error is not None
    assert end.event.error.message == "no wood"


@pytest.mark.parametrize("is_async", [False, True])
def test_following_unknown_turn_or_cursor_is_refused(client: Client, is_async: bool) -> None:
    async def begun(turn_id: str, after: str | None) -> FollowedEvent:
        async with aclosing(AsyncClient(client).follow(turn_id, after)) as events:
            return await anext(events)

    def begin(turn_id: str, after: str | None = None) -> FollowedEvent:
        return asyncio.run(begun(turn_id, after)) if is_async else next(client.follow(turn_id, after))

    with pytest.raises(CallNotFoundError):
        begin("7d1f0a2c-0000-4000-8000-000000000000")
    turn_id, event = kept(client)
    for cursor in ("", "17-0", "1-2.3 ", "-1-0.0", "1-0.x"):
        with pytest.raises(ToolInputValidationError, match="is not a cursor"):
            begin(turn_id, cursor)
    client.reply(event, "done")


def test_coroutines_follow_many_turns_on_one_thread(client: Client, redis: Redis) -> None:
    turns = [kept(client) for _ in range(5)]
    turn_ids = [turn_id for turn_id, _ in turns for _ in range(4)]

    async def heard(turn_id: str) -> list[FollowedEvent]:
        async with aclosing(AsyncClient(client).follow(turn_id)) as events:
            return [one async for one in events]

    def play() -> None:
        for turn_id, event in turns:
            tell(redis, turn_id, text(event.id))
        wait_until(lambda: len(client.hub._followers) == 20)
        threads = [one.name for one in threading.enumerate() if one.name == "goondan-follow"]
        assert len(threads) == 1
        for turn_id, event in turns:
            tell(redis, turn_id, CALLED)
            redis.set(KEYS.turn_stream(f"{turn_id}-other"), "")
            client.reply(event, event.id)

    async def all_heard() -> list[list[FollowedEvent]]:
        playing = asyncio.create_task(asyncio.to_thread(play))
        found = await asyncio.gather(*(heard(turn_id) for turn_id in turn_ids))
        await playing
        return found

    for turn_id, events in zip(turn_ids, asyncio.run(all_heard()), strict=True):
        assert wire(*events[:2]) == [text(turn_id).to_wire(), CALLED.to_wire()]
        assert isinstance(events[2].event, TurnEnded)
    wait_until(lambda: not client.hub._followers)


def test_overwritten_stream_hides_no_other_stream(client: Client, redis: Redis) -> None:
    (damaged, one), (whole, two) = kept(client), kept(client)

    async def heard() -> list[FollowedEvent]:
        async with (
            aclosing(AsyncClient(client).follow(damaged)) as bad,
            aclosing(AsyncClient(client).follow(whole)) as good,
        ):
            tasks = [asyncio.create_task(anext(events)) for events in (bad, good)]
            await asyncio.to_thread(wait_until, lambda: len(client.hub._followers) == 2)
            redis.set(KEYS.turn_stream(damaged), "overwritten")
            tell(redis, whole, text("one"))
            first = await tasks[1]
            await asyncio.to_thread(client.reply, one, "done")
            return [first, await tasks[0]]

    first, end = asyncio.run(heard())
    assert first.event == text("one")
    assert isinstance(end.event, TurnEnded)
    client.reply(two, "done")


def test_follower_of_overwritten_stream_gets_end(client: Client, redis: Redis) -> None:
    turn_id, event = kept(client)
    redis.set(KEYS.turn_stream(turn_id), "overwritten")
    client.reply(event, "done")
    [end] = client.follow(turn_id)
    assert isinstance(end.event, TurnEnded)


@pytest.mark.parametrize("protocol", [2, 3])
def test_streams_are_read_by_either_version_of_protocol(
    stack: LocalStack, client: Client, redis: Redis, protocol: int
) -> None:
    turn_id, event = kept(client)
    tell(redis, turn_id, text("one"))
    tell(redis, turn_id, CALLED)
    client.reply(event, "done")

    async def heard(other: Client) -> list[FollowedEvent]:
        return [one async for one in AsyncClient(other).follow(turn_id)]

    with Client.connect(f"{stack.redis_url}?protocol={protocol}", bundle=stack.bundle) as other:
        followed = list(other.follow(turn_id))
        assert asyncio.run(heard(other)) == followed
    assert wire(*followed[:-1]) == [text("one").to_wire(), CALLED.to_wire()]


def test_little_of_large_stream_waits_for_slow_follower(client: Client, redis: Redis) -> None:
    (turn_id, event), large = kept(client), "x" * 20_000
    for number in range(300):
        tell(redis, turn_id, text(f"{number} {large}"))
    client.reply(event, "done")

    async def heard() -> list[FollowedEvent]:
        follower = client.hub.follower(turn_id)
        try:
            await asyncio.to_thread(client.hub.join, follower)
            rows = [row for item in follower._items if isinstance(item, list) for row in item]
            assert 0 < len(rows) <= READ_AT_ONCE
            return [one async for one in follower.events(Position())]
        finally:
            client.hub.leave(follower)

    *pieces, end = asyncio.run(heard())
    assert [one.event for one in pieces] == [text(f"{number} {large}") for number in range(300)]
    assert isinstance(end.event, TurnEnded)


def test_coroutine_that_is_cancelled_leaves_turn_alone(client: Client) -> None:
    turn_id, event = kept(client)

    async def cancelled() -> None:
        following = asyncio.create_task(anext(AsyncClient(client).follow(turn_id)))
        await asyncio.to_thread(wait_until, lambda: client.hub._followers)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following

    asyncio.run(cancelled())
    wait_until(lambda: not client.hub._followers)
    client.reply(event, "done")
    assert client.pending(turn_id).result(PATIENCE).output == "done"


def test_client_that_is_closed_ends_its_followers(stack: LocalStack, client: Client) -> None:
    turn_id, event = kept(client)

    async def closed() -> None:
        other = AsyncClient(Client.connect(stack.redis_url, bundle=stack.bundle))
        following = asyncio.create_task(anext(other.follow(turn_id)))
        await asyncio.to_thread(wait_until, lambda: other._client.hub._followers)
        await other.close()
        with pytest.raises(BrokerUnreachableError, match="closed"):
            await following

    asyncio.run(closed())
    client.reply(event, "done")


def test_async_stream_raises_failures_and_cancels_late_requests(client: Client) -> None:
    async def heard(timeout: float, fails: bool) -> ReceivedEvent:
        async with aclosing(AsyncClient(client).request_stream("builder", "x", timeout=timeout)) as events:
            await anext(events)
            event = await asyncio.to_thread(received, client)
            if fails:
                await asyncio.to_thread(client.fail, event, "no wood")
            with pytest.raises(HandoffError, match="no wood" if fails else r"did not answer within 0\.5 s"):
                await anext(events)
            return event

    asyncio.run(heard(PATIENCE, True))
    assert is_cancelled(client, asyncio.run(heard(0.5, False)))
