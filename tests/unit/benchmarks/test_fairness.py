"""What the fairness case reads from the ledger beside what handlers report."""

import json
import time

import fakeredis
import pytest

from benchmarks.cases.fairness import since_claims
from benchmarks.timeline import HandlerRun
from broker_config.keys import Keys


def test_runs_are_counted_from_their_last_claim() -> None:
    begun = time.monotonic()
    run = HandlerRun(begun - 5, begun, begun + 1, worker=7)
    output = {"begun": begun, "ended": begun + 1, "worker": 7}
    with fakeredis.FakeRedis() as redis:
        redis.hset(Keys().call("a"), "claimedAt", (time.time() - 2) * 1000)
        redis.set(Keys().celery_result("a"), json.dumps({"result": {"output": output}}))
        redis.hset(Keys().call("queued"), "status", "queued")
        redis.hset(Keys().call("other"), "claimedAt", 1)
        redis.set(Keys().celery_result("other"), json.dumps({"result": {"output": None}}))
        [since] = since_claims(redis, [run])
    assert since.submitted == pytest.approx(begun - 2, abs=1)
    assert (since.begun, since.ended, since.worker) == (run.begun, run.ended, run.worker)
