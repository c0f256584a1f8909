"""taskiq: list broker and result backend on Redis, async handlers, results looked for by polling."""

import asyncio
from collections.abc import Sequence

from taskiq import AsyncTaskiqTask
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire, run_async

LOOK_SECONDS = 0.0005

# its worker waits for messages without a limit, which redis-py's own of 5 s would end
broker = ListQueueBroker(
    workload.redis_url(), queue_name=workload.queues()[0], socket_timeout=None
).with_result_backend(RedisAsyncResultBackend(workload.redis_url()))


@broker.task
async def tool_call(call: Wire) -> Wire:
    """Run one call."""
    return await run_async(call)


class TaskiqProducer:
    """Submits by ``kiq``; many at once are many coroutines at once."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def submit_each(self, calls: Sequence[Call]) -> list[AsyncTaskiqTask[Wire]]:
        """Submit the calls one by one."""
        return self._runner.run(_submit_each(calls))

    def submit_batch(self, calls: Sequence[Call]) -> list[AsyncTaskiqTask[Wire]]:
        """Submit the calls at once."""
        return self._runner.run(_submit_at_once(calls))

    def outputs(self, handles: Sequence[AsyncTaskiqTask[Wire]]) -> list[Wire]:
        """Wait for the results, in order."""
        return self._runner.run(_outputs(handles))


def open_producer() -> TaskiqProducer:
    """Make the producer and start the broker's client side."""
    runner = asyncio.Runner()
    runner.run(broker.startup())
    return TaskiqProducer(runner)


async def _submit_each(calls: Sequence[Call]) -> list[AsyncTaskiqTask[Wire]]:
    return [await tool_call.kiq(call.wire()) for call in calls]


async def _submit_at_once(calls: Sequence[Call]) -> list[AsyncTaskiqTask[Wire]]:
    return await asyncio.gather(*(tool_call.kiq(call.wire()) for call in calls))


async def _outputs(handles: Sequence[AsyncTaskiqTask[Wire]]) -> list[Wire]:
    waits = [
        await handle.wait_result(check_interval=LOOK_SECONDS, timeout=PATIENCE_SECONDS) for handle in handles
    ]
    return [wait.return_value for wait in waits]
