"""Workers reach Redis by a slow network that is cut, at random and half-way: each call is answered once."""

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.beside import beside
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE, Say
from tests.faults.crowd import Crowd
from tests.faults.finals import final_results
from tests.faults.fleet import Worker
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import wait_until_idle
from tests.faults.proxied import ProxiedStack, proxied_stack
from tests.faults.proxy import Direction, Proxy
from tests.faults.reckoning import Reckoning
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS, ROUGH_ROADS, RoughRoad, short_and_long
from tests.faults.work import mixed_work, submit_work
from tests.waiting import wait_until

#: so many connections a worker makes when it starts again, and some more
CONNECTIONS = 8
BACK_SECONDS = 30
#: where a packet is cut: nothing arrives, half of it, or all and no answer
SHARES = (0.0, 0.5, 1.0)
WAYS: tuple[Direction, Direction] = ("to server", "to client")


@pytest.fixture(scope="module")
def stack() -> Iterator[ProxiedStack]:
    with proxied_stack(LOAD_BUNDLE, ENVIRONMENT) as stack:
        workers = [stack._launch(stack._agents, 8) for _ in range(2)]
        stack._wait_until_ready(workers)
        yield stack


def consuming(stack: LocalStack) -> list[Worker]:
    """Return the workers that say that they consume."""
    announced = {worker.pid for worker in stack.client.workers()}
    return [worker for worker in stack.workers if worker.poll() is None and worker.pid in announced]


@pytest.mark.faults
@pytest.mark.parametrize("admitted", short_and_long([1, 4], range(CONNECTIONS + 1), minutes=5))
def test_worker_recovers_from_half_failed_reconnection(
    stack: ProxiedStack, log: HandlerLog, admitted: Iterator[int]
) -> None:
    workers = stack.workers
    for number in admitted:
        enough = stack.proxy.seen.refused + 3
        stack.proxy.admit(number)
        stack.proxy.cut()
        wait_until(partial(_are_refused, stack.proxy, enough))
        stack.proxy.admit()
        call = submit_work(stack.client, log, number=number)
        assert call.result(BACK_SECONDS).status == "ok", number
        wait_until(lambda: len(consuming(stack)) == len(workers), BACK_SECONDS)
    assert [worker.poll() for worker in workers] == [None, None]


def _are_refused(proxy: Proxy, connections: int) -> bool:
    return proxy.seen.refused >= connections


@pytest.mark.faults
@pytest.mark.parametrize("road", ROUGH_ROADS)
def test_calls_over_slow_cut_network_are_answered_once(
    stack: ProxiedStack, log: HandlerLog, chance: random.Random, say: Say, road: RoughRoad
) -> None:
    workers = stack.workers
    calls = itertools.islice(mixed_work(log, chance, 0.4), road.calls)
    stack.proxy.delay(road.delay)
    with stack.client_beside() as producer, final_results(stack.redis_url) as finals:
        with cuts(stack.proxy, road, chance):
            answers = Crowd(producer, road.crowd, patience=240).run(calls)
        stack.proxy.delay(0)
    reckoning = Reckoning(answers, log.runs(), finals)  # after the last final result was counted
    say([*reckoning.lines(), f"{stack.proxy.seen.cuts} connections cut"])
    assert len(answers) == road.calls
    assert reckoning.codes.keys() == {"ok"}
    assert reckoning.run_twice == []
    assert reckoning.not_answered_once == []
    assert reckoning.ok_without_run == []
    wait_until(lambda: len(consuming(stack)) == len(workers), BACK_SECONDS)
    assert [worker.poll() for worker in workers] == [None, None]
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)


@contextmanager
def cuts(proxy: Proxy, road: RoughRoad, chance: random.Random) -> Iterator[None]:
    """Cut connections at random moments, and inside packets, beside a ``with`` block."""

    def cut(is_over: threading.Event) -> None:
        for _ in range(road.cuts):
            if is_over.wait(chance.uniform(0, 2 * road.cut_every)):
                return
            if chance.random() < 0.34:
                proxy.cut_one(chance.randrange)
            else:
                proxy.cut_next(chance.choice(SHARES), chance.choice(WAYS))

    with beside(cut, "scissors", 10):
        yield


@pytest.mark.faults
@pytest.mark.long
def test_calls_go_on_when_connections_are_half_open(stack: ProxiedStack, log: HandlerLog) -> None:
    workers = stack.workers
    assert stack.proxy.hold()
    pending = [submit_work(stack.client, log, number=number) for number in range(20)]
    assert [call.result(4 * BACK_SECONDS).status for call in pending] == ["ok"] * 20
    assert {number: len(runs) for number, runs in log.runs().items()} == dict.fromkeys(range(20), 1)
    stack.proxy.resume()
    wait_until(lambda: len(consuming(stack)) == len(workers), BACK_SECONDS)
    assert [worker.poll() for worker in workers] == [None, None]
