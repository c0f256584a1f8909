"""What the processes of a lane share: the calls, what a worker does with one, and where their Redis is."""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Wire = dict[str, Any]

NOOP = "noop"
SLEEP = "sleep"

#: calls of a batch
BATCH = 50

#: how long a producer waits for one result, in seconds
PATIENCE_SECONDS = 30

_REDIS_URL = "BENCH_REDIS_URL"
_QUEUES = "BENCH_QUEUES"
#: the folder that holds this package, for workers that run elsewhere
_ROOT = Path(__file__).parents[1]


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
    return [
        Call(call_id, NOOP, _args(number, size), queues[number % len(queues)])
        for number, call_id in enumerate(_ids(count))
    ]


def sleep_calls(seconds: Sequence[float], queue: str, name: str = SLEEP) -> list[Call]:
    """Make calls that only wait, each for its own time."""
    each = zip(_ids(len(seconds)), seconds, strict=True)
    return [Call(call_id, name, {"seconds": duration}, queue) for call_id, duration in each]


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


def environment(redis_url: str, queues: Sequence[str], bundle: Path, folder: Path) -> dict[str, str]:
    """Return a child's environment: this process's, without its user's settings of ours."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("GOONDAN_")}
    return {
        **inherited,
        "PYTHONPATH": str(_ROOT),
        _REDIS_URL: redis_url,
        _QUEUES: ",".join(queues),
        "RQ_REDIS_URL": redis_url,
        "GOONDAN_REDIS_URL": redis_url,
        "GOONDAN_BUNDLE": str(bundle),
        "GOONDAN_STATE_ROOT": str(folder / "state"),
        "GOONDAN_CACHE_DIR": str(folder / "cache"),
    }


def redis_url(**options: int) -> str:
    """Return the URL of the lane's Redis; ``options`` are those of redis-py's connections."""
    return f"{os.environ[_REDIS_URL]}?{urlencode(options)}" if options else os.environ[_REDIS_URL]


def queues() -> list[str]:
    """Return the names of the lane's queues."""
    return os.environ[_QUEUES].split(",")


def _ids(count: int) -> list[str]:
    burst = uuid.uuid4().hex[:12]
    return [f"{burst}-{number:06}" for number in range(count)]


def _args(number: int, size: int | None) -> Wire:
    args: Wire = {"a": number, "b": 2}
    if size is None:
        return args
    bare = {"id": "-" * 19, "name": NOOP, "args": {**args, "text": ""}}
    return {**args, "text": "x" * (size - len(json.dumps(bare, separators=(",", ":"))))}
