"""Workers share a namespace with another version: what that has written is read, or left to it."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.queues import wake_up_key
from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import LOAD_BUNDLE
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import AGENT_QUEUE, wait_until_idle
from tests.faults.work import submit_work
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 60
LEASE_SECONDS = 2
#: how many calls a test submits at once
CALLS = 40

Alter = Callable[[Redis, str], None]


def change_call(redis: Redis, key: str, **fields: object) -> None:
    call = serializer.decode(redis.hget(key, "call") or b"")
    redis.hset(key, "call", serializer.encode({**call, **fields}))


def add_fields(redis: Redis, key: str) -> None:
    change_call(redis, key, mood={"of": ["the", "day"]}, urgency=9)
    redis.hset(key, mapping={"mood": "good", "urgency": "9"})


def leave_fields_out(redis: Redis, key: str) -> None:
    call = serializer.decode(redis.hget(key, "call") or b"")
    for name in ("v", "callChain"):
        call.pop(name)
    redis.hset(key, "call", serializer.encode(call))
    redis.hdel(key, "attempt", "digest", "producers")


def raise_version(redis: Redis, key: str) -> None:
    change_call(redis, key, v=9)


def keep_the_call_elsewhere(redis: Redis, key: str) -> None:
    redis.hdel(key, "call")


def have_no_deadline(redis: Redis, key: str) -> None:
    redis.hdel(key, "deadline")


def count_in_words(redis: Redis, key: str) -> None:
    redis.hset(key, "attempt", "none")


def count_nothing(redis: Redis, key: str) -> None:
    redis.hset(key, "queuedAt", "nan")


#: what this version can read, and what it cannot
READABLE: list[Alter] = [add_fields, leave_fields_out]
UNREADABLE: list[Alter] = [
    raise_version,
    keep_the_call_elsewhere,
    have_no_deadline,
    count_in_words,
    count_nothing,
]


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    environment = {"GOONDAN_LEASE_SECONDS": str(LEASE_SECONDS)}
    with LocalStack(LOAD_BUNDLE, workers=0, environment=environment) as stack:
        yield stack


@pytest.fixture
def redis(stack: LocalStack) -> Iterator[Redis]:
    with Redis.from_url(stack.redis_url) as redis:
        yield redis


def submit_all(stack: LocalStack, log: HandlerLog) -> list[PendingCall]:
    return [submit_work(stack.client, log, number=number) for number in range(CALLS)]


def runs(log: HandlerLog) -> dict[int, int]:
    return {number: len(runs) for number, runs in log.runs().items()}


@pytest.mark.long
def test_calls_and_messages_with_more_or_fewer_fields_run(
    stack: LocalStack, redis: Redis, log: HandlerLog
) -> None:
    calls = submit_all(stack, log)
    for alter, call in zip(itertools.cycle(READABLE), calls[::4], strict=False):
        alter(redis, Keys().call(call.id))
    write_messages_in_another_way(redis)
    worker = stack.start_worker()
    assert [call.result(PATIENCE).status for call in calls] == ["ok"] * CALLS
    assert runs(log) == dict.fromkeys(range(CALLS), 1)
    assert worker.poll() is None
    wait_until_idle(stack.redis_url)


def write_messages_in_another_way(redis: Redis) -> None:
    """Give some messages fields in another order, and some fields that nobody knows."""
    messages = [serializer.decode(message) for message in redis.lrange(AGENT_QUEUE, 0, -1)]
    redis.delete(AGENT_QUEUE)
    for number, message in enumerate(messages):
        if number % 3 == 0:
            message["headers"] = dict(reversed(message["headers"].items())) | {"later": [1]}
        elif number % 3 == 1:
            message["later"], message["properties"]["later"] = {"v": 9}, None
        redis.rpush(AGENT_QUEUE, serializer.encode(message))
    redis.lpush(wake_up_key(AGENT_QUEUE), "1")


def test_unreadable_call_is_left_to_capable_version(stack: LocalStack, redis: Redis, log: HandlerLog) -> None:
    calls = submit_all(stack, log)
    odd = dict(zip(range(5, CALLS, 5), UNREADABLE, strict=False))
    keys = [Keys().call(calls[number].id) for number in odd]
    records = [redis.dump(key) or b"" for key in keys]
    for key, alter in zip(keys, odd.values(), strict=True):
        alter(redis, key)
    with final_results(stack.redis_url) as finals:
        workers = [stack.start_worker() for _ in range(2)]
        # each worker tries them now and then, and says so; the others go on
        plain = [call for number, call in enumerate(calls) if number not in odd]
        assert [call.result(PATIENCE).status for call in plain] == ["ok"] * len(plain)
        enough = 2 * len(odd)
        wait_until(lambda: sum(refusals(stack.log(worker)) for worker in workers) > enough, PATIENCE)
        assert all(redis.zscore(Keys().due, calls[number].id) for number in odd)
        assert not runs(log).keys() & odd.keys()
        # what a newer version would do, which can read them: the workers here can, now
        for key, record in zip(keys, records, strict=True):
            redis.eval(RESTORE, 1, key, record, *OF_CLAIMS)
        results = [calls[number].result(PATIENCE) for number in odd]
        assert [(one.status, one.error) for one in results] == [("ok", None)] * len(odd)
        wait_until(lambda: len(finals) == CALLS)
    assert set(finals.values()) == {1}
    assert runs(log) == dict.fromkeys(range(CALLS), 1)
    assert [worker.poll() for worker in workers] == [None, None]
    assert not any("Traceback" in stack.log(worker) for worker in workers)
    wait_until_idle(stack.redis_url)


def refusals(text: str) -> int:
    """Count how often a worker's log says that a call is not for it."""
    return sum(text.count(word) for word in ("call.not_readable", "cannot be read", "cannot be claimed"))


#: puts a call's record back, with what a claim has changed in it meanwhile; at once, since workers try on
RESTORE = """
local kept = {}
if redis.call('TYPE', KEYS[1]).ok == 'hash' and (redis.call('HGET', KEYS[1], 'token') or '') ~= '' then
    for place = 2, #ARGV do
        local value = redis.call('HGET', KEYS[1], ARGV[place])
        if value then
            kept[#kept + 1] = ARGV[place]
            kept[#kept + 1] = value
        end
    end
end
redis.call('RESTORE', KEYS[1], 0, ARGV[1], 'REPLACE')
if #kept > 0 then
    redis.call('HSET', KEYS[1], unpack(kept))
end
"""

#: the fields that a claim changes
OF_CLAIMS = ("status", "token", "worker", "verdict", "attempt", "notStarted", "maxAttempts")


@pytest.mark.long
def test_records_in_another_layout_delay_no_dead_workers_call(
    stack: LocalStack, redis: Redis, log: HandlerLog
) -> None:
    odd = [call.id for call in submit_all(stack, log)]
    for call_id in odd:
        redis.set(Keys().call(call_id), "packed")
        redis.zadd(Keys().due, {call_id: 1})  # long ago
    redis.delete(AGENT_QUEUE, wake_up_key(AGENT_QUEUE))
    worker = stack.start_worker()
    again = submit_work(stack.client, log, "again__sync", number=CALLS, seconds=2 * LEASE_SECONDS)
    wait_until(lambda: log.runs_of(CALLS), PATIENCE)
    worker.kill()
    worker.wait(PATIENCE)
    other = stack.start_worker()
    assert again.result(PATIENCE).status == "ok"
    assert runs(log) == {CALLS: 2}
    assert {redis.get(Keys().call(call_id)) for call_id in odd} == {b"packed"}
    assert redis.zcount(Keys().due, "-inf", "(inf") == len(odd)
    assert other.poll() is None
