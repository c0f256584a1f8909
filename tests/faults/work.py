"""Work whose handler leaves its lines in a log."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

from goondan_tasks.client import Client, PendingCall
from tests.faults.crowd import AGENT, NumberedCall, numbered
from tests.faults.handler_log import HandlerLog

#: what may and what may not be run again, of both colours
TOOLS = ("once__sync", "again__sync", "once__async", "again__async")


def submit_work(
    client: Client, log: HandlerLog, tool: str = "once__sync", *, number: int = 0, seconds: float = 0.0
) -> PendingCall:
    """Submit one numbered call of ``tests/bundles/load``."""
    return client.submit(AGENT, tool, work_args(log, number, seconds))


def work_args(log: HandlerLog, number: int, seconds: float) -> dict[str, Any]:
    """Return the arguments of such a call."""
    return {"log": str(log.path), "number": number, "seconds": seconds}


def mixed_work(log: HandlerLog, chance: random.Random, longest: float) -> Iterator[NumberedCall]:
    """Number calls of all tools without end; they last between 3 ms and ``longest`` seconds."""
    return numbered(
        itertools.cycle(TOOLS),
        lambda number: work_args(log, number, chance.choice((0.003, 0.03, 0.2, longest))),
    )
