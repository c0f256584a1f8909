"""Scripts that share trips."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from broker_config.trips import Script, Trips
from tests.waiting import wait_until

ADD = Script.of("return redis.call('INCRBY', KEYS[1], ARGV[1])")
FAIL = Script.of("return redis.call('NO-SUCH-COMMAND')")


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


def test_a_lone_script_runs(redis: Redis) -> None:
    assert Trips(redis).run(ADD, ["n"], [2]) == 2


def test_a_script_that_redis_does_not_know_is_taught_once(redis: Redis) -> None:
    trips = Trips(redis)
    trips.run(ADD, ["n"], [1])
    redis.script_flush()
    assert trips.run(ADD, ["n"], [1]) == 2


def test_one_script_runs_many_times_in_order(redis: Redis) -> None:
    assert Trips(redis).run_all(ADD, [(["n"], [1])] * 3) == [1, 2, 3]


def test_an_error_is_raised_where_the_script_was_run(redis: Redis) -> None:
    trips = Trips(redis)
    with pytest.raises(ResponseError):
        trips.run(FAIL, [], [])
    assert trips.run(ADD, ["n"], [1]) == 1


def held_back(trips: Trips, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, list[int]]:
    """Hold every trip back until the event is set, and note how many scripts each one carries."""
    may_go, loads = threading.Event(), []
    send: Callable[[Any], Any] = trips._send

    def slow(errands: Any) -> Any:
        loads.append(len(errands))
        may_go.wait(10)
        return send(errands)

    monkeypatch.setattr(trips, "_send", slow)
    return may_go, loads


def test_threads_that_come_meanwhile_share_the_next_trip(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = Trips(redis)
    trips.run(ADD, ["n"], [0])
    may_go, loads = held_back(trips, monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(trips.run, ADD, ["n"], [1]) for _ in range(8)]
        wait_until(lambda: len(trips._waiting) == 7)
        may_go.set()
        answers = sorted(future.result(10) for future in futures)
    assert answers == list(range(1, 9))
    assert loads == [1, 7]


def test_a_broken_trip_fails_all_who_share_it_and_nobody_later(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = Trips(redis)

    def broken(errands: Any) -> Any:
        raise RedisConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(trips, "_send", broken)
        with pytest.raises(RedisConnectionError):
            trips.run(ADD, ["n"], [1])
    assert trips.run(ADD, ["n"], [1]) == 1


def test_many_threads_lose_nothing(redis: Redis) -> None:
    trips = Trips(redis)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: trips.run(ADD, ["n"], [1]), range(500)))
    assert sorted(answers) == list(range(1, 501))
