"""What monitors hear of calls: Celery's task events, as Flower receives them."""

import signal
from pathlib import Path

from goondan_tasks.testing import LocalStack
from tests.integration.task_events import Heard, monitor
from tests.waiting import wait_until

CALLS_BUNDLE = Path(__file__).parent.parent / "bundles" / "calls"
PATIENCE = 60
CALLS = 100
#: what is told of each call
KINDS = ("task-received", "task-started", "task-succeeded")


def told(heard: Heard, kind: str) -> set[str]:
    """Return the ids of the calls of which that was told; what went back to the queue is received twice."""
    return {event["uuid"] for event in list(heard) if event["type"] == kind}


def test_monitors_hear_every_call_including_workers_last_ones() -> None:
    with LocalStack(CALLS_BUNDLE, agents=["smith"]) as stack, monitor(stack.redis_url) as heard:
        calls = [{"agentName": "smith", "toolName": "echo__args", "args": {"n": n}} for n in range(CALLS)]
        submitted = stack.client.submit_many(calls)
        assert {call.result(PATIENCE).status for call in submitted} == {"ok"}
        [worker] = stack.workers
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0

        ids = {call.id for call in submitted}
        wait_until(lambda: all(told(heard, kind) == ids for kind in KINDS), PATIENCE)
