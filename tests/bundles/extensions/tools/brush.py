import asyncio
import os
import threading
import time


def paint(ctx, input):
    with (ctx.workdir / "runs").open("a") as runs:
        runs.write(f"{ctx.tool_call_id}\n")
    return input


def runs(ctx, input):
    return (ctx.workdir / "runs").read_text()


async def spray(ctx, input):
    await asyncio.sleep(0)
    return input


def where(ctx, input):
    return threading.current_thread().name


def wait(ctx, input):
    ctx.progress(0)
    while not ctx.cancelled:
        time.sleep(0.01)
    (ctx.workdir / "left").write_text("stopped")
    return "stopped"


def left(ctx, input):
    return (ctx.workdir / "left").read_text()


def large(ctx, input):
    return "x" * input["characters"]


def fail(ctx, input):
    raise ValueError("the pot is empty")


def apart(ctx, input):
    return os.getpid()


handlers = {
    "paint": paint,
    "runs": runs,
    "spray": spray,
    "where": where,
    "wait": wait,
    "left": left,
    "large": large,
    "fail": fail,
    "apart": apart,
}
