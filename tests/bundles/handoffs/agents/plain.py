"""An agent in plain code; its event's input says what it does."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent, AgentHandler
from goondan_tasks.errors import GoondanError
from goondan_tasks.tool_api import JsonObject

Deed = Callable[[AgentContext, AgentEvent, JsonObject], Any]


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


def tell(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return about(ctx, event)


def give(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return wanted["value"]


def leave_note(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    note(wanted["log"], {"note": wanted.get("note"), **about(ctx, event)})


def fail(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    raise RuntimeError(wanted["why"])


def ask(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    answer = ctx.runtime.request(wanted["of"], wanted["event"], wanted.get("options"))
    return {"answer": answer.to_wire(), "asker": about(ctx, event)}


def send(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return ctx.runtime.send(wanted["to"], wanted["event"], wanted.get("options")).to_wire()


def call(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return ctx.call(wanted["tool"], wanted.get("args")).to_wire()


def call_many(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return [result.to_wire() for result in ctx.call_many(wanted["calls"])]


def catalog(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    return ctx.runtime.catalog().to_wire()


def wait(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Wait for a file, or until nobody wants the answer: one that is deaf does not care."""
    note(wanted["log"], {"note": "start"})
    while not Path(wanted["until"]).exists():
        if ctx.cancelled and not wanted.get("deaf"):
            note(wanted["log"], {"note": "cancelled"})
            return "cancelled"
        time.sleep(0.01)
    note(wanted["log"], {"note": "end"})
    return "waited"


def each(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Do one thing after the other."""
    return [DEEDS[one["do"]](ctx, event, one) for one in wanted["wanted"]]


def side_by_side(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> Any:
    """Do the last thing here, and the others on threads that nobody waits for."""
    *others, here = wanted["wanted"]
    for one in others:
        threading.Thread(target=undisturbed, args=(ctx, event, one), daemon=True).start()
    return DEEDS[here["do"]](ctx, event, here)


def undisturbed(ctx: AgentContext, event: AgentEvent, wanted: JsonObject) -> None:
    """Do something; that it was called off is what its thread ends with."""
    with contextlib.suppress(GoondanError):
        DEEDS[wanted["do"]](ctx, event, wanted)
    note(wanted["ended"], {"note": "ended"})


DEEDS: dict[str, Deed] = {
    "tell": tell,
    "give": give,
    "note": leave_note,
    "fail": fail,
    "ask": ask,
    "send": send,
    "call": call,
    "call-many": call_many,
    "catalog": catalog,
    "wait": wait,
    "each": each,
    "side-by-side": side_by_side,
}


def act(ctx: AgentContext, event: AgentEvent) -> Any:
    wanted = event.input
    return DEEDS[wanted["do"]](ctx, event, wanted) if isinstance(wanted, dict) else wanted


handle: AgentHandler = act
