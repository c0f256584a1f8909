"""Goondan Workers, by its public surface: the client and the command line."""

import time
from collections.abc import Sequence

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire
from goondan_tasks.client import Client, PendingCall


class GoondanProducer:
    """Submits by :meth:`Client.submit` and :meth:`Client.submit_many`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def submit_each(self, calls: Sequence[Call]) -> list[PendingCall]:
        """Submit the calls one by one."""
        submit = self.client.submit
        return [submit(call.queue, f"bench__{call.name}", call.args, tool_call_id=call.id) for call in calls]

    def submit_batch(self, calls: Sequence[Call]) -> list[PendingCall]:
        """Submit the calls in one trip."""
        return self.client.submit_many(
            {
                "agentName": call.queue,
                "toolName": f"bench__{call.name}",
                "args": call.args,
                "toolCallId": call.id,
            }
            for call in calls
        )

    def outputs(self, handles: Sequence[PendingCall]) -> list[Wire]:
        """Wait for the results, in order."""
        return [handle.result(PATIENCE_SECONDS).output for handle in handles]


def open_producer() -> GoondanProducer:
    """Connect; bundle and settings come from ``GOONDAN_*``."""
    return GoondanProducer(Client.connect(workload.redis_url()))


def ask(producer: GoondanProducer, order: Wire) -> Wire:
    """Let the agent that measures do so, and return its answer."""
    answer: Wire = producer.client.request("asker", order["input"], timeout=PATIENCE_SECONDS).response
    return answer


def open_steps(producer: GoondanProducer, order: Wire) -> Wire:
    """Open first Steps of new Turns, one at a time; the milliseconds of each, and the last catalog's size."""
    [queue], milliseconds, tools = workload.queues(), [], 0
    for _ in range(order["steps"]):
        begun = time.perf_counter()
        tools = len(producer.client.turn(queue).step(timeout=PATIENCE_SECONDS).catalog)
        milliseconds.append((time.perf_counter() - begun) * 1000)
    return {"milliseconds": milliseconds, "tools": tools}


ORDERS = {"ask": ask, "open_steps": open_steps}
