"""Stock Celery: its own Redis transport and result backend, results on, JSON."""

from collections.abc import Sequence

from celery import Celery, group
from celery.result import AsyncResult

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire, run

app = Celery("benchmarks", broker=workload.redis_url(), backend=workload.redis_url())
app.conf.update(
    task_default_queue=workload.queues()[0],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def tool_call(call: Wire) -> Wire:
    """Run one call."""
    return run(call)


class CeleryProducer:
    """Submits by ``apply_async``; many as a group, which shares one connection."""

    def submit_each(self, calls: Sequence[Call]) -> list[AsyncResult[Wire]]:
        """Submit the calls one by one."""
        return [tool_call.apply_async((call.wire(),), queue=call.queue) for call in calls]

    def submit_batch(self, calls: Sequence[Call]) -> list[AsyncResult[Wire]]:
        """Submit the calls as one group."""
        signatures = [tool_call.s(call.wire()).set(queue=call.queue) for call in calls]
        return list(group(signatures).apply_async().results)

    def outputs(self, handles: Sequence[AsyncResult[Wire]]) -> list[Wire]:
        """Wait for the results, in order; they come by publish and subscribe."""
        return [handle.get(timeout=PATIENCE_SECONDS) for handle in handles]


def open_producer() -> CeleryProducer:
    """Make the producer; Celery connects when it first sends."""
    return CeleryProducer()
