"""rq: SimpleWorker, which runs jobs in its own process; results are read from a stream, blocking."""

from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue
from rq.job import Job

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire, run


class RqProducer:
    """Submits by ``enqueue``, many by ``enqueue_many``, which is one pipeline."""

    def __init__(self, redis: Redis) -> None:
        self._queues = {name: Queue(name, connection=redis) for name in workload.queues()}

    def submit_each(self, calls: Sequence[Call]) -> list[Job]:
        """Submit the calls one by one."""
        return [self._queues[call.queue].enqueue(run, call.wire()) for call in calls]

    def submit_batch(self, calls: Sequence[Call]) -> list[Job]:
        """Submit the calls by one ``enqueue_many`` for each queue."""
        jobs: dict[str, Job] = {}
        for name in {call.queue for call in calls}:
            chosen = [call for call in calls if call.queue == name]
            data = [Queue.prepare_data(run, (call.wire(),)) for call in chosen]
            sent = self._queues[name].enqueue_many(data)
            jobs |= {call.id: job for call, job in zip(chosen, sent, strict=True)}
        return [jobs[call.id] for call in calls]

    def outputs(self, handles: Sequence[Job]) -> list[Wire]:
        """Wait for the results, in order."""
        return [_output(handle) for handle in handles]


def open_producer() -> RqProducer:
    """Make the producer; it connects when it first sends."""
    return RqProducer(Redis.from_url(workload.redis_url(socket_timeout=PATIENCE_SECONDS + 1)))


def _output(job: Job) -> Any:
    result = job.latest_result(timeout=PATIENCE_SECONDS)
    if result is None:
        raise TimeoutError(f"job {job.id} has no result after {PATIENCE_SECONDS} s")
    return result.return_value
