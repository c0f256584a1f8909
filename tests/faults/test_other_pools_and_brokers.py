"""The same kills with Celery's own pools, and with a broker that is not the ledger's Redis."""

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.embedded import EmbeddedRedis
from goondan_tasks.testing import LocalStack
from tests.faults.celery_workers import OtherBrokerStack, celery_workers
from tests.faults.conftest import ENVIRONMENT, PROVING_GROUND, Say
from tests.faults.crowd import Crowd, numbered
from tests.faults.finals import final_results
from tests.faults.fleet import Fleet
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import leftovers, wait_until_idle
from tests.faults.reckoning import POISONED, UNKNOWN, Reckoning
from tests.faults.sizes import FEWER_KILLS, LEASE_SECONDS, MARGIN_SECONDS, SELDOM_KILLS, Size
from tests.faults.stock_transport import SCHEME, know_stock_transport
from tests.faults.survival import survive
from tests.faults.work import TOOLS, submit_work, work_args
from tests.processes import with_environment
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(300)]

EXPIRED = "E_TOOL_EXPIRED"
PATIENCE = 60


@pytest.fixture
def broker() -> Iterator[EmbeddedRedis]:
    """A second Redis, which carries only the queues."""
    with EmbeddedRedis() as server:
        yield server


@pytest.mark.parametrize("scheme", ["redis", SCHEME])
def test_calls_survive_kills_with_another_broker(
    broker: EmbeddedRedis, log: HandlerLog, say: Say, tmp_path: Path, scheme: str
) -> None:
    know_stock_transport()
    # a broker may lose what a dying worker has taken: such a call is not run, and ends at its deadline
    environment = {**ENVIRONMENT, "GOONDAN_QUEUE_TIMEOUT_SECONDS": "15"}
    broker_url = broker.url.replace("redis", scheme, 1)
    stack = OtherBrokerStack(PROVING_GROUND, workers=0, environment=environment).through(broker_url)
    with stack:
        fleet = Fleet(stack, 3, celery_workers(stack, tmp_path, "-c", "8"))
        reckoning = survive(stack, fleet, log, FEWER_KILLS)
        say(reckoning.lines())
        expired = [answer for answer in reckoning.answers if answer.code == EXPIRED]
        assert reckoning.codes.keys() <= {"ok", UNKNOWN, POISONED, EXPIRED}
        assert [
            answer
            for answer in expired
            if not answer.call.may_run_again and answer.call.number in reckoning.runs
        ] == []
        assert len(expired) <= len(fleet.deaths)
        wait_until(lambda: leftovers(stack.redis_url) == leftovers(broker.url) == {}, 30)


def test_a_broker_that_was_away_is_found_again(broker: EmbeddedRedis, log: HandlerLog, say: Say) -> None:
    environment = {**ENVIRONMENT, "GOONDAN_QUEUE_TIMEOUT_SECONDS": "60"}
    stack = OtherBrokerStack(PROVING_GROUND, workers=0, environment=environment).through(broker.url)
    with stack:
        fleet = Fleet(stack, 2)
        wait_until(lambda: len(fleet.consuming) == 2, PATIENCE)
        workers = {worker.pid for worker in fleet.consuming}
        calls = numbered(itertools.cycle(TOOLS), lambda n: work_args(log, n, (0.01, 0.5)[n % 2]))
        crowd = Crowd(stack.client, 24, patience=60)
        with final_results(stack.redis_url) as finals, crowd.at_work(calls) as answers:
            wait_until(lambda: crowd.answered > 100, PATIENCE)
            broker.process.terminate()
            broker.process.wait(PATIENCE)
            before = crowd.answered
            wait_until(lambda: not stack.client.workers())  # they try to reach it again
            broker.launch()
            wait_until(lambda: crowd.answered > before + 200, PATIENCE)
        reckoning = Reckoning(answers, log.runs(), finals)
        say(reckoning.lines())
        assert reckoning.codes.keys() == {"ok"}
        assert reckoning.run_again == reckoning.not_answered_once == []
        assert {worker.pid for worker in fleet.consuming} == workers
