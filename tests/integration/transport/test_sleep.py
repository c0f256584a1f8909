"""Workers that sleep on bells with a standing order, on a real Redis."""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any, cast
from unittest.mock import Mock

import pytest
from redis import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from broker_config import sleep, transport
from broker_config.in_flight import IN_FLIGHT
from broker_config.queues import bell
from broker_config.scripts import Companion
from broker_config.transport import COMPANION
from tests.integration.transport.kombu_worker import QUEUE, Worker, push, waiting
from tests.waiting import wait_until

#: so long that nobody wakes up by himself
LONG = 60


@pytest.fixture(autouse=True)
def sound_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep, "SLEEP_SECONDS", LONG)


#: speaks for every message but those that are called so
COMPANION_OF_ALL = Companion(
    "local function accompany(_, message) return not string.find(message, 'limited') and 'yes' end"
)


def asleep(worker: Worker, companion: Companion = COMPANION_OF_ALL) -> Worker:
    worker.channel.accompany(companion)
    worker.wait_for(lambda: worker.channel._in_poll)
    return worker


def scripts_run(redis: Redis) -> int:
    stats = cast("dict[str, dict[str, int]]", redis.info("commandstats"))
    return sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


def test_a_message_comes_with_its_bell(worker: Callable[..., Worker], redis: Redis) -> None:
    consumer = asleep(worker())
    push(redis, "first")
    consumer.wait_for(lambda: consumer.ids == ["first"])  # Redis knows the script from now on
    consumer.wait_for(lambda: consumer.channel._in_poll)
    before = scripts_run(redis)
    push(redis, "second")
    consumer.wait_for(lambda: consumer.ids == ["first", "second"])
    assert scripts_run(redis) == before + 1


def test_one_who_sleeps_for_ever_takes_one_message_along(worker: Callable[..., Worker], redis: Redis) -> None:
    frozen = asleep(worker())
    frozen.channel._commands.script_load(frozen.channel._orders._script.text)
    push(redis, "one", "two", "three")
    wait_until(lambda: redis.hlen(IN_FLIGHT) == 1)
    other = worker()
    other.wait_for(lambda: other.ids == ["two", "three"])


def test_what_was_on_order_counts_as_held(worker: Callable[..., Worker], redis: Redis) -> None:
    consumer = asleep(worker(1))
    push(redis, "one", ring=False)
    consumer.channel._look_everywhere()
    consumer.channel.exchange_messages()
    assert consumer.ids == []
    redis.lpush(bell(QUEUE), 1)
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_nothing_comes_from_a_queue_that_is_consumed_no_longer(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    consumer = asleep(worker())
    consumer.consumer.cancel()
    push(redis, "one")
    consumer.wait_for_a_moment()
    assert (consumer.ids, waiting(redis), redis.hlen(IN_FLIGHT)) == ([], ["one"], 0)


def test_nothing_is_left_on_order_when_a_worker_closes(worker: Callable[..., Worker], redis: Redis) -> None:
    asleep(worker()).connection.release()
    push(redis, "one")
    other = worker()
    other.wait_for(lambda: other.ids == ["one"])


def test_a_new_companion_speaks_of_the_very_next_message(worker: Callable[..., Worker], redis: Redis) -> None:
    consumer = asleep(worker())
    for said in ("old", "new"):
        consumer.channel.accompany(Companion(f"local function accompany() return '{said}' end"))
        push(redis, said)
        consumer.wait_for(lambda said=said: said in consumer.ids)  # type: ignore[misc]
        consumer.wait_for(lambda: consumer.channel._in_poll)
    assert [message.properties[COMPANION][1] for message in consumer.messages] == [b"old", b"new"]


def test_who_may_not_ask_for_its_id_orders_nothing_and_hears_the_bell(
    worker: Callable[..., Worker], redis: Redis, url: str
) -> None:
    redis.acl_setuser("weak", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client"])
    consumer = asleep(worker(url=url.replace("://", "://weak:any@")))
    assert consumer.channel._ordered == 0
    push(redis, "one")
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_who_may_not_end_its_sleep_waits_for_its_order_once_and_gives_no_more(
    worker: Callable[..., Worker], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleep, "SLEEP_SECONDS", 0.2)
    consumer = asleep(worker())
    monkeypatch.setattr(
        consumer.channel._commands, "client_unblock", Mock(side_effect=ResponseError("NOPERM"))
    )
    consumer.channel.accompany(Companion())
    consumer.wait_for(lambda: consumer.channel._in_poll)
    assert consumer.channel._ordered == 0
    push(redis, "one")
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_a_redis_that_has_forgotten_its_scripts_is_taught_again(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    consumer = asleep(worker())
    redis.script_flush()
    push(redis, "one")
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_many_queues_are_not_looked_at_for_each_message(worker: Callable[..., Worker], redis: Redis) -> None:
    queues = tuple(f"agent.a{number}" for number in range(sleep.MOST_ORDERED + 1))
    consumer = asleep(worker(queues=queues))
    assert consumer.channel._ordered == 0
    push(redis, "one", queue=queues[3])
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_a_connection_that_is_lost_in_sleep_is_not_waited_for(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    consumer: Any = asleep(worker())
    redis.client_kill_filter(_type="normal", skipme=True)
    consumer.channel.accompany(Companion())
    assert consumer.channel._ordered == 0


def test_a_redis_that_is_silent_is_not_waited_for_twice(
    worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = asleep(worker())
    silent = Mock(side_effect=RedisTimeoutError("no answer"))
    monkeypatch.setattr(consumer.channel._commands, "client_unblock", silent)
    consumer.channel.accompany(Companion())  # would wait for a minute
    assert consumer.channel._ordered == 0


def test_what_was_reserved_counts_though_the_bell_ends_with_an_error(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    consumer = asleep(worker())
    consumer.channel._commands.script_load(consumer.channel._orders._script.text)
    push(redis, "one", ring=False)
    redis.client_unblock(consumer.channel._sleep._sleeper[1], error=True)
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_an_order_that_fails_is_no_secret(worker: Callable[..., Worker], redis: Redis) -> None:
    consumer = asleep(worker(), Companion("local function accompany() return redis.call('NONSENSE') end"))
    consumer.channel._commands.script_load(consumer.channel._orders._script.text)
    push(redis, "one")
    with pytest.raises(ResponseError, match=r"(?i)unknown redis command"):
        consumer.wait_for(lambda: consumer.ids)


@pytest.mark.parametrize(("seconds", "is_overdue"), [(0.1, False), (5.0, True)])
def test_a_reservation_whose_answer_is_overdue_counts_from_the_order(
    worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, seconds: float, is_overdue: bool
) -> None:
    monkeypatch.setattr(transport, "SLEEP_SECONDS", 0.5)
    channel = worker().channel
    order = replace(channel._orders.order([QUEUE], 1), sent_at=monotonic() - seconds)
    channel.turn()
    channel.turn()
    assert (channel._earliest_of(order) == order.sent_at) is is_overdue


def test_what_nobody_speaks_for_is_left_to_whoever_hears_the_bell_and_in_its_order(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    first, second = asleep(worker()), asleep(worker())
    first.channel._commands.script_load(first.channel._orders._script.text)
    push(redis, "limited-1", "limited-2", "limited-3", ring=False)
    redis.lpush(bell(QUEUE), 1, 1)  # for both
    wait_until(lambda: redis.llen(bell(QUEUE)) == 0)
    assert (waiting(redis), redis.hlen(IN_FLIGHT)) == (["limited-1", "limited-2", "limited-3"], 0)
    second.wait_for(lambda: second.ids == ["limited-1", "limited-2", "limited-3"])


def test_without_a_companion_nothing_is_ordered(worker: Callable[..., Worker], redis: Redis) -> None:
    consumer = worker()
    consumer.wait_for(lambda: consumer.channel._in_poll)
    assert consumer.channel._ordered == 0
    push(redis, "one")
    consumer.wait_for(lambda: consumer.ids == ["one"])
