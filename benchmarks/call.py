"""The work, the same for every system: a tool call, and what a worker does with it."""

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Wire = dict[str, Any]

NOOP = "noop"
SLEEP = "sleep"

#: how long a producer waits for one result, in seconds
PATIENCE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Call:
    """One call and the queue that takes it."""

    id: str
    name: str
    args: Wire
    queue: str

    def wire(self) -> Wire:
        """Return the message that the other systems carry."""
        return {"id": self.id, "name": self.name, "args": self.args}


def noop_calls(count: int, queues: Sequence[str], size: int | None = None) -> list[Call]:
    """Make calls that do nothing, dealt out to ``queues``; ``size`` is a call's JSON in bytes."""
    burst = uuid.uuid4().hex[:12]
    return [
        Call(f"{burst}-{number:06}", NOOP, _args(number, size), queues[number % len(queues)])
        for number in range(count)
    ]


def sleep_calls(count: int, queue: str, seconds: float) -> list[Call]:
    """Make calls that only wait."""
    burst = uuid.uuid4().hex[:12]
    return [Call(f"{burst}-{number:06}", SLEEP, {"seconds": seconds}, queue) for number in range(count)]


def run(call: Wire) -> Wire:
    """Do what a call asks for, in a thread."""
    args: Wire = call["args"]
    if call["name"] == SLEEP:
        time.sleep(args["seconds"])
    return args


async def run_async(call: Wire) -> Wire:
    """Do what a call asks for, on an event loop."""
    args: Wire = call["args"]
    if call["name"] == SLEEP:
        await asyncio.sleep(args["seconds"])
    return args


def _args(number: int, size: int | None) -> Wire:
    args: Wire = {"a": number, "b": 2}
    if size is None:
        return args
    bare = {"id": "-" * 19, "name": NOOP, "args": {**args, "text": ""}}
    return {**args, "text": "x" * (size - len(json.dumps(bare, separators=(",", ":"))))}
