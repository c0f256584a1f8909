"""dramatiq: Redis broker, results on, which a producer reads with a blocking command."""

from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.message import Message
from dramatiq.middleware import AsyncIO
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire, run, run_async

# redis-py's own limits are 100 connections, and 5 s for a command that waits
url = workload.redis_url(max_connections=2_000, socket_timeout=PATIENCE_SECONDS + 1)

broker = RedisBroker(url=url)
broker.add_middleware(AsyncIO())
broker.add_middleware(Results(backend=RedisBackend(url=url), store_results=True))
dramatiq.set_broker(broker)
for queue in workload.queues():
    broker.declare_queue(queue)


@dramatiq.actor(queue_name=workload.queues()[0])
def noop(call: Wire) -> Wire:
    """Run one call in a thread."""
    return run(call)


@dramatiq.actor(queue_name=workload.queues()[0])
async def sleep(call: Wire) -> Wire:
    """Run one call on the event loop."""
    return await run_async(call)


ACTORS = {"noop": noop, "sleep": sleep}


class DramatiqProducer:
    """Submits by ``enqueue``; there is no call for many."""

    def submit_each(self, calls: Sequence[Call]) -> list[Message[Wire]]:
        """Submit the calls one by one."""
        return [broker.enqueue(_message(call)) for call in calls]

    submit_batch = submit_each

    def outputs(self, handles: Sequence[Message[Wire]]) -> list[Wire]:
        """Wait for the results, in order."""
        return [handle.get_result(block=True, timeout=PATIENCE_SECONDS * 1000) for handle in handles]


def open_producer() -> DramatiqProducer:
    """Make the producer; the broker connects when it first sends."""
    return DramatiqProducer()


def _message(call: Call) -> Message[Wire]:
    return ACTORS[call.name].message(call.wire()).copy(queue_name=call.queue)
