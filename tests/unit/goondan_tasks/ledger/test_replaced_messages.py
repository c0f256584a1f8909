"""A message leaves when the record of its call replaces it; if Redis loses that, the message stays."""

from collections.abc import Sequence

import pytest
from redis import Redis

from broker_config.in_flight import InFlight, ReservationFactory
from broker_config.queues import IN_FLIGHT, IN_FLIGHT_INDEX, call_queue
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from tests.unit.goondan_tasks.ledger.calls import ONCE, a_call, submit

CODER = call_queue("coder")


def reserved(redis: Redis) -> str:
    """Reserve the only message, and return its tag."""
    _, taken = ReservationFactory().make([CODER], 1).script_call.run(redis)
    return str(taken[0].decode())


def acknowledge(redis: Redis, tag: str, record: str) -> int:
    return InFlight(lambda script_call: script_call.run(redis)).acknowledging(tag, record).run(redis)


def lose_claim(redis: Redis, key: str, record: dict[bytes, bytes]) -> None:
    """Let the record be as it was before its claim, as after a failover."""
    redis.delete(key)
    if record:
        redis.hset(key, mapping=record)  # type: ignore[arg-type]


@pytest.mark.parametrize("is_stored", [True, False])
def test_message_whose_claim_was_lost_comes_back(ledger: Ledger, redis: Redis, is_stored: bool) -> None:
    call, key = a_call(), ledger.keys.call(identity_of(a_call()))
    if is_stored:
        submit(ledger, call)
    else:
        redis.lpush(CODER, "of plain Celery")
    before, tag = redis.hgetall(key), reserved(redis)
    ledger.claim(ClaimRequest(identity_of(call), call, "w1", ONCE)).run(redis)
    lose_claim(redis, key, before)  # type: ignore[arg-type]

    assert acknowledge(redis, tag, key) == 0

    in_flight = InFlight(lambda script_call: script_call.run(redis))
    assert in_flight.give_back(in_flight.overdue(-1)) == 1
    assert redis.llen(CODER) == 1
    reserved(redis)
    assert ledger.claim(ClaimRequest(identity_of(call), call, "w2", ONCE)).run(redis).is_ours


@pytest.mark.parametrize(
    "fields",
    [
        ("status", "running"),
        ("status", "pending"),
        ("status", "done"),
        ("status", "queued", "parked", "1"),
        ("status", "queued", "waiting", "concurrency:bash__exec"),
    ],
    ids=" ".join,
)
def test_message_that_record_replaces_leaves(redis: Redis, fields: Sequence[str]) -> None:
    redis.lpush(CODER, "message")
    tag = reserved(redis)
    redis.hset("goondan:call:one", mapping=dict(zip(fields[::2], fields[1::2], strict=True)))

    assert acknowledge(redis, tag, "goondan:call:one") == 1
    assert (redis.hlen(IN_FLIGHT), redis.zcard(IN_FLIGHT_INDEX)) == (0, 0)


def test_message_of_damaged_record_leaves(redis: Redis) -> None:
    redis.lpush(CODER, "message")
    tag = reserved(redis)
    redis.set("goondan:call:one", "overwritten")

    assert acknowledge(redis, tag, "goondan:call:one") == 1
    assert redis.hlen(IN_FLIGHT) == 0
