"""The master behind one name becomes a replica, and the name stands for another server from then on.

No connection is closed: each part of a process notices by itself.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from broker_config.connections import connect, retrying
from broker_config.embedded import EmbeddedRedis
from broker_config.pipelined_writer import PipelinedWriter
from broker_config.queue_reader import QueueReader
from broker_config.scripts import Script, ScriptCall, ScriptConnection
from broker_config.subscription import Subscription
from tests.faults.proxy import Proxy
from tests.faults.replicated import Replicated, control, replicated
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 30
ADD = Script.of("redis.call('SADD', KEYS[1], ARGV[1]) return redis.call('SCARD', KEYS[1])")
COUNT = Script.of("return redis.call('SCARD', KEYS[1])")


@pytest.fixture(scope="module")
def servers() -> Iterator[Replicated]:
    with replicated(1) as servers:
        yield servers


@pytest.fixture
def name(servers: Replicated) -> Iterator[Proxy]:
    with control(servers.master) as redis:
        redis.flushall()
    with Proxy(servers.master.url) as proxy:
        yield proxy


@pytest.fixture
def redis(name: Proxy) -> Iterator[Redis]:
    with connect(name.url, retry_seconds=PATIENCE) as redis:
        yield redis


def fail_over(servers: Replicated, name: Proxy) -> EmbeddedRedis:
    new = servers.fail_over()
    name.lead_to(new.url)
    return new


def members(server: EmbeddedRedis) -> set[bytes]:
    with control(server) as redis:
        found: set[bytes] = redis.smembers("members")
        return found


def add(member: str) -> ScriptCall[Any]:
    return ScriptCall(ADD, ["members"], [member])


def test_a_pipelined_writer_goes_on_at_the_new_master(servers: Replicated, name: Proxy, redis: Redis) -> None:
    writer = PipelinedWriter(redis)
    writer.start()
    assert writer.ask(add("before")) == 1
    new = fail_over(servers, name)
    answers: list[Future[int]] = [Future() for _ in range(100)]
    for number, answer in enumerate(answers):
        writer.send(add(str(number)), answer.set_result, is_urgent=False)
    assert sorted(answer.result(PATIENCE) for answer in answers) == list(range(2, 102))
    assert len(members(new)) == 101
    writer.stop()


def test_a_reader_marks_calls_at_the_new_master(servers: Replicated, name: Proxy, redis: Redis) -> None:
    reader = QueueReader(redis, [])
    answers: list[Any] = []
    reader.post(add("before"), answers.append)
    reader.settle()
    new = fail_over(servers, name)

    def mark() -> bool:
        reader.post(add("after"), answers.append)
        try:
            reader.settle()
        except RedisError:
            return False
        return not isinstance(answers[-1], RedisError)

    wait_until(mark, PATIENCE)
    assert members(new) == {b"before", b"after"}
    reader.close()


def test_all_connections_of_a_client_leave_a_master_that_refuses_a_write(
    servers: Replicated, name: Proxy, redis: Redis
) -> None:
    scripts, subscription = ScriptConnection(redis), Subscription(redis, "news")
    subscription.subscribe()
    assert scripts.run([ScriptCall(COUNT, ["members"], [])]) == [0]
    redis.ping()  # over a third connection
    fail_over(servers, name)
    with control(servers.servers[1]) as old:
        old.replicaof("127.0.0.1", 1)  # it gets no more news
    redis.sadd("members", "after", "too")
    assert redis.smembers("members") == {b"after", b"too"}
    assert scripts.run([ScriptCall(COUNT, ["members"], [])]) == [2]
    with pytest.raises(RedisError):
        subscription.read(0.1)
    subscription.subscribe()
    redis.publish("news", "here")
    wait_until(lambda: subscription.read(0.1) == b"here", PATIENCE)
    subscription.close()
    servers.follow(servers.servers[1])


def test_a_client_without_patience_says_that_the_server_refuses(servers: Replicated) -> None:
    with (
        connect(servers.servers[1].url) as replica,
        retrying(0.0),
        pytest.raises(RedisError, match="READONLY"),
    ):
        replica.sadd("members", "never")
