"""No call waits in one worker behind calls that last while another worker has a slot for it."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.timeline import HandlerRun, longest_idle_wait
from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.crowd import AGENT
from tests.faults.finals import final_results
from tests.faults.handler_log import HandlerLog
from tests.faults.idle import leftovers, wait_until_idle
from tests.faults.sizes import short_and_long
from tests.faults.work import work_args
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

PATIENCE = 60
WORKERS, SLOTS = 2, 2
#: of each batch: short tools and some that last a little, in a thread and on the event loop
WORK = [("again__sync", 0.0)] * 120 + [("once__sync", 0.001)] * 40 + [("once__async", 0.01)] * 20


@pytest.mark.parametrize("held", short_and_long([3], [1, 2, 3, 3, 2, 1], minutes=2))
def test_no_call_waits_behind_long_calls_while_slot_free(
    stack: LocalStack, log: HandlerLog, chance: random.Random, say: Say, tmp_path: Path, held: list[int]
) -> None:
    """Some calls hold their slots until all others have ended, whoever had claimed those."""
    workers = [stack.start_worker(concurrency=SLOTS) for _ in range(WORKERS)]
    with final_results(stack.redis_url) as finals:
        for number, count in enumerate(held):
            gate = tmp_path / f"gate-{number}"
            others, holders = submit(stack, log, chance, gate, count)
            assert {call.result(PATIENCE).status for call in others.values()} == {"ok"}
            wait_until(lambda: holders.keys() <= log.runs().keys(), PATIENCE)  # noqa: B023 - at once
            assert leftovers(stack.redis_url) == {"running": count, "due": count}
            gate.touch()
            assert {call.result(PATIENCE).status for call in holders.values()} == {"ok"}
            say(longest_waits(stack, log, others))
        calls = len(held) * len(WORK) + sum(held)
        wait_until(lambda: len(finals) == calls)
    assert set(finals.values()) == {1}
    assert {number: len(runs) for number, runs in log.runs().items()} == dict.fromkeys(range(calls), 1)
    assert [worker.poll() for worker in workers] == [None] * WORKERS
    wait_until_idle(stack.redis_url)


Calls = dict[int, PendingCall]


def submit(
    stack: LocalStack, log: HandlerLog, chance: random.Random, gate: Path, held: int
) -> tuple[Calls, Calls]:
    """Submit a batch in random order; return the calls by number, those that wait for the gate apart."""
    work = [*WORK, *[("once__held", 0.0)] * held]
    chance.shuffle(work)
    first = len(log.runs())
    calls: list[dict[str, Any]] = [
        {
            "agentName": AGENT,
            "toolName": tool,
            "args": {**work_args(log, number, seconds), "gate": str(gate)},
        }
        for number, (tool, seconds) in enumerate(work, start=first)
    ]
    submitted = dict(enumerate(stack.client.submit_many(calls), start=first))
    holders = {number for number, (tool, _) in enumerate(work, start=first) if tool == "once__held"}
    return (
        {number: call for number, call in submitted.items() if number not in holders},
        {number: call for number, call in submitted.items() if number in holders},
    )


def longest_waits(stack: LocalStack, log: HandlerLog, calls: Calls) -> Iterator[str]:
    """Say for how long a claimed call had not begun while the other worker had a slot idle, or all of them.

    Only for the summary: it depends on what else the machine does.
    """
    claimed_at = {number: stack.client.record(call.id).claimed_at or 0 for number, call in calls.items()}
    runs = [
        HandlerRun(claimed_at.get(number, 1e15) / 1000, run.started_at, run.ended_at or 0, run.pid)
        for number, [run] in log.runs().items()
    ]
    for slots, idle in ((SLOTS, "a slot"), (1, "all slots")):
        longest = longest_idle_wait(runs, {run.worker for run in runs}, slots)
        yield f"a call was claimed by one worker for {1000 * longest:.1f} ms while the other had {idle} idle"
