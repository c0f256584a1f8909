"""The agent that measures: how long its handoffs and its tool calls take, one at a time and many at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent

NOOP = "bench__noop"


async def handle(ctx: AgentContext, event: AgentEvent) -> dict[str, Any]:
    """Ask, or call, ``count`` times; ``input`` says how."""
    wanted, count = event.input["measure"], event.input["count"]
    if wanted == "handoff":
        return await _one_at_a_time(count, lambda number: ctx.runtime.request("echo", {"input": number}))
    if wanted == "call":
        return await _one_at_a_time(count, lambda number: ctx.call(NOOP, {"a": number, "b": 0}))
    begun = time.perf_counter()
    if wanted == "handoffs":
        await _handoffs(ctx, count, event.input["instances"])
    else:
        results = await ctx.call_many([(NOOP, {"a": number, "b": 0}) for number in range(count)])
        _check([result.output["a"] for result in results])
    return {"seconds": time.perf_counter() - begun}


async def _one_at_a_time(count: int, ask: Callable[[int], Awaitable[Any]]) -> dict[str, Any]:
    milliseconds = []
    for number in range(count):
        begun = time.perf_counter()
        await ask(number)
        milliseconds.append((time.perf_counter() - begun) * 1000)
    return {"milliseconds": milliseconds}


async def _handoffs(ctx: AgentContext, count: int, instances: int) -> None:
    events = [{"input": number, "instanceKey": f"i{number % instances}"} for number in range(count)]
    answers = await asyncio.gather(*(ctx.runtime.request("echo", event) for event in events))
    _check([answer.response for answer in answers])


def _check(numbers: list[int]) -> None:
    if numbers != list(range(len(numbers))):
        raise ValueError("some answers are wrong")
