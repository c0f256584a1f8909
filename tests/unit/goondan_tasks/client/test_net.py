"""The net under all who wait, on a Redis in memory."""

from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.settings import Settings
from goondan_tasks.client import net as net_module
from goondan_tasks.client.net import Net
from goondan_tasks.client.result_listener import ResultListener
from goondan_tasks.errors import CallNotFoundError
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from tests.unit.goondan_tasks.ledger.calls import ONCE, a_call, submit


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def ledger(redis: Redis) -> Ledger:
    return Ledger(redis, Settings.load())


@pytest.fixture
def listener(ledger: Ledger) -> ResultListener:
    return ResultListener(ledger.redis, ledger.keys, ledger.result)


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_module, "LOOK_SECONDS", 0.0)


def nothing() -> None:
    """Sweep nothing."""


def test_a_result_whose_notification_was_missed_is_found(ledger: Ledger, listener: ResultListener) -> None:
    done, waiting = a_call(), a_call(turn_id="turn-2")
    done_id, waiting_id = submit(ledger, done), submit(ledger, waiting)
    futures = listener.future(done_id), listener.future(waiting_id)
    claim = ledger.claim(ClaimRequest(done_id, done, "w1", ONCE))
    ledger.finish(claim, claim.run.ok(1, None))

    Net(ledger, listener, nothing).look()

    assert futures[0].result(0).output == 1
    assert not futures[1].done()


def test_a_result_that_cannot_be_read_is_told_and_a_call_that_nobody_knows_is_named(
    ledger: Ledger, listener: ResultListener
) -> None:
    unknown, damaged = listener.future("unknown"), listener.future("damaged")
    ledger.redis.set(ledger.keys.celery_result("damaged"), b"{")
    net = Net(ledger, listener, nothing)

    net.look()

    with pytest.raises(CallNotFoundError):
        damaged.result(0)
    assert not unknown.done()  # it may be on its way
    assert net.unknown == {"unknown"}


def test_nobody_looks_again_before_it_is_time(
    ledger: Ledger, listener: ResultListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[int] = []
    net = Net(ledger, listener, lambda: sweeps.append(1))
    net.look()
    monkeypatch.setattr(net_module, "LOOK_SECONDS", 60.0)
    net.look()
    assert sweeps == [1]


def test_who_comes_while_somebody_looks_does_not_look_too(ledger: Ledger, listener: ResultListener) -> None:
    sweeps: list[int] = []

    def sweep() -> None:
        sweeps.append(1)
        net.look()

    net = Net(ledger, listener, sweep)
    net.look()
    assert sweeps == [1]


def test_who_could_not_look_leaves_it_to_the_next(ledger: Ledger, listener: ResultListener) -> None:
    errors = [RedisConnectionError("gone")]

    def sweep() -> None:
        if errors:
            raise errors.pop()

    net = Net(ledger, listener, sweep)
    future = listener.future("unknown")
    with pytest.raises(RedisConnectionError):
        net.look()
    assert not net.unknown
    net.look()
    assert net.unknown == {"unknown"}
    assert not future.done()
