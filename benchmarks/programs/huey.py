"""huey: blocking dequeue; a result is looked for every half millisecond, as its API allows."""

from collections.abc import Sequence

from huey import RedisHuey
from huey.api import Result

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire, run

LOOK_SECONDS = 0.0005

# redis-py's own limit is 100 connections; each of huey's threads has one
huey = RedisHuey(workload.queues()[0], url=workload.redis_url(max_connections=2_000), blocking=True)


@huey.task()
def tool_call(call: Wire) -> Wire:
    """Run one call."""
    return run(call)


class HueyProducer:
    """Submits by calling the task; there is no call for many."""

    def submit_each(self, calls: Sequence[Call]) -> list[Result]:
        """Submit the calls one by one."""
        return [tool_call(call.wire()) for call in calls]

    submit_batch = submit_each

    def outputs(self, handles: Sequence[Result]) -> list[Wire]:
        """Wait for the results, in order."""
        return [
            handle.get(blocking=True, timeout=PATIENCE_SECONDS, backoff=1.0, max_delay=LOOK_SECONDS)
            for handle in handles
        ]


def open_producer() -> HueyProducer:
    """Make the producer; huey connects when it first sends."""
    return HueyProducer()
