"""The walks hold, they find planted faults, and a failure is small and can be replayed."""

import os
import random
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from redis import Redis

from broker_config import serializer
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.ledger.submission import Submission, call_json, digest_of
from tests.processes import children_of, runs
from tests.simulation import workers
from tests.simulation.admission import limits_of
from tests.simulation.mutations import GUARDED_TWICE, MUTATIONS
from tests.simulation.scripts import simulated_scripts
from tests.simulation.walk import make_steps, replay, shrink, tell
from tests.simulation.world import AGENT, QUEUES, KnownCall, Parts, World
from tests.waiting import wait_until

PATIENCE = 60
COUNT = 150
#: these walks are the same in each run; FRESH further ones are new
FIXED, FRESH = range(1, 21), 20
#: how many walks a planted fault may outlive here; ``python -m tests.simulation --mutations`` plants all
MOST_WALKS = 120
QUICK = [
    "finish keeps the lease",
    "finish stops at a damaged record",
    "start ignores a cancel",
    "start leaves no mark",
    "start stops at a damaged record",
    "start renews no claim that was spared",
    "renew stops at a damaged record",
    "submit queues a call before its time",
    "waking leaves the call scheduled",
    "claim takes a pending call",
    "claim forgets terms",
    "sweep takes no token",
    "submit accepts other arguments",
    "mailbox takes events at its front",
    "mailbox releases no next event",
    "cancel watch stops at a damaged record",
    "waits end at a damaged record",
    "give back loses messages",
    "limits admit one call too many",
    "limits leave calls that have ended in wait queues",
    "limits push no message",
    "rate has a shorter period",
    "limits keep the permits of calls that have ended",
    "key shares no output",
]


def test_no_server_stays_when_walks_are_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.simulation", "--minutes", "9", "--processes", "2"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}) as walks:
        try:
            wait_until(lambda: len(list(tmp_path.glob("*/socket"))) == 2, PATIENCE)
            servers = [server for child in children_of(walks.pid) for server in children_of(child)]
        finally:
            walks.terminate()
    assert len(servers) == 2
    assert not any(map(runs, servers))


def test_every_promise_holds_in_random_walks(redis: Redis) -> None:
    first = random.randrange(1_000, 10**9)
    with simulated_scripts():
        parts = Parts(redis)
        for seed in (*FIXED, *range(first, first + FRESH)):
            failure = replay(parts, make_steps(seed, COUNT))
            assert failure is None, tell(seed, COUNT, shrink(parts, failure))


@pytest.mark.parametrize("name", QUICK)
def test_planted_fault_is_found(redis: Redis, name: str) -> None:
    with simulated_scripts(MUTATIONS[name]):
        parts = Parts(redis)
        assert any(replay(parts, make_steps(seed, COUNT)) for seed in range(1, MOST_WALKS))


def test_scripts_are_held_against_rules_of_model(redis: Redis) -> None:
    with simulated_scripts(MUTATIONS["submit sets no deadline"]):
        found = replay(Parts(redis), make_steps(1, COUNT))
    with simulated_scripts(MUTATIONS["claim takes a call that runs"]):
        parts = Parts(redis)
        other = next(filter(None, (replay(parts, make_steps(seed, COUNT)) for seed in range(1, MOST_WALKS))))

    assert found is not None
    assert "a record that no rule has made" in found.reason
    assert "after submit" in found.reason
    assert ": due is '', not" in found.reason
    assert len(found.steps) < COUNT  # at once, not when the call never ends
    assert "answers otherwise than its rule" in other.reason
    assert "not held" in other.reason


def test_failure_is_made_small_and_replays_exactly(redis: Redis) -> None:
    with simulated_scripts(MUTATIONS["start leaves no mark"]):
        parts = Parts(redis)
        found = next(filter(None, (replay(parts, make_steps(seed, COUNT)) for seed in range(1, MOST_WALKS))))
        small = shrink(parts, found)
        again = replay(parts, small.steps)

    assert len(small.steps) < 20
    assert again == small
    assert len(tell(1, COUNT, small).splitlines()) < 30


def test_call_claimed_at_its_deadline_takes_permit(redis: Redis) -> None:
    with simulated_scripts():
        world, pick = World(Parts(redis)), Random(1)
        call = new_call(AGENT, "pace__slow", {}, {"deadline": iso_time(world.milliseconds)})
        call_id, wire = identity_of(call), call_json(call, serializer.encode(call.args))
        message = queue_element(call_id, call, wire)
        submission = Submission(call_id, call, wire, digest_of(call), message)
        world.calls[call_id] = KnownCall(call, submission, 0, is_stored=False, limits=limits_of(call))
        world.conformance.ignore_messages(call_id)
        world.is_healing = True  # without faults
        world.push(world.calls[call_id])
        workers.reserve_from(world, world.workers[0], [QUEUES[0]], (1, 0), pick)
        for worker in world.workers[1:]:
            worker.is_frozen = True
        workers.claim(world, pick)

        assert [held.claim.run.id for held in world.workers[0].held.values()] == [call_id]
        assert redis.zscore(world.ledger.keys.holders("rate:pace__slow"), call_id) is not None


def test_rules_that_guard_promise_together_are_mutations() -> None:
    assert {*GUARDED_TWICE, *GUARDED_TWICE.values()} <= MUTATIONS.keys()
