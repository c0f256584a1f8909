"""Plain code, which may block, asked for by ``async`` code: on a thread, never on the event loop's."""

import asyncio
import contextvars
from collections.abc import Callable
from typing import TypeVar

from workers.concurrency.function_outcome import FunctionOutcome, outcome_of
from workers.concurrency.threads import Job

T = TypeVar("T")

#: runs a job soon, on a thread that it may block for as long as it likes, and then another on the event loop
RunOnThread = Callable[[Job, Job], object]


def is_on_loop() -> bool:
    """Say whether this thread runs an event loop, and must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def beside_loop(function: Callable[[], T], run: RunOnThread) -> T:
    """Return what ``function`` returns on another thread, in a copy of this context; raise what it raises."""
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context = contextvars.copy_context()
    outcome: FunctionOutcome[T] = FunctionOutcome()

    def job() -> None:
        nonlocal outcome
        outcome = context.run(outcome_of, function)

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    run(job, tell)
    await ended
    return outcome.get()
