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
from typing import IO, Any, Protocol

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


def burst(producer: Producer, order: Order) -> Answer:
    """Submit many calls, then read all results; the seconds until the last one."""
    calls = _calls(order)
    begun = time.perf_counter()
    handles = _submit(producer, calls, order["batch"])
    outputs = producer.outputs(handles)
    ended = time.perf_counter()
    _check(calls, outputs)
    return {"ended": ended - begun}


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


Carry = Callable[[Any, Order], Answer]
#: what every system can do; a program may have more in its own ``ORDERS``
ORDERS: dict[str, Carry] = {
    "burst": burst,
    "one_at_a_time": one_at_a_time,
    "stream": stream,
}


def main() -> None:
    """Carry out orders until there are no more."""
    answers = _answers_apart_from_stdout()
    orders = _orders_that_end_the_process()
    program = importlib.import_module(sys.argv[1])
    producer: Producer = program.open_producer()
    carry: dict[str, Carry] = ORDERS | getattr(program, "ORDERS", {})
    while True:
        order = orders.get()
        answer = carry[order["do"]](producer, order)
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
