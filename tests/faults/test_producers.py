"""Producers that get in each other's way, or have nobody to work for them."""

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT, Crowd, numbered
from tests.faults.finals import final_results
from tests.faults.fleet import Fleet
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import leftovers, wait_until_idle
from tests.faults.reckoning import POISONED, Reckoning, seconds_of
from tests.faults.sizes import CROWDS, LEASE_SECONDS, MARGIN_SECONDS, RACES, Size
from tests.faults.work import submit_work, work_args
from tests.waiting import wait_until

PATIENCE = 60
MAX_ATTEMPTS = 3


@pytest.mark.faults
def test_producers_submitting_same_call_share_one_run(stack: LocalStack, log: HandlerLog, say: Say) -> None:
    stack.start_worker()
    together = threading.Barrier(2)

    def produce(client: Client) -> list[ToolCallResult]:
        results = []
        for number in range(RACES):
            together.wait(PATIENCE)
            args = work_args(log, number, 0.002)
            results.append(
                client.call(
                    AGENT, "once__sync", args, turn_id="shared", tool_call_id=f"{number}", timeout=PATIENCE
                )
            )
        return results

    with (
        Client.connect(stack.redis_url, bundle=LOAD_BUNDLE) as other,
        final_results(stack.redis_url) as finals,
        ThreadPoolExecutor(2) as producers,
    ):
        ours, theirs = producers.map(produce, (stack.client, other))
    runs = log.runs()
    say([f"{RACES} calls submitted twice at once: {sum(map(len, runs.values()))} runs"])
    assert ours == theirs
    assert [len(runs[number]) for number in range(RACES)] == [1] * RACES
    assert sorted(finals.values()) == [1] * RACES


@pytest.mark.faults
@pytest.mark.parametrize("size", CROWDS)
def test_forty_threads_share_one_client(stack: LocalStack, log: HandlerLog, say: Say, size: Size) -> None:
    stack.start_worker()
    tools = ("once__sync", "once__async")
    calls = numbered(
        itertools.islice(itertools.cycle(tools), size.calls), lambda number: work_args(log, number, 0)
    )
    with final_results(stack.redis_url) as finals:
        answers = Crowd(stack.client, size.crowd, PATIENCE).run(calls)
    reckoning = Reckoning(answers, log.runs(), finals)
    say(reckoning.lines())
    assert reckoning.codes == {"ok": size.calls}
    assert [a.call.number for a in answers if a.result.output["number"] != a.call.number] == []
    assert reckoning.run_again == reckoning.not_answered_once == []


@pytest.mark.faults
@pytest.mark.long
def test_poison_call_dies_while_others_go_on(stack: LocalStack, log: HandlerLog, say: Say) -> None:
    fleet = Fleet(stack, 2)
    wait_until(lambda: len(fleet.consuming) == 2, PATIENCE)
    poison = stack.client.submit(AGENT, "deadly__poison", {"log": str(log.path), "number": 1_000_000})
    calls = numbered(itertools.repeat("again__async"), lambda number: work_args(log, number, 0.05))
    crowd = Crowd(stack.client, 4, PATIENCE)
    with crowd.at_work(calls) as answers:
        wait_until(lambda: fleet.revive() and poison.status() == "dead", PATIENCE)
        ended, before = time.time(), crowd.answered
        wait_until(lambda: fleet.revive() and crowd.answered > before + 20, PATIENCE)
    result, deaths = poison.result(PATIENCE), fleet.deaths
    meanwhile = [a for a in answers if deaths[0].at < seconds_of(a.result.meta.finished_at) < ended]
    say([f"{len(deaths)} workers poisoned; {len(meanwhile)} other calls answered meanwhile"])
    assert result.error is not None
    assert (result.error.code, result.meta.attempt) == (POISONED, MAX_ATTEMPTS)
    assert len(log.runs_of(1_000_000)) == len(deaths) == MAX_ATTEMPTS
    assert meanwhile
    # what ran beside the poison died with it, and with bad luck each time
    assert {answer.code for answer in answers} <= {"ok", POISONED}
    wait_until_idle(stack.redis_url, LEASE_SECONDS + MARGIN_SECONDS)


@pytest.mark.faults
@pytest.mark.long
def test_without_any_worker_every_waiting_caller_gets_expiry() -> None:
    environment = {**ENVIRONMENT, "GOONDAN_QUEUE_TIMEOUT_SECONDS": "1"}
    with LocalStack(LOAD_BUNDLE, workers=0, environment=environment) as stack:

        async def call() -> list[ToolCallResult]:
            client = AsyncClient(stack.client)
            pending = [await client.submit(AGENT, "once__async", {"number": n}) for n in range(100)]
            return list(await asyncio.gather(*pending))

        blocking = stack.client.submit(AGENT, "once__sync", {"number": 0})
        results = [*asyncio.run(asyncio.wait_for(call(), PATIENCE)), blocking.result(PATIENCE)]
        assert {result.error.code for result in results if result.error} == {"E_TOOL_EXPIRED"}
        assert len(results) == 101
        assert (
            max(seconds_of(result.meta.finished_at) - seconds_of(result.meta.queued_at) for result in results)
            < 10
        )
        assert leftovers(stack.redis_url).keys() <= {"queue"}


_PRODUCER = """
import sys
from goondan_tasks.client import Client
with Client.connect(bundle=sys.argv[1]) as client:
    args = {"log": sys.argv[2], "number": 1, "seconds": 1}
    print(client.submit("tester", "once__sync", args).id, flush=True)
    sys.stdin.read()
"""


@pytest.mark.faults
@pytest.mark.long
def test_others_get_result_of_killed_producers_call(stack: LocalStack, log: HandlerLog) -> None:
    stack.start_worker()
    command = [sys.executable, "-c", _PRODUCER, str(LOAD_BUNDLE), str(log.path)]
    environment = stack.client.settings.environment(redis_url=stack.redis_url)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as producer:
        assert producer.stdout is not None
        call_id = producer.stdout.readline().strip()
        producer.send_signal(signal.SIGKILL)
    result = stack.client.pending(call_id).result(PATIENCE)
    assert (result.status, len(log.runs_of(1))) == ("ok", 1)


@pytest.mark.faults
@pytest.mark.long
def test_call_expires_though_every_sweeper_dies(log: HandlerLog) -> None:
    environment = {**ENVIRONMENT, "GOONDAN_QUEUE_TIMEOUT_SECONDS": "1"}
    with LocalStack(LOAD_BUNDLE, workers=0, environment=environment) as stack:
        call = submit_work(stack.client, log)
        wait_until(
            lambda: stack.client._ledger.sweep("dies before it settles").run(stack.client._ledger.redis)
        )
        result = call.result(LEASE_SECONDS + MARGIN_SECONDS)
        assert result.error is not None
        assert result.error.code == "E_TOOL_EXPIRED"
