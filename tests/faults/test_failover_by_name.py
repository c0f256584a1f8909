"""The name of the master stands for another server from some moment on.

An old master that has become a replica closes no connection: each part of a process notices by itself.
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
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT
from tests.faults.handler_log import HandlerLog
from tests.faults.proxied import ElsewhereStack
from tests.faults.proxy import Proxy
from tests.faults.reckoning import Reckoning
from tests.faults.replicated import Replicated, control, crowd_through, replicated
from tests.faults.sizes import short_and_long
from tests.faults.work import submit_work, work_args
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


def test_pipelined_writer_goes_on_at_new_master(servers: Replicated, name: Proxy, redis: Redis) -> None:
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


def test_reader_marks_calls_at_new_master(servers: Replicated, name: Proxy, redis: Redis) -> None:
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


def test_all_client_connections_leave_master_refusing_write(
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


def test_client_without_patience_says_that_server_refuses(servers: Replicated) -> None:
    with (
        connect(servers.servers[1].url) as replica,
        retrying(0.0),
        pytest.raises(RedisError, match="READONLY"),
    ):
        replica.sadd("members", "never")


@pytest.fixture
def stack(name: Proxy) -> Iterator[LocalStack]:
    with ElsewhereStack(name.url, LOAD_BUNDLE, workers=1, environment=ENVIRONMENT) as stack:
        yield stack


@pytest.mark.parametrize("failovers", short_and_long(1, 5, minutes=5))
def test_load_behind_name_loses_or_reruns_no_call(
    servers: Replicated, name: Proxy, stack: LocalStack, log: HandlerLog, say: Say, failovers: int
) -> None:
    answers = crowd_through(lambda: fail_over(servers, name), failovers, stack, log)
    reckoning = Reckoning(answers, log.runs())
    say(reckoning.lines())
    assert set(reckoning.codes) == {"ok"}
    assert reckoning.run_twice == []
    assert reckoning.wrong_owner == []
    assert all(worker.poll() is None for worker in stack.workers)


def test_call_missing_on_lagging_replica_is_unknown_and_resubmittable(
    servers: Replicated, name: Proxy, stack: LocalStack, log: HandlerLog
) -> None:
    old, new = servers.servers
    kept = submit_work(stack.client, log, number=1)
    assert kept.result(PATIENCE).status == "ok"
    with control(old) as redis:
        assert redis.wait(1, PATIENCE * 1000) == 1
    with control(new) as redis:
        redis.replicaof("NO", "ONE")  # it gets nothing more
    args = work_args(log, 2, 0)
    lost = stack.client.submit(AGENT, "once__sync", args, tool_call_id="again", turn_id="turn-1")
    assert lost.result(PATIENCE).status == "ok"
    running = submit_work(stack.client, log, number=3, seconds=2.0)
    wait_until(lambda: log.runs_of(3))
    old.process.kill()
    old.process.wait(PATIENCE)
    name.lead_to(new.url)
    assert stack.client.pending(kept.id).result(PATIENCE).status == "ok"
    with pytest.raises(CallNotFoundError):
        stack.client.pending(lost.id)
    with pytest.raises(CallNotFoundError):
        running.result(PATIENCE)
    again = stack.client.submit(AGENT, "once__sync", args, tool_call_id="again", turn_id="turn-1")
    assert again.id == lost.id
    assert again.result(PATIENCE).status == "ok"
    assert {number: len(runs) for number, runs in log.runs().items()} == {1: 1, 2: 2, 3: 1}
    servers.servers = [new, old]
    old.launch()
    servers.follow(old)
