"""Messages that were reserved and not claimed, on a real Redis."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import cast

import pytest
from redis import Redis

from broker_config.in_flight import BATCH, InFlight, LeftMessages
from broker_config.queue_reader import QueueReader
from broker_config.queues import IN_FLIGHT, IN_FLIGHT_INDEX
from tests.integration.transport.queues import QUEUE, push, waiting
from tests.waiting import wait_until

OTHER = "agent.coder.events"
LEASE_SECONDS = 1


@pytest.fixture
def make(url: str, redis: Redis) -> Iterator[Callable[[], QueueReader]]:
    with ExitStack() as stack:

        def make_one() -> QueueReader:
            reader = QueueReader(stack.enter_context(Redis.from_url(url)), [])
            stack.callback(reader.close)
            return reader

        yield make_one


@pytest.fixture
def left(redis: Redis) -> LeftMessages:
    return LeftMessages(redis, LEASE_SECONDS)


def reserved(reader: QueueReader, count: int, *queues: str) -> list[str]:
    """Reserve messages until there are so many; return their tags."""
    tags: list[str] = []

    def are_there() -> bool:
        tags.extend(tag for tag, *_ in reader.reserve(queues or (QUEUE,), count - len(tags), 0).messages)
        return len(tags) == count

    wait_until(are_there)
    return tags


def acknowledge(redis: Redis, tag: str, record: str = "") -> int:
    script_call = InFlight(lambda script_call: script_call.run(redis)).acknowledging(tag, record)
    return script_call.run(redis)


def in_flight(redis: Redis) -> int:
    assert redis.hlen(IN_FLIGHT) == redis.zcard(IN_FLIGHT_INDEX)
    return int(redis.hlen(IN_FLIGHT))


def renewed_at(redis: Redis) -> float:
    """Return when the only reservation was renewed, in seconds since the epoch."""
    rows = cast("list[tuple[bytes, float]]", redis.zrange(IN_FLIGHT_INDEX, 0, -1, withscores=True))
    return rows[0][1]


def test_message_is_in_flight_until_it_is_acknowledged(make: Callable[[], QueueReader], redis: Redis) -> None:
    push(redis, "one", "two", "three")
    tags = reserved(make(), 3)
    assert in_flight(redis) == 3
    for tag in (*tags[:2], *tags[:2]):
        acknowledge(redis, tag)
    assert (in_flight(redis), waiting(redis)) == (1, [])


def test_busy_queue_hides_no_message_without_wake_up(make: Callable[[], QueueReader], redis: Redis) -> None:
    reader = make()
    push(redis, "one")
    reserved(reader, 1, QUEUE, OTHER)
    push(redis, "quiet", queue=OTHER, ring=False)
    seen: list[str] = []

    def is_found() -> bool:
        push(redis, "loud")
        seen.extend(queue for _, queue, _ in reader.reserve((QUEUE, OTHER), 1, 0).messages)
        return OTHER in seen

    wait_until(is_found)


def test_dead_workers_messages_come_back_in_order(
    make: Callable[[], QueueReader], redis: Redis, left: LeftMessages
) -> None:
    names = [f"call-{number}" for number in range(90)]  # more than one look takes
    dead, tags = make(), []
    for start in range(0, 90, 7):
        push(redis, *names[start : start + 7])
        tags += reserved(dead, len(names[start : start + 7]))
    overdue = InFlight(lambda script_call: script_call.run(redis)).overdue
    InFlight(lambda script_call: script_call.run(redis)).renew(tags)  # it was alive then
    wait_until(lambda: len(overdue(LEASE_SECONDS)) == BATCH)
    assert [left.put_back(), left.put_back(), left.put_back()] == [BATCH, 90 - BATCH, 0]
    assert waiting(redis) == names


def test_messages_of_live_worker_stay_its_own(
    make: Callable[[], QueueReader], redis: Redis, left: LeftMessages
) -> None:
    push(redis, "one")
    tags = reserved(make(), 1)
    before = renewed_at(redis)

    def was_renewed() -> bool:
        assert left.put_back(tags) == 0
        return renewed_at(redis) > before + LEASE_SECONDS

    wait_until(was_renewed)
    assert waiting(redis) == []


def test_late_acknowledgement_leaves_reservation_of_new_worker(
    make: Callable[[], QueueReader], redis: Redis, left: LeftMessages
) -> None:
    push(redis, "one")
    frozen = reserved(make(), 1)
    wait_until(left.put_back)
    reserved(make(), 1)
    acknowledge(redis, *frozen)
    left.put_back(frozen)
    assert in_flight(redis) == 1
