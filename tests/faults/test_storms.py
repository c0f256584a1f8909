"""Storms: kills and freezes again and again under bursts of calls, with an outside count of what ran."""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import WaitTimeout
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import LOAD_BUNDLE, Say
from tests.faults.crowd import AGENT, Answer, NumberedCall
from tests.faults.finals import final_results
from tests.faults.fleet import Fleet, Worker
from tests.faults.handler_log import HandlerLog
from tests.faults.proxied import ProxiedStack
from tests.faults.proxy import Direction, Proxy
from tests.faults.reckoning import UNKNOWN, Reckoning, Runs
from tests.faults.sizes import short_and_long
from tests.faults.work import work_args
from tests.waiting import wait_until

LEASE_SECONDS = 2
#: when every call has its result after the last fault: after a lease, and what a busy machine needs to go on
RECOVERY_SECONDS = LEASE_SECONDS + 5
#: a call without a result for so long is lost
PATIENCE_SECONDS = 30
#: how many calls a burst has, and how many bursts wait for their results at one time
BURST, BURSTS = 25, 16
#: how long a producer of the short size waits between its bursts, in which all processors are busy
PAUSE_SECONDS = 0.5
WORKERS = 4
#: a worker runs so many calls at once
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Freeze:
    """A worker did not run between two moments, in seconds since the epoch."""

    pid: int
    begun_at: float
    ended_at: float


@dataclass(frozen=True, slots=True)
class Storm:
    """What a fault works with, and what it has done so far."""

    stack: LocalStack
    fleet: Fleet
    chance: random.Random
    #: each reaches Redis for half of the workers
    proxies: tuple[Proxy, Proxy]
    freezes: list[Freeze] = field(default_factory=list)

    def victim(self) -> Worker:
        """Choose a worker that consumes, as soon as it is not the only one."""
        wait_until(lambda: self.fleet.revive() and len(self.fleet.consuming) > 1, 60)
        return self.chance.choice(self.fleet.consuming)

    def pause(self, shortest: float, longest: float) -> None:
        """Let a random time pass, so that a fault meets work at any moment."""
        threading.Event().wait(self.chance.uniform(shortest, longest))


def kill(storm: Storm) -> None:
    """Kill a worker amid its work."""
    storm.pause(0, 0.3)
    storm.fleet.replace(storm.victim())


def freeze(storm: Storm) -> None:
    """Stop half of the workers for longer than their leases, and let them go on with what they had."""
    wait_until(lambda: len(storm.fleet.consuming) == WORKERS, 60)
    begun: list[tuple[Worker, float]] = []
    for victim in storm.chance.sample(storm.fleet.consuming, WORKERS // 2):
        storm.pause(0, 0.1)
        victim.send_signal(signal.SIGSTOP)
        begun.append((victim, time.time()))
    storm.pause(1.1 * LEASE_SECONDS, 1.5 * LEASE_SECONDS)
    for victim, begun_at in begun:
        storm.freezes.append(Freeze(victim.pid, begun_at, time.time()))
        victim.send_signal(signal.SIGCONT)


def kill_behind_a_slow_redis(storm: Storm) -> None:
    """Kill a worker while Redis has not read yet what the worker has sent."""
    storm.pause(0, 0.3)
    victim, server = storm.victim(), storm.stack.redis.process.pid
    os.kill(server, signal.SIGSTOP)
    try:
        storm.pause(0.05, 0.3)
        storm.fleet.replace(victim)
    finally:
        os.kill(server, signal.SIGCONT)


def half_open(storm: Storm) -> None:
    """Let half of the workers' connections forward nothing for longer than a lease, then go on or be cut."""
    storm.pause(0, 0.3)
    wait_until(lambda: storm.fleet.revive() and len(storm.fleet.consuming) == WORKERS, 60)
    proxy = storm.chance.choice(storm.proxies)
    directions: tuple[Direction, ...] = storm.chance.choice([(), ("to client",), ("to server",)])
    assert proxy.hold(*directions) > 0, "no worker reaches Redis through the proxy"
    storm.pause(1.1 * LEASE_SECONDS, 2 * LEASE_SECONDS)
    if storm.chance.random() < 0.5:
        proxy.cut()
    proxy.resume()


def tool_of(number: int) -> str:
    """Return one of both colours, that may mostly not be run twice."""
    return f"{'again' if number % 5 == 0 else 'once'}__{'async' if number % 2 else 'sync'}"


@contextmanager
def bursts(client: Client, log: HandlerLog, pause: float) -> Iterator[tuple[list[Answer], list[CallRecord]]]:
    """Submit bursts of short calls of both kinds during a ``with`` block, then wait for all results.

    Each producer waits ``pause`` seconds between its bursts.
    Yields the answers, and the records of calls that have none.
    """
    answers: list[Answer] = []
    lost: list[CallRecord] = []
    is_over = threading.Event()
    numbers = itertools.count()

    def submit() -> list[tuple[NumberedCall, PendingCall]]:
        calls = [
            NumberedCall(number, tool_of(number), work_args(log, number, 0))
            for number in itertools.islice(numbers, BURST)
        ]
        wire = [{"agentName": AGENT, "toolName": call.tool, "args": call.args} for call in calls]
        return list(zip(calls, client.submit_many(wire), strict=True))

    def work() -> None:
        while not is_over.is_set():
            for call, pending in submit():
                try:
                    answers.append(Answer(call, pending.id, pending.result(PATIENCE_SECONDS)))
                except WaitTimeout:
                    lost.append(client.record(pending.id))
            is_over.wait(pause)

    threads = [threading.Thread(target=work) for _ in range(BURSTS)]
    for thread in threads:
        thread.start()
    try:
        yield answers, lost
    finally:
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS + BURST)


def late_runs(runs: Runs, freezes: list[Freeze]) -> list[int]:
    """Return the calls that a worker began after its freeze though another one had begun them meanwhile."""
    begun: dict[int, list[Freeze]] = {}
    for one in freezes:
        begun.setdefault(one.pid, []).append(one)
    return [
        number
        for number, several in runs.items()
        for run, other in itertools.permutations(several, 2)
        for one in begun.get(run.pid, [])
        if run.pid != other.pid and one.begun_at < other.started_at < run.started_at < one.ended_at + 1
    ]


#: each fault, and how often it comes in the short and in the whole size; orders of steps are for the walks of
#: ``tests/simulation``, which take thousands of them in a second
STORMS: dict[str, tuple[Callable[[Storm], None], int, int]] = {
    "kills": (kill, 10, 40),
    "freezes": (freeze, 2, 12),
    "kills-behind-a-slow-redis": (kill_behind_a_slow_redis, 8, 16),
    "half-open-connections": (half_open, 2, 10),
}
#: plain kills and freezes have a short form in test_killed_workers and test_long_and_frozen_workers
SHORT_STORMS = ("kills-behind-a-slow-redis", "half-open-connections")


@pytest.mark.faults
@pytest.mark.parametrize(
    ("is_whole", "name"),
    [
        pytest.param(*size.values, name, id=f"{size.id}-{name}", marks=size.marks)
        for size in short_and_long(False, True, minutes=10)
        for name in (STORMS if size.id == "whole" else SHORT_STORMS)
    ],
)
def test_storm_loses_no_call_and_reruns_only_repeatable_calls(
    log: HandlerLog, chance: random.Random, say: Say, name: str, is_whole: bool
) -> None:
    fault, few, many = STORMS[name]
    environment = {
        "GOONDAN_LEASE_SECONDS": str(LEASE_SECONDS),
        "GOONDAN_LOG_LEVEL": "warning",
        "GOONDAN_MAX_ATTEMPTS": "10",  # among 40 deaths of workers one call may meet three
    }
    with (
        ProxiedStack(LOAD_BUNDLE, workers=0, environment=environment) as stack,
        Proxy(stack.redis_url) as one,
        Proxy(stack.redis_url) as other,
    ):
        proxies = itertools.cycle((one, other))

        def launch() -> Worker:
            if fault is half_open:
                stack.proxy = next(proxies)
            return stack._launch(stack._agents, CONCURRENCY)

        fleet = Fleet(stack, WORKERS, launch)
        storm = Storm(stack, fleet, chance, (one, other))
        faults = many if is_whole else few
        with final_results(stack.redis_url) as finals:
            with bursts(stack.client, log, 0 if is_whole else PAUSE_SECONDS) as (answers, lost):
                for _ in range(faults):
                    fault(storm)
                struck_at = time.monotonic()
            recovered = time.monotonic() - struck_at
            wait_until(lambda: sum(finals.values()) >= len(answers), 10)
        ended = [worker.pid for worker in storm.fleet.workers if worker.poll() is not None]
    runs = log.runs()
    reckoning = Reckoning(answers, runs, finals, storm.fleet.deaths)
    late = late_runs(runs, storm.freezes)
    say([*reckoning.lines(), f"{faults} faults, {len(late)} late runs, recovered in {recovered:.1f} s"])
    assert lost == []
    assert reckoning.run_twice == []
    assert reckoning.not_answered_once == []
    assert reckoning.ok_without_run == []
    # a freeze may come between the last look at the lease and the first line of a handler that may run again
    assert len(late) <= 1 + faults / 10
    assert reckoning.codes.keys() <= {"ok", UNKNOWN}
    assert reckoning.codes[UNKNOWN] <= CONCURRENCY * WORKERS // 2 * faults
    assert ended == []
    assert recovered <= RECOVERY_SECONDS
