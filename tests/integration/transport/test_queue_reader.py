"""Reading queues with a reservation behind the blocking pop, on a real Redis."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from time import monotonic
from typing import Any, cast

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from broker_config import queue_reader
from broker_config.in_flight import Reservation
from broker_config.queue_reader import Batch, QueueReader
from broker_config.queues import IN_FLIGHT, IN_FLIGHT_INDEX, wake_up_key
from broker_config.scripts import ClaimOnReserve, Script, ScriptCall
from tests.integration.transport.queues import QUEUE, push, waiting
from tests.waiting import wait_until

#: so long that no wait ends by itself
LONG = 60

NO_END = "local function end_claims() end"

#: claims every message but those that are called so
CLAIM_ALL = ClaimOnReserve(
    "local function claim_on_reserve(_, message, tag, argument, terms)\n"
    f"  return not string.find(message, 'limited') and {{tag, argument, terms}}\nend {NO_END}",
    "argument",
    {QUEUE: "terms"},
)


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_reader, "SLEEP_SECONDS", LONG)


@pytest.fixture
def make(url: str, redis: Redis) -> Iterator[Callable[..., QueueReader]]:
    with ExitStack() as stack:

        def make_one(url: str = url, claim_on_reserve: ClaimOnReserve | None = CLAIM_ALL) -> QueueReader:
            client = stack.enter_context(Redis.from_url(url, socket_timeout=LONG))
            reader = QueueReader(client, [])
            stack.callback(reader.close)
            if claim_on_reserve is not None:
                reader.claim_with(claim_on_reserve)
            return reader

        yield make_one


class Waiting:
    """A reader that waits for messages on a thread of its own."""

    def __init__(
        self, reader: QueueReader, redis: Redis, queues: tuple[str, ...] = (QUEUE,), ahead: int = 8
    ) -> None:
        self._reader = reader
        reader._looked_at = monotonic()  # nothing was there
        self.batch: Batch | None = None
        self.error: RedisError | None = None
        blocked = blocked_clients(redis)
        self._thread = threading.Thread(target=self._wait, args=(queues, ahead), daemon=True)
        self._thread.start()
        wait_until(lambda: blocked_clients(redis) == blocked + 1)

    def _wait(self, queues: tuple[str, ...], ahead: int) -> None:
        try:
            self.batch = self._reader.reserve(queues, 8, 0, ahead=ahead)
        except RedisError as error:
            self.error = error

    def end(self) -> Batch:
        """Return what has come."""
        self._thread.join(LONG)
        if self.error is not None:
            raise self.error
        assert self.batch is not None
        return self.batch


def blocked_clients(redis: Redis) -> int:
    return int(redis.info("clients")["blocked_clients"])


def scripts_run(redis: Redis) -> int:
    stats = cast("dict[str, dict[str, int]]", redis.info("commandstats"))
    return sum(stats[name]["calls"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)


def learnt(reader: QueueReader) -> QueueReader:
    """Let Redis know the reader's script."""
    reader._redis.script_load(reader._reservations._script.text)
    return reader


def test_call_comes_with_wake_up(make: Callable[..., QueueReader], redis: Redis) -> None:
    waits = Waiting(learnt(make()), redis)
    before = scripts_run(redis)
    push(redis, "one")
    [(queue, token, claim)] = waits.end().claims
    assert (queue, claim) == (QUEUE, [token.encode(), b"argument", b"terms"])
    assert scripts_run(redis) == before + 1
    assert redis.hlen(IN_FLIGHT) == 0


def test_reader_that_waits_takes_several_messages_along(
    make: Callable[..., QueueReader], redis: Redis
) -> None:
    waits = Waiting(learnt(make()), redis)
    push(redis, "one", "two", "three")
    batch = waits.end()
    assert (len(batch.claims), batch.is_full, waiting(redis)) == (3, False, [])


def test_waiting_reader_takes_no_more_than_allowed(make: Callable[..., QueueReader], redis: Redis) -> None:
    waits = Waiting(learnt(make()), redis, ahead=2)
    push(redis, "one", "two", "three")
    batch = waits.end()
    assert (len(batch.claims), batch.is_full, waiting(redis)) == (2, True, ["three"])


def test_next_reservation_takes_rest(make: Callable[..., QueueReader], redis: Redis) -> None:
    reader = learnt(make())
    waits = Waiting(reader, redis, ahead=1)
    push(redis, "one", "two", "three")
    waits.end()
    assert len(reader.reserve([QUEUE], 8, 0).claims) == 2


def test_reservation_beyond_credit_leaves_half_of_messages(
    make: Callable[..., QueueReader], redis: Redis
) -> None:
    push(redis, *(str(number) for number in range(10)))
    assert len(make().reserve([QUEUE], 2, 10).claims) == 5
    assert redis.llen(QUEUE) == 5


def test_posted_scripts_are_answered_while_reader_waits(
    make: Callable[..., QueueReader], redis: Redis
) -> None:
    reader = make()
    answers: list[Any] = []
    for word in ("one", "two"):
        reader.post(ScriptCall(Script.of("return ARGV[1]"), [], [word]), answers.append)
    waits = Waiting(reader, redis)
    wait_until(lambda: reader._is_waiting)
    reader.wake()
    waits.end()  # what Redis does not know is sent again, with the next packet
    reader.settle()
    assert answers == [b"one", b"two"]


def test_wait_ends_when_reader_is_woken(make: Callable[..., QueueReader], redis: Redis) -> None:
    waits = Waiting(reader := make(), redis)
    wait_until(lambda: reader._is_waiting)
    reader.wake()
    assert not waits.end().claims


def test_new_terms_hold_for_next_message(make: Callable[..., QueueReader], redis: Redis) -> None:
    reader = make()
    waits = Waiting(reader, redis)
    wait_until(lambda: reader._is_waiting)
    reader.claim_with(ClaimOnReserve(f"local function claim_on_reserve() return {{'new'}} end {NO_END}"))
    reader.wake()
    assert not waits.end().claims
    push(redis, "one")
    learnt(reader)
    assert [claim for _, _, claim in reader.reserve([QUEUE], 1, 0).claims] == [[b"new"]]


def test_unclaimed_messages_stay_in_order_for_full_reservation(
    make: Callable[..., QueueReader], redis: Redis
) -> None:
    reader = learnt(make())
    waits = Waiting(reader, redis)
    push(redis, "limited-1", "limited-2")
    assert waits.end().messages == []
    batch = reader.reserve([QUEUE], 8, 0)
    assert [message.count(b"limited-1") > 0 for _, _, message in batch.messages] == [True, False]
    assert redis.hlen(IN_FLIGHT) == 2


def test_without_terms_nothing_is_reserved_while_it_waits(
    make: Callable[..., QueueReader], redis: Redis
) -> None:
    reader = make(claim_on_reserve=None)
    waits = Waiting(reader, redis)
    push(redis, "one")
    assert waits.end() == Batch(is_full=True)
    assert len(reader.reserve([QUEUE], 1, 0).messages) == 1


def test_many_queues_are_not_checked_per_message(make: Callable[..., QueueReader], redis: Redis) -> None:
    queues = tuple(f"agent.a{number}" for number in range(queue_reader.MOST_RESERVED_AHEAD + 1))
    reader = make()
    waits = Waiting(reader, redis, queues)
    push(redis, "one", queue=queues[3])
    assert not waits.end().claims
    assert [queue for queue, _, _ in reader.reserve(queues, 1, 0).claims] == [queues[3]]


def test_user_barred_from_client_id_waits_without_reserving(
    make: Callable[..., QueueReader], redis: Redis, url: str
) -> None:
    redis.acl_setuser("weak", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client"])
    reader = make(url.replace("://", "://weak:any@"))
    waits = Waiting(reader, redis)
    push(redis, "one")
    assert not waits.end().claims
    assert len(reader.reserve([QUEUE], 1, 0).claims) == 1


def test_scripts_forgotten_by_redis_are_loaded_again(make: Callable[..., QueueReader], redis: Redis) -> None:
    reader = learnt(make())
    waits = Waiting(reader, redis)
    redis.script_flush()
    push(redis, "one")
    assert not waits.end().claims
    assert len(reader.reserve([QUEUE], 1, 0).claims) == 1


def test_lost_connection_raises_in_every_waiting_thread(
    make: Callable[..., QueueReader], redis: Redis
) -> None:
    reader = make()
    answers: list[Any] = []
    reader.reserve([QUEUE], 1, 0)
    redis.client_kill_filter(_type="normal", skipme=True)
    reader.post(ScriptCall(Script.of("return 1"), [], []), answers.append)
    with pytest.raises(RedisConnectionError):
        reader.settle()
    assert [type(answer) for answer in answers] == [RedisConnectionError]
    reader.post(ScriptCall(Script.of("return 1"), [], []), answers.append)
    for _ in range(2):
        reader.settle()
    assert answers[1:] == [1]


def test_reserved_messages_survive_error_ending_wait(make: Callable[..., QueueReader], redis: Redis) -> None:
    reader = learnt(make())
    waits = Waiting(reader, redis)
    push(redis, "one", ring=False)
    redis.client_unblock(reader._client_id, error=True)
    assert len(waits.end().claims) == 1


#: claims all but one message, at which it fails
CLAIM_ALL_BUT_ONE = ClaimOnReserve(
    "local function claim_on_reserve(_, message, tag)\n"
    "  if string.find(message, 'odd') then return redis.call('HGET', KEYS[2] .. ':odd', 'a') end\n"
    f"  return {{tag}}\nend {NO_END}"
)


@pytest.fixture
def odd(redis: Redis) -> None:
    """The record of another version, which fails whoever reads it as one of ours."""
    redis.set(f"{IN_FLIGHT_INDEX}:odd", "packed")


def test_failed_claim_leaves_only_its_message_in_flight(
    make: Callable[..., QueueReader], redis: Redis, odd: None, caplog: pytest.LogCaptureFixture
) -> None:
    push(redis, "one", "odd", "two")
    batch = make(claim_on_reserve=CLAIM_ALL_BUT_ONE).reserve([QUEUE], 8, 0)
    assert (len(batch.claims), batch.messages, redis.llen(QUEUE)) == (2, [], 0)
    assert (redis.hlen(IN_FLIGHT), redis.zcard(IN_FLIGHT_INDEX)) == (1, 1)
    assert "cannot be claimed" in caplog.text
    assert "WRONGTYPE" in caplog.text


def test_failed_claim_during_wait_leaves_message_in_flight(
    make: Callable[..., QueueReader], redis: Redis, odd: None
) -> None:
    waits = Waiting(learnt(make(claim_on_reserve=CLAIM_ALL_BUT_ONE)), redis)
    push(redis, "odd", "one")
    batch = waits.end()
    assert (len(batch.claims), batch.messages, waiting(redis)) == (1, [], [])
    assert redis.hlen(IN_FLIGHT) == 1


def test_failed_reservation_is_raised(make: Callable[..., QueueReader], redis: Redis) -> None:
    redis.set(IN_FLIGHT, "no hash")
    push(redis, "limited")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        make().reserve([QUEUE], 8, 0)


def test_empty_queues_wake_up_key_is_removed(make: Callable[..., QueueReader], redis: Redis) -> None:
    push(redis, "one", "two")
    reader = make()
    assert reader.reserve([QUEUE], 1, 0).is_full
    assert redis.exists(wake_up_key(QUEUE)) == 1
    assert not reader.reserve([QUEUE], 1, 0).is_full
    assert redis.exists(wake_up_key(QUEUE)) == 0


def test_reservations_name_few_queues_and_reach_all(
    make: Callable[..., QueueReader], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [f"agent.a{number}" for number in range(100)]
    for queue in queues:
        redis.lpush(queue, *("message",) * 3)
    reader = make()
    named: list[int] = []
    make_reservation = reader._reservations.make

    def noted(names: Sequence[str], *rest: Any, **fields: Any) -> Reservation:
        named.append(len(names))
        return make_reservation(names, *rest, **fields)

    monkeypatch.setattr(reader._reservations, "make", noted)
    first = [queue for _ in range(100) for queue, _, _ in reader.reserve(queues, 1, 0).claims]
    assert set(first) == set(queues)  # one of each before a second of any
    rest = [queue for _ in range(200) for queue, _, _ in reader.reserve(queues, 1, 0).claims]
    assert sorted(rest) == sorted(queues * 2)
    assert max(named) == queue_reader.MOST_HOT


def test_later_answers_reach_receivers_after_unhandled_answer(
    make: Callable[..., QueueReader],
) -> None:
    reader = make()
    first: ScriptCall[object] = ScriptCall(Script.of("return 'first'"), [], [])
    second: ScriptCall[object] = ScriptCall(Script.of("return 'second'"), [], [])
    received: list[Any] = []

    def fail(_: object) -> None:
        raise KeyError("first")

    reader.post(first, fail)
    reader.post(first, received.append)
    with pytest.raises(KeyError):
        reader.settle()
    assert [type(one) for one in received] == [RedisConnectionError]
    received.clear()

    reader.post(second, received.append)
    reader.settle()

    assert received == [b"second"]
