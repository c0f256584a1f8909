"""What the fairness case reads from the ledger beside what handlers report."""

import base64
import json
import time

import fakeredis

from benchmarks.cases.fairness import claim_times, since_claims
from benchmarks.timeline import HandlerRun
from broker_config.keys import Keys
from tests.waiting import wait_until


def test_runs_are_counted_from_their_last_claim() -> None:
    begun = time.monotonic()
    run = HandlerRun(begun - 5, begun, begun + 1, worker=7)
    output = {"begun": begun, "ended": begun + 1, "worker": 7}
    with fakeredis.FakeRedis() as redis:
        redis.hset(Keys().call("a"), "result", json.dumps({"output": output}))
        redis.hset(Keys().call("queued"), "status", "queued")
        redis.hset(Keys().call("other"), "result", json.dumps({"output": None}))
        [since] = since_claims(redis, [run], {"a": begun - 2, "other": begun - 9})
    assert since.submitted == begun - 2
    assert (since.begun, since.ended, since.worker) == (run.begun, run.ended, run.worker)


def test_claims_are_read_from_events_of_workers() -> None:
    events = [
        {"type": "task-received", "uuid": "a", "timestamp": time.time()},
        {"type": "task-started", "uuid": "b", "timestamp": time.time()},
    ]
    body = base64.b64encode(json.dumps(events).encode()).decode()
    with fakeredis.FakeRedis() as redis, claim_times(redis) as claims:
        redis.publish("/0.celeryev/task.multi", json.dumps({"body": body}))
        wait_until(lambda: claims)
    assert list(claims) == ["a"]
    assert abs(claims["a"] - time.monotonic()) < 60
