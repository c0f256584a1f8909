"""The proxy that the fault tests put before a Redis does what it says."""

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ClusterDownError, ConnectionError, TimeoutError
from redis.retry import Retry

from broker_config.embedded import EmbeddedRedis
from broker_config.scripts import packet
from tests.faults.proxy import Proxy
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def proxy(server: EmbeddedRedis) -> Iterator[Proxy]:
    with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def direct(server: EmbeddedRedis) -> Iterator[Redis]:
    with connect(server.url) as redis:
        redis.flushdb()
        yield redis


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Redis]:
    with connect(proxy.url) as redis:
        redis.ping()
        yield redis


@pytest.fixture
def impatient(proxy: Proxy) -> Iterator[Redis]:
    with connect(proxy.url, seconds=0.3) as redis:
        wait_until(lambda: answers(redis), 30)
        yield redis


def answers(redis: Redis) -> bool:
    try:
        return bool(redis.ping())
    except TimeoutError:  # the machine is busy
        return False


def connect(url: str, name: str | None = None, seconds: float = 30.0) -> Redis:
    return Redis.from_url(
        url,
        client_name=name,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=seconds,
        single_connection_client=True,
        protocol=2,
    )


def test_commands_pass_whole(through: Redis) -> None:
    large = b"\r\n*$\x00\xff" * 200_000
    through.set("key", large)
    assert through.get("key") == large


def test_cut_connections_are_reopened(proxy: Proxy, through: Redis) -> None:
    assert proxy.cut() == 1
    with pytest.raises(ConnectionError):
        through.ping()
    assert through.ping()
    assert (proxy.seen.accepted, proxy.seen.cuts) == (2, 1)


def test_half_command_is_not_carried_out(proxy: Proxy, through: Redis, direct: Redis) -> None:
    proxy.cut_next(0.5)
    with pytest.raises(ConnectionError):
        through.incr("counted")
    assert direct.get("counted") is None
    assert through.incr("counted") == 1


def test_whole_command_is_executed_and_answer_lost(proxy: Proxy, through: Redis, direct: Redis) -> None:
    proxy.cut_next(1, matches=lambda packet: b"INCR" in packet)
    through.ping()
    with pytest.raises(ConnectionError):
        through.incr("counted")
    assert through.incr("counted") == 2


def test_half_answer_is_error(proxy: Proxy, through: Redis) -> None:
    proxy.cut_next(0.5, "to client")
    with pytest.raises(ConnectionError):
        through.get("key")


@pytest.mark.parametrize(("is_carried_out", "counted"), [(False, b"11"), (True, b"21")])
def test_connection_is_cut_at_nth_matching_command(
    proxy: Proxy, through: Redis, direct: Redis, is_carried_out: bool, counted: bytes
) -> None:
    proxy.cut_at(
        lambda name, command: name == "counter" and command[0] == b"INCRBY",
        nth=2,
        is_carried_out=is_carried_out,
    )
    through.incr("counted")
    with connect(proxy.url, name="counter") as counter:
        pipeline = counter.pipeline(transaction=False)
        pipeline.incr("counted", 10)
        pipeline.get("counted")
        assert pipeline.execute() == [11, b"11"]
        pipeline.set("before", 1)
        pipeline.incr("counted", 10)
        with pytest.raises(ConnectionError):
            pipeline.execute()
    assert direct.get("counted") == counted
    assert direct.get("before") == b"1"
    assert proxy.seen.cuts == 1
    assert through.incr("counted") > 11


def test_answers_before_one_that_is_lost_get_through(proxy: Proxy) -> None:
    proxy.cut_at(lambda _, command: command[0] == b"GET", is_carried_out=True)
    url = urlsplit(proxy.url)
    commands: list[tuple[Any, ...]] = [("AUTH", url.password or ""), ("PING",), ("GET", "key"), ("PING",)]
    with socket.create_connection((url.hostname or "", url.port or 0)) as raw:
        raw.sendall(packet(commands))
        assert raw.makefile("rb").read() == b"+OK\r\n+PONG\r\n"


def test_no_more_connections_are_let_in_than_admitted(proxy: Proxy, through: Redis) -> None:
    proxy.admit(0)
    assert through.ping()
    proxy.cut()
    for _ in range(2):
        with pytest.raises(ConnectionError):
            through.ping()
    proxy.admit()
    assert through.ping()
    assert proxy.seen.refused == 1


def test_held_traffic_arrives_later_while_new_connections_work(
    proxy: Proxy, impatient: Redis, direct: Redis
) -> None:
    proxy.hold()
    with pytest.raises(TimeoutError):
        impatient.incr("counted")
    with connect(proxy.url) as through:
        assert through.incr("counted") == 1
    proxy.resume()
    wait_until(lambda: direct.get("counted") == b"2", 30)


def test_answers_may_be_held_alone(proxy: Proxy, impatient: Redis, direct: Redis) -> None:
    proxy.hold("to client", new=True)
    with pytest.raises(TimeoutError):
        impatient.incr("counted")
    wait_until(lambda: direct.get("counted") == b"1", 30)
    with pytest.raises(TimeoutError):
        impatient.ping()
    proxy.resume()
    wait_until(lambda: answers(impatient), 30)


def test_delay_lies_on_each_way(proxy: Proxy, impatient: Redis) -> None:
    proxy.delay(0.2)
    with pytest.raises(TimeoutError):
        impatient.ping()
    proxy.delay(0)
    wait_until(lambda: answers(impatient), 30)


def test_errors_are_answered_in_order(proxy: Proxy, through: Redis) -> None:
    through.set("key", 1)
    proxy.answer("CLUSTERDOWN not served", to=lambda command: command[0] == b"INCRBY")
    pipeline = through.pipeline(transaction=False)
    for ask in (pipeline.get, pipeline.incr, pipeline.get):
        ask("key")
    first, error, last = pipeline.execute(raise_on_error=False)
    assert (first, last) == (b"1", b"1")
    assert isinstance(error, ClusterDownError)
    proxy.answer(None)
    assert through.incr("key") == 2
    assert proxy.seen.answered == 1
