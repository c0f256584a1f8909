"""Goondan Workers, by its public surface: the client and the command line."""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire
from goondan_tasks.client import Client, PendingCall


class GoondanProducer:
    """Submits by :meth:`Client.submit` and :meth:`Client.submit_many`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        #: numbers of calls whose arguments must differ
        self.numbers = itertools.count()

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


def ordinary(producer: GoondanProducer, order: Wire) -> Wire:
    """Call one tool in batches and read all results; the seconds until the last one.

    With ``step`` each Step of a Turn has so many of them, and each Turn a batch.
    """
    carry = _in_steps if "step" in order else _in_batches
    begun = time.perf_counter()
    results = carry(producer, order)
    ended = time.perf_counter()
    wrong = [result for result in results if result.status != order.get("status", "ok")]
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(results)} results are wrong, the first: {wrong[0]}")
    return {"ended": ended - begun}


def _in_batches(producer: GoondanProducer, order: Wire) -> list[Any]:
    [queue], instances = workload.queues(), order.get("instances", 0)
    calls = [
        {"agentName": queue, "toolName": order["tool"], "args": {"a": number, "b": 2}}
        | ({"instanceKey": f"i{number % instances}"} if instances else {})
        for number in itertools.islice(producer.numbers, order["calls"])
    ]
    handles: list[PendingCall] = []
    for chosen in _chunks(calls, order["batch"]):
        handles += producer.client.submit_many(chosen)
    return [handle.result(PATIENCE_SECONDS) for handle in handles]


def _in_steps(producer: GoondanProducer, order: Wire) -> list[Any]:
    [queue], results = workload.queues(), []
    for of_turn in _chunks(range(order["calls"]), order["batch"]):
        turn = producer.client.turn(queue, instance_key="one")
        for numbers in _chunks(of_turn, order["step"]):
            calls = [{"id": f"c{n}", "name": order["tool"], "args": {"a": n, "b": 2}} for n in numbers]
            results += turn.step(timeout=PATIENCE_SECONDS).run(calls)
    return results


def _chunks(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


ORDERS = {"ask": ask, "open_steps": open_steps, "ordinary": ordinary}
