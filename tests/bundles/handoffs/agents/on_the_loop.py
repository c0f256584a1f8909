"""The same agent in async code."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent, AgentHandler
from goondan_tasks.tool_api import JsonObject

Deed = Callable[[AgentContext, AgentEvent, JsonObject], Awaitable[Any]]


def about(ctx: AgentContext, event: AgentEvent) -> JsonObject:
    """Tell everything that the agent knows."""
    return {
        "agent": ctx.agent_name,
        "instance": ctx.instance_key,
        "turnId": ctx.turn_id,
        "traceId": ctx.trace_id,
        "correlationId": ctx.correlation_id,
        "auth": ctx.auth,
        "origin": ctx.origin,
        "workdir": str(ctx.workdir),
        "event": event.to_wire(),
        "pid": os.getpid(),
    }


def note(log: str, line: JsonObject) -> None:
    """Leave a line in one write, so lines of many processes never mix."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(line).encode() + b"\n")
    os.close(file)


async def tell(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return about(ctx, event)


async def give(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return wanted["value"]


async def leave_note(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    note(wanted["log"], {"note": wanted.get("note"), **about(ctx, event)})


async def fail(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    raise RuntimeError(wanted["why"])


async def fail_once(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    been_here = Path(wanted["file"])
    if not been_here.exists():
        been_here.touch()
        raise RuntimeError("the first time")
    return "the second time"


async def ask(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    answer = await ctx.runtime.request(wanted["of"], wanted["event"], wanted.get("options"))
    return {"answer": answer.to_wire(), "asker": about(ctx, event)}


async def ask_many(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Ask without waiting, for each of the events."""
    asked = (ctx.runtime.request(wanted["of"], one, {"async": True}) for one in wanted["events"])
    return [answer.to_wire() for answer in await asyncio.gather(*asked)]


async def send(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return (await ctx.runtime.send(wanted["to"], wanted["event"], wanted.get("options"))).to_wire()


async def call(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return (await ctx.call(wanted["tool"], wanted.get("args"))).to_wire()


async def call_many(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return [result.to_wire() for result in await ctx.call_many(wanted["calls"])]


async def catalog(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return (await ctx.runtime.catalog()).to_wire()


async def wait(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Wait for a file, or until nobody wants the answer."""
    note(wanted["log"], {"note": "start"})
    try:
        while not Path(wanted["until"]).exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(wanted["log"], {"note": "cancelled"})
        raise
    note(wanted["log"], {"note": "end"})
    return "waited"


async def each(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Do one thing after the other."""
    return [await DEEDS[one["do"]](ctx, event, one) for one in wanted["wanted"]]


async def side_by_side(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Do several things at once; the first one that fails ends the Turn."""
    return await asyncio.gather(*(DEEDS[one["do"]](ctx, event, one) for one in wanted["wanted"]))


DEEDS: dict[str, Deed] = {
    "tell": tell,
    "give": give,
    "note": leave_note,
    "fail": fail,
    "fail-once": fail_once,
    "ask": ask,
    "ask-many": ask_many,
    "send": send,
    "call": call,
    "call-many": call_many,
    "catalog": catalog,
    "wait": wait,
    "each": each,
    "side-by-side": side_by_side,
}


async def act(ctx: AgentContext, event: AgentEvent) -> Any:
    wanted = event.input
    return await DEEDS[wanted["do"]](ctx, event, wanted) if isinstance(wanted, dict) else wanted


handle: AgentHandler = act
