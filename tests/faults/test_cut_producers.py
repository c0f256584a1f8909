"""A producer's connection is cut at a command, before Redis has it or before the answer: it counts once."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import pytest

from broker_config.scripts import Script
from broker_config.settings import Settings
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.ledger.scripts import Scripts
from tests.faults.conftest import LOAD_BUNDLE
from tests.faults.crowd import AGENT
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import wait_until_idle
from tests.faults.proxied import ProxiedStack, proxied_stack
from tests.faults.proxy import Command
from tests.faults.work import work_args

pytestmark = pytest.mark.faults

PATIENCE = 60
SCRIPTS = Scripts.read(Settings())
NOTE_CALLS = Script.read(files("goondan_tasks.ledger") / "scripts", "turn_lines", "note_calls")


@pytest.fixture(scope="module")
def stack() -> Iterator[ProxiedStack]:
    with proxied_stack(LOAD_BUNDLE, {}) as stack:
        stack.start_worker()
        yield stack


@dataclass(frozen=True, slots=True)
class Producer:
    """A client behind the proxy whose connection is cut at commands."""

    client: Client
    stack: ProxiedStack
    log: HandlerLog
    is_carried_out: bool

    def cut_at(self, script: Script) -> None:
        """Cut the connection at the next command that runs a script."""
        known = {script.sha.encode(), script.text.encode()}

        def is_it(name: str, command: Command) -> bool:
            return name == "goondan-client" and command[1] in known

        self.stack.proxy.cut_at(is_it, is_carried_out=self.is_carried_out)


@pytest.fixture(params=[False, True], ids=["not-carried-out", "answer-lost"])
def producer(request: pytest.FixtureRequest, stack: ProxiedStack, log: HandlerLog) -> Iterator[Producer]:
    cuts = stack.proxy.seen.cuts
    with stack.client_beside() as client:
        client.call(AGENT, "once__sync", work_args(log, 0, 0), timeout=PATIENCE)
        yield Producer(client, stack, log, request.param)
    assert stack.proxy.seen.cuts == cuts + 1
    wait_until_idle(stack.redis_url)


def code_of(result: ToolCallResult) -> str | None:
    return None if result.error is None else result.error.code


def test_calls_whose_submission_is_cut_run_once(producer: Producer, log: HandlerLog) -> None:
    calls = [
        {"agentName": AGENT, "toolName": "once__sync", "args": work_args(log, number, 0)}
        for number in range(1, 21)
    ]
    producer.cut_at(SCRIPTS.submit)
    with final_results(producer.stack.redis_url) as finals:
        results = [call.result(PATIENCE) for call in producer.client.submit_many(calls)]
        assert {result.status for result in results} == {"ok"}
    assert {number: len(runs) for number, runs in log.runs().items()} == dict.fromkeys(range(21), 1)
    assert finals == Counter(result.meta.id for result in results)


@pytest.mark.long
def test_refused_call_is_answered_despite_cut_submission(producer: Producer) -> None:
    producer.cut_at(SCRIPTS.submit)
    refused = producer.client.submit(AGENT, "once__sync", {"number": object()})
    assert code_of(refused.result(PATIENCE)) == "E_TOOL_INVALID_ARGS"


@pytest.mark.long
def test_cancellation_that_is_cut_ends_call_at_once(producer: Producer) -> None:
    waiting = producer.client.submit(AGENT, "once__async", work_args(producer.log, 2, PATIENCE))
    producer.cut_at(SCRIPTS.cancel)
    waiting.cancel()
    assert code_of(waiting.result(PATIENCE)) == "E_TOOL_CANCELLED"


@pytest.mark.long
@pytest.mark.parametrize(
    "script", [SCRIPTS.fetch, SCRIPTS.start, SCRIPTS.finish_event], ids=["fetch", "start", "reply"]
)
def test_event_is_received_and_answered_once_despite_cut(producer: Producer, script: Script) -> None:
    instance = f"{script.sha}-{producer.is_carried_out}"
    asked = producer.client.request(AGENT, "?", is_async=True, instance_key=instance, timeout=PATIENCE)
    producer.cut_at(script)
    received = producer.client.receive(AGENT, instance, PATIENCE)
    assert received is not None
    producer.client.reply(received, "!")
    assert producer.client.pending(asked.id).result(PATIENCE).output == "!"
    assert producer.client.receive(AGENT, instance, 0) is None


@pytest.mark.long
def test_step_calls_appear_once_in_turn_record(producer: Producer) -> None:
    turn = producer.client.turn(AGENT)
    step = turn.step(timeout=PATIENCE)
    producer.cut_at(NOTE_CALLS)
    [result] = step.run(
        [{"id": "a", "name": "once__sync", "args": work_args(producer.log, 1, 0)}], timeout=PATIENCE
    )
    assert [entry.call_ids for entry in turn.record()] == [(), (result.meta.id,)]
    assert len(producer.log.runs_of(1)) == 1
