"""Events of many instances, with workers that are killed or replaced: in order, one at a time, none lost."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults import redis_faults
from tests.faults.conftest import ENVIRONMENT, Say
from tests.faults.fleet import Fleet, kills
from tests.faults.handler_log import HandlerLog, HandlerRun
from tests.faults.idle import keys_without_ttl
from tests.faults.sizes import LEASE_SECONDS, MARGIN_SECONDS, short_and_long
from tests.waiting import wait_until

EVENT_CHAIN_BUNDLE = Path(__file__).parent.parent / "bundles" / "event-chain"
PATIENCE = 60
UNKNOWN = "E_AGENT_OUTCOME_UNKNOWN"


@dataclass(frozen=True, slots=True)
class Stream:
    """How many events go to how many instances, how long one takes, and how often a worker ends."""

    events: int
    instances: int
    longest: float
    every: float


STREAMS = short_and_long(Stream(240, 12, 0.4, 2.0), Stream(500, 50, 2.0, 3.0), minutes=5)


@pytest.fixture
def chain_stack() -> Iterator[LocalStack]:
    environment = {**ENVIRONMENT, "GOONDAN_MAX_ATTEMPTS": "20"}  # no event is poison, however often it is met
    with LocalStack(EVENT_CHAIN_BUNDLE, workers=0, environment=environment) as stack:
        yield stack


@pytest.fixture
def askers(tmp_path: Path) -> HandlerLog:
    """Where agents that ask others leave their lines."""
    return HandlerLog(tmp_path / "askers.log")


def overlapping(runs: list[HandlerRun], deaths: dict[int, float]) -> list[tuple[HandlerRun, HandlerRun]]:
    """Return the runs of one instance that did not wait for the end, or the death, of the one before."""
    ordered = sorted(runs, key=lambda run: run.started_at)
    ends = [run.ended_at or deaths.get(run.pid, float("inf")) for run in ordered]
    return [
        (ordered[place], ordered[place + 1])
        for place in range(len(ordered) - 1)
        if ends[place] > ordered[place + 1].started_at
    ]


def lines_of(stream: Stream, log: HandlerLog, deaths: dict[int, float]) -> list[str]:
    """Check what was done in each instance; return what is worth telling."""
    runs = log.runs()
    missing = [number for number in range(stream.events) if not any(r.ended_at for r in runs.get(number, []))]
    assert missing == []
    for instance in range(stream.instances):
        mine = [run for number in range(instance, stream.events, stream.instances) for run in runs[number]]
        assert overlapping(mine, deaths) == []
        first_starts = sorted(mine, key=lambda run: run.started_at)
        numbers = list(dict.fromkeys(run.number for run in first_starts))
        assert numbers == sorted(numbers)
    again = [number for number, found in runs.items() if len(found) > 1]
    return [f"{stream.events} events, {len(deaths)} workers killed, {len(again)} events handled again"]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("stream", "number"),
    [
        *(
            pytest.param(*one.values, signal.SIGKILL, id=f"{one.id}-killed", marks=one.marks)
            for one in STREAMS
        ),
        # a worker that is asked to stop lets its events end: tests/conformance has that in short
        pytest.param(*STREAMS[-1].values, signal.SIGTERM, id="whole-replaced", marks=STREAMS[-1].marks),
    ],
)
def test_events_are_handled_singly_in_order_without_loss(
    chain_stack: LocalStack,
    log: HandlerLog,
    chance: random.Random,
    say: Say,
    stream: Stream,
    number: signal.Signals,
) -> None:
    fleet = Fleet(chain_stack, 4)
    wait_until(lambda: len(fleet.consuming) == 4, PATIENCE)
    sent = []
    with kills(fleet, stream.every, chance, number=number):
        for one in range(stream.events):
            wanted = {"number": one, "log": str(log.path), "seconds": chance.uniform(0, stream.longest)}
            instance = f"i-{one % stream.instances}"
            answer = chain_stack.client.request(
                "runner", wanted, instance_key=instance, is_async=True, timeout=600
            )
            sent.append(answer.correlation_id)
        results = [chain_stack.client.pending(call_id).result(300) for call_id in sent]
    assert {result.status for result in results} == {"ok"}
    assert [result.output for result in results] == list(range(stream.events))
    deaths = {death.pid: death.at for death in fleet.deaths}
    say(lines_of(stream, log, deaths))
    if number == signal.SIGKILL:
        assert any(len(runs) > 1 for runs in log.runs().values()), "no kill has met an event"
    wait_until(
        lambda: chain_stack.client._redis.keys("goondan:mailbox:*") == [], LEASE_SECONDS + MARGIN_SECONDS
    )
    assert chain_stack.client._redis.zcount("goondan:due", "-inf", "(inf") == 0
    assert keys_without_ttl(chain_stack.redis_url) == []


@pytest.mark.faults
def test_no_event_begins_while_previous_overruns_and_workers_die(
    log: HandlerLog, chance: random.Random
) -> None:
    # kills may meet the same event again and again: it is run again about as often as a worker is killed
    environment = {**ENVIRONMENT, "GOONDAN_CALL_TIMEOUT_SECONDS": "0.5", "GOONDAN_MAX_ATTEMPTS": "20"}
    with LocalStack(EVENT_CHAIN_BUNDLE, workers=0, environment=environment) as chain_stack:
        fleet = Fleet(chain_stack, 2)
        wait_until(lambda: len(fleet.consuming) == 2, PATIENCE)
        sent = []
        with kills(fleet, 3.0, chance):
            for number in range(20):
                wanted = {"number": number, "log": str(log.path), "seconds": chance.choice([0.1, 1.2])}
                sent.append(chain_stack.client.send("plain-runner", wanted, instance_key=f"i-{number % 2}"))
            results = [chain_stack.client.pending(one.id).result(120) for one in sent]
    codes = {result.error and result.error.code for result in results}
    assert codes == {None, "E_HANDOFF_TIMEOUT"}
    deaths = {death.pid: death.at for death in fleet.deaths}
    runs = log.runs()
    for instance in range(2):
        assert overlapping([run for number in range(instance, 20, 2) for run in runs[number]], deaths) == []


def ask(chain_stack: LocalStack, agent: str, log: HandlerLog, askers: HandlerLog, seconds: float) -> str:
    """Let an agent ask the helper; return the request's id."""
    wanted = {"number": 1, "log": str(log.path), "askers": str(askers.path), "seconds": seconds}
    return chain_stack.client.request(agent, wanted, is_async=True, timeout=PATIENCE).correlation_id


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["once", pytest.param("loop-once", marks=pytest.mark.long)])
def test_worker_death_while_agent_waits_gives_asker_error(
    chain_stack: LocalStack, log: HandlerLog, askers: HandlerLog, agent: str
) -> None:
    chain_stack.start_worker(["helper"])
    worker = chain_stack.start_worker([agent])
    call_id = ask(chain_stack, agent, log, askers, 1)
    wait_until(lambda: log.runs_of(1), PATIENCE)
    worker.kill()
    worker.wait(PATIENCE)
    result = chain_stack.client.pending(call_id).result(LEASE_SECONDS + MARGIN_SECONDS)
    assert result.error is not None
    assert (result.error.code, len(askers.runs_of(1)), len(log.runs_of(1))) == (UNKNOWN, 1, 1)


@pytest.mark.faults
@pytest.mark.parametrize("agent", [pytest.param("again", marks=pytest.mark.long), "loop-again"])
def test_rerun_agent_gets_answer_already_there(
    chain_stack: LocalStack, log: HandlerLog, askers: HandlerLog, agent: str
) -> None:
    chain_stack.start_worker(["helper"])
    worker = chain_stack.start_worker([agent])
    call_id = ask(chain_stack, agent, log, askers, 1)
    wait_until(lambda: log.runs_of(1), PATIENCE)
    worker.kill()
    worker.wait(PATIENCE)
    chain_stack.start_worker([agent])
    result = chain_stack.client.pending(call_id).result(LEASE_SECONDS + MARGIN_SECONDS)
    assert (result.status, result.output, result.meta.attempt) == ("ok", {"helped": 1}, 2)
    assert (len(askers.runs_of(1)), len(log.runs_of(1))) == (2, 1)


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["once", "loop-once"])
def test_stopped_worker_lets_agent_wait_for_answer(
    chain_stack: LocalStack, log: HandlerLog, askers: HandlerLog, agent: str
) -> None:
    chain_stack.start_worker(["helper"])
    worker = chain_stack.start_worker([agent], concurrency=1)
    call_id = ask(chain_stack, agent, log, askers, 1.5)
    wait_until(lambda: log.runs_of(1), PATIENCE)
    worker.terminate()
    assert worker.wait(PATIENCE) == 0
    result = chain_stack.client.pending(call_id).result(PATIENCE)
    assert (result.status, result.output) == ("ok", {"helped": 1})


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["again", "loop-again"])
def test_agent_past_grace_reruns_and_gets_answer(log: HandlerLog, askers: HandlerLog, agent: str) -> None:
    with LocalStack(
        EVENT_CHAIN_BUNDLE, workers=0, environment={**ENVIRONMENT, "GOONDAN_GRACE_SECONDS": "1"}
    ) as chain_stack:
        chain_stack.start_worker(["helper"])
        worker = chain_stack.start_worker([agent])
        call_id = ask(chain_stack, agent, log, askers, 4)
        wait_until(lambda: log.runs_of(1), PATIENCE)
        worker.terminate()
        worker.wait(PATIENCE)
        chain_stack.start_worker([agent])
        result = chain_stack.client.pending(call_id).result(PATIENCE)
    assert (result.status, result.output) == ("ok", {"helped": 1})
    assert (len(askers.runs_of(1)), len(log.runs_of(1))) == (2, 1)


@pytest.mark.faults
@pytest.mark.parametrize("agent", ["once", "loop-once"])
def test_chain_survives_restart_of_redis(
    chain_stack: LocalStack, log: HandlerLog, askers: HandlerLog, agent: str
) -> None:
    chain_stack.start_worker([agent, "helper"], concurrency=1)
    call_id = ask(chain_stack, agent, log, askers, 6)
    wait_until(lambda: log.runs_of(1), PATIENCE)
    time.sleep(0.5)  # the append-only file is written once a second
    redis_faults.restart(chain_stack.redis, 4)
    result = chain_stack.client.pending(call_id).result(PATIENCE)
    assert (result.status, result.output) == ("ok", {"helped": 1})
    assert (len(askers.runs_of(1)), len(log.runs_of(1))) == (1, 1)


PRODUCER = """
import sys, time
from goondan_tasks.client import Client
print(Client.connect().receive(sys.argv[1], timeout=30).input, flush=True)
time.sleep(600)
"""


def let_a_producer_die(chain_stack: LocalStack, agent: str) -> str:
    """Let a producer die with an event of the agent in hand; return the event's id."""
    asked = chain_stack.client.request(agent, "hello", is_async=True, timeout=PATIENCE)
    producer = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, agent],
        env=chain_stack._worker_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with producer:
        assert producer.stdout is not None
        assert producer.stdout.readline() == "hello\n"
        producer.kill()
    return asked.correlation_id


@pytest.mark.faults
def test_event_of_producer_that_died_has_unknown_outcome(chain_stack: LocalStack) -> None:
    call_id = let_a_producer_die(chain_stack, "brain")
    result = chain_stack.client.pending(call_id).result(LEASE_SECONDS + MARGIN_SECONDS)
    assert result.error is not None
    assert result.error.code == UNKNOWN
    assert chain_stack.client.receive("brain", timeout=0) is None


@pytest.mark.faults
def test_event_of_dead_producer_goes_to_another_if_repeatable(chain_stack: LocalStack) -> None:
    call_id = let_a_producer_die(chain_stack, "brain-again")
    chain_stack.client.send("brain-again", "second")
    received = chain_stack.client.receive("brain-again", timeout=LEASE_SECONDS + MARGIN_SECONDS)
    assert received is not None
    assert (received.input, received.attempt) == ("hello", 2)
    chain_stack.client.reply(received, "again")
    assert chain_stack.client.pending(call_id).result(PATIENCE).output == "again"
    following = chain_stack.client.receive("brain-again", timeout=PATIENCE)
    assert following is not None
    assert following.input == "second"
    chain_stack.client.reply(following)


@pytest.mark.faults
def test_events_reserved_by_dying_worker_come_again(chain_stack: LocalStack, log: HandlerLog) -> None:
    """Events whose messages a dying worker has only reserved go to another one, in their order."""
    worker = chain_stack.start_worker(["runner"], concurrency=1)
    wanted = {"log": str(log.path), "seconds": 0.3}
    ids = [
        chain_stack.client.request(
            "runner",
            {**wanted, "number": number},
            instance_key=f"i-{number % 2}",
            is_async=True,
            timeout=PATIENCE,
        ).correlation_id
        for number in range(10)
    ]
    wait_until(lambda: log.runs_of(0), PATIENCE)
    worker.kill()
    worker.wait(PATIENCE)
    killed_at = time.time()
    chain_stack.start_worker(["runner"])
    assert [chain_stack.client.pending(call_id).result(PATIENCE).output for call_id in ids] == list(range(10))
    lines_of(Stream(10, 2, 0.3, 0), log, {worker.pid: killed_at})
