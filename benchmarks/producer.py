"""A producer's process: takes orders as JSON lines, measures inside the process, answers in JSON lines.

Each system's producer has a process of its own, so that no library's threads or garbage disturb another.
It ends when its orders end, however the process that gave them did.
"""

import importlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol, runtime_checkable

from benchmarks import workload
from benchmarks.workload import Call, Wire, noop_calls, sleep_calls

Order = dict[str, Any]
Answer = dict[str, Any]


class Producer(Protocol):
    """What a system's program offers: submit, and read the outputs of what was submitted."""

    def submit_each(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Submit calls one by one; return a handle for each."""

    def submit_batch(self, calls: Sequence[Call]) -> Sequence[Any]:
        """Submit calls by the best way that the library has for many."""

    def outputs(self, handles: Sequence[Any]) -> list[Wire]:
        """Wait for the outputs of the calls, in order."""


@runtime_checkable
class Asking(Protocol):
    """What the program of a system with agents offers besides."""

    def ask(self, input: Wire) -> Answer:
        """Ask the agent that measures, and return its answer."""


@runtime_checkable
class Stepping(Protocol):
    """What the program of a system with Steps offers besides."""

    def open_step(self, queue: str) -> int:
        """Open the first Step of a new Turn; return how many tools it shows."""


def burst(producer: Producer, order: Order) -> Answer:
    """Submit many calls, then read all results; times in seconds from the first submission."""
    calls = _calls(order)
    begun = time.perf_counter()
    handles = _submit(producer, calls, order["batch"])
    submitted = time.perf_counter()
    outputs = producer.outputs(handles)
    ended = time.perf_counter()
    _check(calls, outputs)
    return {"submitted": submitted - begun, "ended": ended - begun}


def one_at_a_time(producer: Producer, order: Order) -> Answer:
    """Submit a call only when the one before has its result; the milliseconds that each took."""
    calls = _calls(order)
    milliseconds = []
    for call in calls:
        begun = time.perf_counter()
        outputs = producer.outputs(producer.submit_each([call]))
        milliseconds.append((time.perf_counter() - begun) * 1000)
        _check([call], outputs)
    return {"milliseconds": milliseconds, "ended": sum(milliseconds) / 1000}


def stream(producer: Producer, order: Order) -> Answer:
    """Submit a batch every ``interval`` seconds; when each call was submitted, begun and ended, and where.

    A batch is a list of names and durations of calls whose output says when and in which worker they ran.
    """
    [queue] = workload.queues()
    handles: list[Any] = []
    submitted: list[float] = []
    begun = time.monotonic()
    for number, batch in enumerate(order["batches"]):
        time.sleep(max(0.0, begun + number * order["interval"] - time.monotonic()))
        calls = [call for name, seconds in batch for call in sleep_calls([seconds], queue, name)]
        handles += producer.submit_batch(calls)
        submitted += [time.monotonic()] * len(calls)
    outputs = producer.outputs(handles)
    runs = [{"submitted": at, **output} for at, output in zip(submitted, outputs, strict=True)]
    return {"runs": runs}


def ask(producer: Producer, order: Order) -> Answer:
    """Let an agent measure; only for a system with agents."""
    if not isinstance(producer, Asking):
        raise TypeError("this system has no agents")
    return producer.ask(order["input"])


def open_steps(producer: Producer, order: Order) -> Answer:
    """Open Steps, one at a time; the milliseconds that each took, and how many tools the last one shows."""
    if not isinstance(producer, Stepping):
        raise TypeError("this system has no Steps")
    [queue], milliseconds, tools = workload.queues(), [], 0
    for _ in range(order["steps"]):
        begun = time.perf_counter()
        tools = producer.open_step(queue)
        milliseconds.append((time.perf_counter() - begun) * 1000)
    return {"milliseconds": milliseconds, "tools": tools}


ORDERS: dict[str, Callable[[Producer, Order], Answer]] = {
    "burst": burst,
    "one_at_a_time": one_at_a_time,
    "stream": stream,
    "ask": ask,
    "open_steps": open_steps,
}


def main() -> None:
    """Carry out orders until there are no more."""
    answers = _answers_apart_from_stdout()
    orders = _orders_that_end_the_process()
    producer: Producer = importlib.import_module(sys.argv[1]).open_producer()
    while True:
        order = orders.get()
        answer = ORDERS[order["do"]](producer, order)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _calls(order: Order) -> list[Call]:
    queues = workload.queues()
    if "seconds" in order:
        return sleep_calls([order["seconds"]] * order["calls"], queues[0])
    return noop_calls(order["calls"], queues, order.get("size"))


def _submit(producer: Producer, calls: Sequence[Call], batch: int) -> list[Any]:
    if batch == 1:
        return list(producer.submit_each(calls))
    batches = (calls[start : start + batch] for start in range(0, len(calls), batch))
    return [handle for chosen in batches for handle in producer.submit_batch(chosen)]


def _check(calls: Sequence[Call], outputs: Sequence[Wire]) -> None:
    wrong = [call.id for call, output in zip(calls, outputs, strict=True) if output != call.args]
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(calls)} outputs are wrong, the first that of {wrong[0]}")


def _answers_apart_from_stdout() -> IO[str]:
    """Keep standard output for answers: what a library prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _orders_that_end_the_process() -> "queue.SimpleQueue[Order]":
    orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(0)  # also in the middle of an order: its reader is gone

    threading.Thread(target=read, daemon=True).start()
    return orders


if __name__ == "__main__":
    main()
