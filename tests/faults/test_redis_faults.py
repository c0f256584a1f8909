"""Redis goes away, freezes, fills up or forgets, under load: no worker is restarted for it."""

import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker_config.connections import SOCKET_TIMEOUT_SECONDS
from goondan_tasks.client import PendingCall
from goondan_tasks.contract.errors import BrokerUnreachableError, CallNotFoundError
from goondan_tasks.testing import LocalStack
from tests.faults import redis_faults
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT, Crowd
from tests.faults.fleet import Fleet
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import wait_until_idle
from tests.faults.reckoning import Reckoning
from tests.faults.redis_faults import Fault
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS, SHORT_OUTAGE, WHOLE_OUTAGE, Outage
from tests.faults.work import mixed_work, submit_work
from tests.waiting import wait_until

#: a producer is told after GOONDAN_CONNECT_TIMEOUT_SECONDS, and what the last attempt takes
TOLD_SECONDS = 10 + 2 * SOCKET_TIMEOUT_SECONDS
#: who waits looks every two seconds
NOTICED_SECONDS = 12
#: an idle worker has nothing to wait for when it is told to stop; its grace period is longer
IDLE_STOP_SECONDS = 30
#: how soon after a fault calls are answered again
BACK_SECONDS = 30


FAULTS: list[Fault] = [
    redis_faults.restart,
    redis_faults.cut_connections,
    redis_faults.kill,
    redis_faults.freeze,
    redis_faults.fill_memory,
]


def outages() -> list["pytest.ParameterSet"]:
    """Return the first two faults at a short size, and each at its whole size."""
    long = [pytest.mark.long, pytest.mark.timeout(300)]
    return [
        *(pytest.param(fault, SHORT_OUTAGE, id=f"{fault.__name__}-short") for fault in FAULTS[:2]),
        *(pytest.param(fault, WHOLE_OUTAGE, id=f"{fault.__name__}-whole", marks=long) for fault in FAULTS),
    ]


@pytest.mark.faults
@pytest.mark.parametrize(("fault", "size"), outages())
def test_outage_neither_loses_nor_reruns_accepted_calls(
    stack: LocalStack, log: HandlerLog, chance: random.Random, say: Say, fault: Fault, size: Outage
) -> None:
    fleet = Fleet(stack, 2)
    wait_until(lambda: len(fleet.consuming) == 2, 60)
    workers = {worker.pid for worker in fleet.consuming}
    crowd = Crowd(stack.client, size.crowd, patience=size.seconds + 60)
    with crowd.at_work(mixed_work(log, chance, size.longest)) as answers:
        wait_until(lambda: crowd.answered > size.crowd, 30)
        fault(stack.redis, size.seconds)
        before = crowd.answered
        wait_until(lambda: crowd.answered > before + 2 * size.crowd, BACK_SECONDS)
    reckoning = Reckoning(answers, log.runs())
    say(reckoning.lines())
    assert reckoning.codes.keys() == {"ok"}
    assert reckoning.run_again == []
    assert reckoning.ok_without_run == reckoning.wrong_owner == []
    assert reckoning.slowest_refusal <= TOLD_SECONDS
    # the other one may have answered all that was waited for
    wait_until(lambda: {worker.pid for worker in fleet.consuming} == workers, BACK_SECONDS)
    assert [stack.client.pending(answer.id).result(TOLD_SECONDS) for answer in answers] == [
        answer.result for answer in answers
    ]
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
    for worker in fleet.consuming:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(IDLE_STOP_SECONDS) == 0


@pytest.mark.faults
@pytest.mark.long
def test_client_waiting_past_timeout_on_silent_redis_gets_error(stack: LocalStack, log: HandlerLog) -> None:
    call = submit_work(stack.client, log)
    stack.redis.process.send_signal(signal.SIGSTOP)
    asked_at = time.monotonic()
    with pytest.raises(BrokerUnreachableError, match="cannot be reached"):
        call.result(3)
    assert time.monotonic() - asked_at <= NOTICED_SECONDS
    stack.redis.process.send_signal(signal.SIGCONT)
    stack.start_worker()
    assert call.result(NOTICED_SECONDS).status == "ok"


@pytest.mark.faults
@pytest.mark.long
def test_no_client_hangs_when_redis_loses_its_data(stack: LocalStack, log: HandlerLog, say: Say) -> None:
    fleet = Fleet(stack, 1)
    wait_until(lambda: fleet.consuming, 60)
    args = {"log": str(log.path), "number": 1, "seconds": 1}
    call = {"agentName": AGENT, "toolName": "once__async", "args": args}
    pending = stack.client.submit_many([call] * 40)
    wait_until(lambda: log.runs_of(1))
    stack.client._redis.flushall()
    with ThreadPoolExecutor(len(pending)) as threads:
        endings = Counter(threads.map(_ending, pending))
    say([", ".join(f"{count} {ending}" for ending, count in endings.items())])
    assert endings.keys() <= {"ok", "E_CALL_NOT_FOUND"}
    assert stack.client.call(AGENT, "once__sync", args, timeout=NOTICED_SECONDS).status == "ok"
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)


def _ending(waiting: PendingCall) -> str:
    try:
        return waiting.result(NOTICED_SECONDS).status
    except CallNotFoundError as error:
        return error.code
