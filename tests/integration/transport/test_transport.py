"""The transport of the workers, beside kombu's own, on a real Redis."""

import contextlib
import inspect
import itertools
import json
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from redis import Redis
from redis.exceptions import ConnectionError

from broker_config import transport
from broker_config.in_flight import BATCH, IN_FLIGHT, IN_FLIGHT_INDEX
from broker_config.queues import wake_up_key
from tests.faults.proxy import Proxy
from tests.integration.transport.kombu_worker import QUEUE, Worker, connection_to, push, waiting
from tests.waiting import wait_until

OTHER = "agent.coder.events"
#: of workers whose messages others shall get
SHORT_LEASE_SECONDS = 1


def in_flight(redis: Redis) -> int:
    assert redis.hlen(IN_FLIGHT) == redis.zcard(IN_FLIGHT_INDEX)
    return int(redis.hlen(IN_FLIGHT))


def renewed_at(redis: Redis) -> float:
    """Return when the only reservation was renewed, in seconds since the epoch."""
    rows = cast("list[tuple[bytes, float]]", redis.zrange(IN_FLIGHT_INDEX, 0, -1, withscores=True))
    return rows[0][1]


def test_messages_are_reserved_in_order_and_acknowledged(worker: Callable[..., Worker], redis: Redis) -> None:
    push(redis, "one", "two", "three")
    consumer = worker()
    consumer.wait_for(lambda: len(consumer.ids) == 3)
    assert consumer.ids == ["one", "two", "three"]
    assert in_flight(redis) == 3
    for message in consumer.messages:
        message.ack()
    consumer.wait_for(lambda: in_flight(redis) == 0)


def test_an_acknowledgement_travels_with_the_next_reservation(
    worker: Callable[..., Worker], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SLEEP_SECONDS", 60)
    push(redis, "one")
    consumer = worker()
    consumer.wait_for(lambda: consumer.ids == ["one"])
    consumer.messages[0].ack()
    consumer.wait_for_a_moment()
    assert in_flight(redis) == 1
    push(redis, "two")
    consumer.wait_for(lambda: consumer.ids == ["one", "two"])
    assert in_flight(redis) == 1


def test_no_more_is_reserved_than_there_is_credit_for(worker: Callable[..., Worker], redis: Redis) -> None:
    push(redis, "one", "two", "three")
    consumer = worker(2)
    consumer.wait_for(lambda: len(consumer.ids) == 2)
    assert redis.llen(QUEUE) == 1
    consumer.messages[0].ack()
    consumer.wait_for(lambda: len(consumer.ids) == 3)


def test_what_one_leaves_behind_wakes_the_next(worker: Callable[..., Worker], redis: Redis) -> None:
    first, second = worker(1), worker(1)
    push(redis, "one", "two")
    first.wait_for(lambda: len(first.ids) == 1)
    assert redis.llen(wake_up_key(QUEUE)) == 1
    second.wait_for(lambda: second.ids == ["two"])


def test_a_message_without_a_bell_is_found_all_the_same(worker: Callable[..., Worker], redis: Redis) -> None:
    consumer = worker()
    consumer.wait_for(lambda: consumer.channel._in_poll)
    push(redis, "one", ring=False)
    consumer.wait_for(lambda: consumer.ids == ["one"])


def test_a_message_without_a_bell_is_found_while_other_queues_ring_without_end(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    consumer = worker(prefetch=1000, queues=(QUEUE, OTHER))
    rings = itertools.count()

    def is_there() -> bool:
        push(redis, f"loud-{next(rings)}")
        return "quiet" in consumer.ids

    consumer.wait_for(lambda: is_there() or len(consumer.ids) > 3)
    push(redis, "quiet", queue=OTHER, ring=False)

    consumer.wait_for(is_there)


def test_a_bell_that_rings_for_one_without_credit_wakes_another(
    worker: Callable[..., Worker], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SLEEP_SECONDS", 60)  # no worker looks without a wake-up
    busy, asleep = worker(1), worker(1)
    busy.wait_for(lambda: busy.channel._in_poll)
    asleep.wait_for(lambda: asleep.channel._in_poll)
    push(redis, "one", ring=False)
    busy.channel._check_all()
    busy.channel.exchange_messages()
    assert (busy.ids, bool(busy.channel._in_poll)) == (["one"], True)
    push(redis, "two")  # the one that has waited longest is woken

    def is_awake() -> bool:
        for each in (busy, asleep):
            each.wait_for_a_moment()
        return asleep.ids == ["two"]

    wait_until(is_awake)
    busy.messages[0].ack()
    push(redis, "three")
    wait_until(lambda: is_awake() and busy.ids == ["one", "three"])


@pytest.mark.parametrize("prefetch", [1, 4, 64])
def test_nothing_stalls_whatever_the_credit(
    worker: Callable[..., Worker], redis: Redis, prefetch: int
) -> None:
    consumer = worker(prefetch)
    expected = [f"call-{number}" for number in range(200)]
    push(redis, *expected)

    def all_done() -> bool:
        for message in consumer.messages:
            if not message.acknowledged:
                message.ack()
        return len(consumer.ids) == len(expected)

    consumer.wait_for(all_done)
    assert consumer.ids == expected


def test_every_queue_has_its_turn(worker: Callable[..., Worker], redis: Redis) -> None:
    queues = tuple(f"agent.a{number}" for number in range(5))
    for queue in queues:
        push(redis, *[f"{queue}-{number}" for number in range(20)], queue=queue)
    consumer = worker(1, queues=queues)

    def ten_done() -> bool:
        for message in consumer.messages:
            if not message.acknowledged:
                message.ack()
        return len(consumer.ids) >= 10

    consumer.wait_for(ten_done)
    assert len({call_id.partition("-")[0] for call_id in consumer.ids[:10]}) == 5


def test_a_closing_worker_gives_back_what_it_holds(worker: Callable[..., Worker], redis: Redis) -> None:
    push(redis, "one", "two", "three")
    consumer = worker()
    consumer.wait_for(lambda: len(consumer.ids) == 3)
    consumer.messages[0].ack()
    consumer.connection.release()
    assert in_flight(redis) == 0
    assert waiting(redis) == ["two", "three"]


def test_a_rejected_message_goes_to_the_front_or_away(worker: Callable[..., Worker], redis: Redis) -> None:
    push(redis, "one", "two", "three")
    consumer = worker(2)
    consumer.wait_for(lambda: len(consumer.ids) == 2)
    one, two = consumer.messages
    two.reject()
    one.requeue()
    consumer.wait_for(lambda: len(consumer.ids) == 4)
    assert sorted(consumer.ids[2:]) == ["one", "three"]


def test_what_stands_behind_a_message_that_cannot_be_delivered_goes_back(
    worker: Callable[..., Worker], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(message: Any, queue: str) -> None:
        raise LookupError("nobody consumes it")

    push(redis, "one", "two", "three")
    consumer = worker()
    monkeypatch.setattr(consumer.channel.connection, "_deliver", deliver)
    with pytest.raises(LookupError):
        consumer.channel.exchange_messages()
    assert waiting(redis) == ["two", "three"]
    assert in_flight(redis) == 1


def test_a_dead_workers_messages_come_back(worker: Callable[..., Worker], redis: Redis) -> None:
    push(redis, "one", "two")
    dead, alive = (worker(lease=SHORT_LEASE_SECONDS) for _ in range(2))
    dead.wait_for(lambda: len(dead.ids) == 2)

    def came_back() -> bool:
        alive.channel.qos.restore_visible()
        return sorted(alive.ids) == ["one", "two"]

    alive.wait_for(came_back)


def test_what_a_dead_worker_held_goes_back_in_the_order_in_which_it_stood(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    names = [f"call-{number}" for number in range(90)]  # more than one look takes
    dead, finder = worker(200), worker(1, queues=(OTHER,), lease=SHORT_LEASE_SECONDS)
    for start in range(0, 90, 7):
        push(redis, *names[start : start + 7])
        dead.wait_for(lambda: redis.llen(QUEUE) == 0)
    assert dead.ids == names
    dead.channel.qos.restore_visible()  # it was alive then
    wait_until(lambda: len(finder.channel.in_flight.overdue(SHORT_LEASE_SECONDS)) == BATCH)
    finder.channel.qos.restore_visible()
    finder.channel.qos.restore_visible()
    assert waiting(redis) == names


@pytest.mark.parametrize(
    "fields",
    [{"content-encoding": 8}, {"headers": {"id": "bad", "task": []}}, {"properties": {"body_encoding": "x"}}],
)
def test_unreadable_envelope_is_dropped_and_the_next_message_arrives(
    worker: Callable[..., Worker], redis: Redis, fields: dict[str, Any]
) -> None:
    push(redis, "bad")
    bad = json.loads(cast(bytes, redis.lpop(QUEUE)))
    redis.lpush(QUEUE, json.dumps({**bad, **fields}))
    push(redis, "good")
    consumer = worker()
    consumer.wait_for(lambda: consumer.ids == ["good"])
    consumer.messages[0].ack()
    consumer.wait_for(lambda: in_flight(redis) == 0)


def test_a_live_workers_messages_stay_its_own(worker: Callable[..., Worker], redis: Redis) -> None:
    push(redis, "one")
    busy = worker(lease=SHORT_LEASE_SECONDS)
    busy.wait_for(lambda: busy.ids == ["one"])
    before = renewed_at(redis)

    def was_renewed() -> bool:
        busy.channel.qos.restore_visible()
        return renewed_at(redis) > before + SHORT_LEASE_SECONDS

    wait_until(was_renewed)
    assert redis.llen(QUEUE) == 0


def test_a_late_acknowledgement_leaves_the_new_owners_reservation_alone(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    push(redis, "one")
    frozen, awake = (worker(lease=SHORT_LEASE_SECONDS) for _ in range(2))
    frozen.wait_for(lambda: frozen.ids == ["one"])

    def has_it() -> bool:
        awake.channel.qos.restore_visible()
        return awake.ids == ["one"]

    awake.wait_for(has_it)
    frozen.messages[0].ack()
    frozen.channel.exchange_messages()
    frozen.channel.qos.restore_visible()
    assert in_flight(redis) == 1


def test_a_stock_kombu_producer_and_consumer_share_the_queue(
    worker: Callable[..., Worker], redis: Redis, url: str
) -> None:
    consumer = worker()
    with Connection(url) as stock:
        stock.Producer().publish([], routing_key=QUEUE, headers={"id": "stock", "task": "t"})
        consumer.wait_for(lambda: consumer.ids == ["stock"])
        consumer.messages[0].ack()
        push(redis, "ours")
        consumer.connection.release()
        with stock.SimpleQueue(QUEUE) as simple:
            message = simple.get(timeout=30)
            assert message.headers["id"] == "ours"
            message.ack()


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            kombu_redis.Channel,
            ["_brpop_start", "_brpop_read", "_create_client", "conn_or_acquire", "active_queues", "_in_poll"],
        ),
        (
            kombu_redis.MultiChannelPoller,
            ["on_poll_start", "on_readable", "maybe_restore_messages", "_update_brpop_polling"],
        ),
        (virtual.QoS, ["append", "ack", "reject", "restore_unacked", "_flush", "can_consume_max_estimate"]),
        (virtual.Transport, ["_deliver"]),
    ],
)
def test_what_the_transport_leans_on_inside_kombu_is_there(owner: type, names: list[str]) -> None:
    assert [name for name in names if not hasattr(owner, name)] == []


@pytest.mark.parametrize(
    ("ours", "overridden"),
    [
        (
            transport.Channel,
            "QoS _brpop_read _brpop_start basic_cancel basic_consume close conn_or_acquire",
        ),
        (transport.QoS, "ack can_consume reject restore_at_shutdown restore_unacked restore_visible"),
        (transport.Poller, "_update_brpop_polling get on_poll_start on_readable"),
    ],
)
def test_nothing_of_kombus_is_overridden_unawares(ours: type, overridden: str) -> None:
    of_kombu = {name for kombus in ours.__mro__[1:] for name in vars(kombus) if not name.startswith("__")}
    assert set(vars(ours)) & of_kombu == set(overridden.split())


def test_kombu_still_starts_and_reads_its_sleep_through_these_methods() -> None:
    assert "_brpop_start()" in inspect.getsource(cast(Any, kombu_redis.MultiChannelPoller)._register_BRPOP)
    assert "self._brpop_read" in inspect.getsource(kombu_redis.Channel.__init__)
    assert "restore_visible" in inspect.getsource(kombu_redis.MultiChannelPoller.maybe_restore_messages)


def test_a_reservation_whose_answer_is_lost_is_not_repeated(
    worker: Callable[..., Worker], redis: Redis
) -> None:
    consumer = worker()
    push(redis, "one", "two")
    connection = consumer.channel._connection
    read, lost = connection.read_response, ConnectionError("cut")
    connection.read_response = Mock(side_effect=lost)
    with pytest.raises(ConnectionError, match="cut"):
        consumer.channel.exchange_messages()
    connection.read_response = read
    push(redis, "three", "four")
    consumer.channel.exchange_messages()
    assert in_flight(redis) == 4


@pytest.mark.parametrize("admitted", range(4))
def test_a_connection_that_fails_half_way_is_made_again(url: str, redis: Redis, admitted: int) -> None:
    push(redis, "one")
    with Proxy(url) as proxy:
        proxy.admit(admitted)
        connection = connection_to(proxy.url)
        with contextlib.suppress(OperationalError):
            connection.ensure_connection(max_retries=1, interval_start=0)
        proxy.admit()
        connection.ensure_connection(max_retries=1, interval_start=0)
        with Worker(proxy.url, 8, connection=connection) as consumer:
            consumer.wait_for(lambda: consumer.ids == ["one"])


def test_a_redis_that_takes_no_writes_is_not_there_yet(url: str, redis: Redis) -> None:
    push(redis, "one")
    connection = connection_to(url)
    redis.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(OperationalError, match="NOREPLICAS"):
            connection.ensure_connection(max_retries=1, interval_start=0)
    finally:
        redis.config_set("min-replicas-to-write", 0)
    connection.ensure_connection(max_retries=1, interval_start=0)
    with Worker(url, 8, connection=connection) as consumer:
        consumer.wait_for(lambda: consumer.ids == ["one"])
