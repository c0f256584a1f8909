"""Cancelling in the middle of trouble: the cancel is a key, not a broadcast."""

import threading

import pytest

from goondan_tasks.client import PendingCall
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.testing import LocalStack
from tests.faults import redis_faults
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import wait_until_idle
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS
from tests.faults.work import submit_work
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]

PATIENCE = 60
CANCELLED = "E_TOOL_CANCELLED"
#: much longer than any of these tests waits
FOR_EVER = 300


def code_of(call: PendingCall, seconds: float) -> str | None:
    error = call.result(seconds).error
    return None if error is None else error.code


def insist_on_cancel(call: PendingCall) -> None:
    """Cancel as a producer does whose own connection suffers, too."""

    def is_cancelled() -> bool:
        try:
            call.cancel()
        except BrokerUnreachableError:
            return False
        return True

    wait_until(is_cancelled, PATIENCE)


@pytest.mark.parametrize(
    "fault", [redis_faults.restart, redis_faults.cut_connections], ids=lambda fault: str(fault.__name__)
)
def test_running_call_is_cancelled_while_its_worker_reconnects(
    stack: LocalStack, log: HandlerLog, fault: redis_faults.Fault
) -> None:
    worker = stack.start_worker()
    call = submit_work(stack.client, log, "once__async", seconds=FOR_EVER)
    wait_until(lambda: log.runs_of(0), PATIENCE)
    trouble = threading.Thread(target=fault, args=(stack.redis, 3))
    trouble.start()
    insist_on_cancel(call)
    trouble.join(PATIENCE)
    wait_until(lambda: "Connection to broker lost" in stack.log(worker), PATIENCE)
    assert code_of(call, LEASE_SECONDS + MARGIN_SECONDS) == CANCELLED
    assert [run.ended_at for run in log.runs_of(0)] == [None]
    assert stack.client.call("tester", "mixed__strict", {"number": 1}, timeout=PATIENCE).status == "ok"
    assert worker.poll() is None
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)


@pytest.mark.parametrize("tool", ["once__sync", "again__async"])
def test_worker_kill_does_not_rerun_cancelled_call(stack: LocalStack, log: HandlerLog, tool: str) -> None:
    worker = stack.start_worker()
    with final_results(stack.redis_url) as finals:
        calls = [submit_work(stack.client, log, tool, number=number, seconds=FOR_EVER) for number in range(4)]
        wait_until(lambda: len(log.runs()) == 4, PATIENCE)
        for call in calls:
            call.cancel()
        worker.kill()
        worker.wait(PATIENCE)
        stack.start_worker()
        codes = [code_of(call, LEASE_SECONDS + MARGIN_SECONDS) for call in calls]
    assert codes == [CANCELLED] * 4
    assert [len(log.runs_of(number)) for number in range(4)] == [1] * 4
    assert sorted(finals.values()) == [1] * 4
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)
