"""Handlers that note each beginning in a file and then do what their arguments say; as ``work.mjs``."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from redis import Redis

from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.tool_api import JsonObject, ToolContext
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import AgentEvent

Context = ToolContext | AgentContext

#: how often a held handler looks whether it may end
PAUSE_SECONDS = 0.02


def note(input: JsonObject) -> None:
    """Append the name of the cell: one write, so lines of several processes never mix."""
    file = os.open(input["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, f"{input['cell']}\n".encode())
    os.close(file)


def value_of(input: JsonObject) -> JsonObject:
    return {"cell": input["cell"]}


def is_held(input: JsonObject) -> bool:
    return not Path(input["gate"]).exists()


def hold(ctx: Context, input: JsonObject) -> JsonObject:
    ctx.progress(1, 2, input["cell"])
    while is_held(input) and not ctx.cancelled:
        time.sleep(PAUSE_SECONDS)
    return value_of(input)


def fail(ctx: Context, input: JsonObject) -> None:
    raise ValueError("on purpose")


def fail_once(ctx: Context, input: JsonObject) -> JsonObject:
    if Path(input["log"]).read_text("utf-8").split().count(input["cell"]) == 1:
        fail(ctx, input)
    return value_of(input)


def suspend(ctx: Any, input: JsonObject) -> Any:
    return ctx.pending(f"handle-{input['cell']}", value_of(input))


# What a handler that ends within milliseconds does to its own call, Redis or worker.


@cache
def client() -> Client:
    return Client.connect()


@cache
def redis() -> Redis:
    return Redis.from_url(os.environ["GOONDAN_REDIS_URL"])


def prepare(ctx: Context, input: JsonObject) -> None:
    """Connect, so that later handlers need not; in another process there is nothing to connect to."""
    if "GOONDAN_REDIS_URL" in os.environ:
        client().workers()
        redis().ping()


def damage(ctx: Context, input: JsonObject) -> JsonObject:
    redis().set(f"goondan:call:{input['id']}", "overwritten", ex=600)
    return value_of(input)


def cancel(ctx: Context, input: JsonObject) -> JsonObject:
    client().cancel(input["id"])
    return value_of(input)


def signalled(number: signal.Signals) -> Callable[[Context, JsonObject], JsonObject]:
    def send(ctx: Context, input: JsonObject) -> JsonObject:
        os.kill(input.get("process", os.getpid()), number)
        return value_of(input)

    return send


ACTS: dict[str, Callable[[Any, JsonObject], Any]] = {
    "return": lambda _, input: value_of(input),
    "fail": fail,
    "fail-once": fail_once,
    "spoil": lambda *_: {1, 2},
    "flood": lambda _, input: "x" * input["size"],
    "suspend": suspend,
    "hold": hold,
    "prepare": prepare,
    "damage": damage,
    "cancel": cancel,
    "kill": signalled(signal.SIGKILL),
    "terminate": signalled(signal.SIGTERM),
    "freeze": signalled(signal.SIGSTOP),
}


def run(ctx: Context, input: JsonObject) -> Any:
    note(input)
    time.sleep(input["pause"])
    return ACTS[input["does"]](ctx, input)


async def run_on_loop(ctx: ToolContext, input: JsonObject) -> Any:
    note(input)
    if input["does"] != "hold":
        return ACTS[input["does"]](ctx, input)
    ctx.progress(1, 2, input["cell"])
    while is_held(input):  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(PAUSE_SECONDS)
    return value_of(input)


def handle(ctx: AgentContext, event: AgentEvent) -> Any:
    """Handle an event whose input has the arguments."""
    return run(ctx, event.input)
