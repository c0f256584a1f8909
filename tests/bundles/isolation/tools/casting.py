"""Handlers that do what a process of their own is for."""

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError, ToolHandler

calls: list[str] = []


class CastingError(Exception):
    """The tool's own exception."""

    code = "E_CASTING"
    suggestion = "Heat it up."
    help_url = "https://foundry.example/heat"


def echo(ctx: ToolContext, input: JsonObject) -> Any:
    return input


def pid(ctx: ToolContext, input: JsonObject) -> Any:
    return os.getpid()


def raises(ctx: ToolContext, input: JsonObject) -> Any:
    kinds: dict[str, type[BaseException]] = {
        "own": CastingError,
        "value": ValueError,
        "exit": SystemExit,
        "missing": FileNotFoundError,
    }
    raise kinds[input["kind"]](*input.get("args", ["too cold"]))


def emits(ctx: ToolContext, input: JsonObject) -> Any:
    """Emit numbers in text, a value, and more if that is asked for; say what cannot be emitted."""
    for number in range(input.get("chunks", 1)):
        ctx.emit(f"{number} ")
    ctx.emit({"done": True})
    try:
        ctx.emit(object())
    except ToolError as error:
        said = error.code
    if "raises" in input:
        raise CastingError(input["raises"])
    return said


def exits(ctx: ToolContext, input: JsonObject) -> Any:
    os._exit(3)


def leaves(ctx: ToolContext, input: JsonObject) -> Any:
    """Change what belongs to the process, and say how it was."""
    seen = [os.getcwd(), os.environ.get("LEFT"), os.umask(0o077)]
    os.chdir(ctx.workdir)
    os.environ["LEFT"] = "behind"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(1)
    return seen


def segfault(ctx: ToolContext, input: JsonObject) -> Any:
    print("about to fall")
    return ctypes.string_at(0)


def arrive(input: JsonObject) -> None:
    Path(input["mark"]).write_text(str(os.getpid()), encoding="ascii")


def sleeps(ctx: ToolContext, input: JsonObject) -> Any:
    arrive(input)
    time.sleep(60)


def waits(ctx: ToolContext, input: JsonObject) -> Any:
    arrive(input)
    while not Path(input["release"]).exists():
        time.sleep(0.01)
    return os.getpid()


def stubborn(ctx: ToolContext, input: JsonObject) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    arrive(input)
    while True:
        time.sleep(60)


def tidies(ctx: ToolContext, input: JsonObject) -> Any:
    try:
        arrive(input)
        time.sleep(60)
    finally:
        Path(input["tidied"]).write_text(str(ctx.cancelled), encoding="ascii")


async def tidies_async(ctx: ToolContext, input: JsonObject) -> Any:
    try:
        arrive(input)
        await asyncio.sleep(60)
    finally:
        Path(input["tidied"]).write_text(str(ctx.cancelled), encoding="ascii")


def daemon(ctx: ToolContext, input: JsonObject) -> Any:
    """Start a process that leaves the session and will not go, then wait."""
    script = f"trap '' TERM; echo $$ > {input['mark']}; while :; do sleep 60; done"
    subprocess.Popen(["setsid", "sh", "-c", script])
    time.sleep(input.get("seconds", 60))
    return os.getpid()


def prints(ctx: ToolContext, input: JsonObject) -> Any:
    print("printed by the tool")
    print("x" * 1_000_000)
    print("to standard error", file=sys.stderr)
    os.write(1, b"written by the tool\n")
    subprocess.run(["echo", "said by a program"], check=True)
    return "printed"


def grows(ctx: ToolContext, input: JsonObject) -> Any:
    return len(bytearray(input["megabytes"] * 1_048_576))


def remembers(ctx: ToolContext, input: JsonObject) -> Any:
    calls.append(ctx.tool_call_id)
    return calls


def forks(ctx: ToolContext, input: JsonObject) -> Any:
    """Come back twice, once in a copy of the process."""
    forked = os.fork()
    if forked:
        os.waitpid(forked, 0)
    return forked != 0


async def run_async(ctx: ToolContext, input: JsonObject) -> Any:
    await asyncio.sleep(0.01)
    return os.getpid()


def logs(ctx: ToolContext, input: JsonObject) -> Any:
    ctx.logger.info("metal.poured", degrees=1500, mould={"odd"})
    ctx.logger.warning("metal.%s", "cooling")
    try:
        raise CastingError("crack")
    except CastingError:
        ctx.logger.error("metal.cracked", exc_info=True)
    return None


def tells(ctx: ToolContext, input: JsonObject) -> Any:
    ctx.progress(1, total=4, message="melting")
    while not Path(input["release"]).exists():
        time.sleep(0.01)
    ctx.progress(done=-1)


def falls_once(ctx: ToolContext, input: JsonObject) -> Any:
    mark = ctx.workdir / "fell"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "stands"


def program(ctx: ToolContext, input: JsonObject) -> Any:
    outcome = ctx.run_process(["sh", "-c", input["script"]], timeout_seconds=input.get("seconds"))
    return [outcome.stdout, outcome.exit_code, outcome.timed_out]


def babbles(ctx: ToolContext, input: JsonObject) -> Any:
    """Write into every descriptor, the one that leads to the worker included."""
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, (b"\0" * 7 + b"\x03") + b"???")
    time.sleep(60)


def mutters(ctx: ToolContext, input: JsonObject) -> Any:
    def mutter() -> None:
        for _ in range(1_000):
            time.sleep(0.001)
            ctx.logger.info("muttered")

    threading.Timer(0.01, mutter).start()
    return None


def context(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return {
        "agentName": ctx.agent_name,
        "instanceKey": ctx.instance_key,
        "turnId": ctx.turn_id,
        "traceId": ctx.trace_id,
        "toolCallId": ctx.tool_call_id,
        "workdir": str(ctx.workdir),
        "message": ctx.message.to_wire(),
        "cancelled": ctx.cancelled,
        "hasDeadline": ctx.deadline is not None,
        "fields": sorted(field.name for field in dataclasses.fields(ctx)),
    }


handlers: dict[str, ToolHandler] = {
    "echo": echo,
    "pid": pid,
    "raises": raises,
    "emits": emits,
    "exits": exits,
    "leaves": leaves,
    "segfault": segfault,
    "sleeps": sleeps,
    "waits": waits,
    "stubborn": stubborn,
    "tidies": tidies,
    "tidies-async": tidies_async,
    "daemon": daemon,
    "prints": prints,
    "grows": grows,
    "remembers": remembers,
    "forks": forks,
    "async": run_async,
    "logs": logs,
    "tells": tells,
    "falls-once": falls_once,
    "program": program,
    "babbles": babbles,
    "mutters": mutters,
    "context": context,
}
