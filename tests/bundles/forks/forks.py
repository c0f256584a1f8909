"""Handlers that fork; the child leaves the handler, and the parent waits for its end."""

import asyncio
import math
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from .beside import triple


def forked(leave: str) -> int:
    """Fork, and return the exit status of the child, which leaves this function as ``leave`` says."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if leave == "raise":
        raise ValueError("the child")
    if leave == "exit":
        raise SystemExit(7)
    return -1


def plain(ctx: Any, args: dict[str, Any]) -> int:
    return forked(args["leave"])


async def coroutine(ctx: Any, args: dict[str, Any]) -> int:
    return forked(args["leave"])


async def suspended(ctx: Any, args: dict[str, Any]) -> int:
    status = forked(args["leave"])
    await asyncio.sleep(0)
    return status


async def beside(ctx: Any, args: dict[str, Any]) -> int:
    return await asyncio.to_thread(forked, args["leave"])


def terminated(ctx: Any, args: dict[str, Any]) -> int | None:
    """End a child as ``multiprocessing`` does, with SIGTERM."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=_wait, args=(ready,))
    child.start()
    ready.wait()
    child.terminate()
    child.join()
    return child.exitcode


def _wait(ready: Any) -> None:
    ready.set()
    time.sleep(3600)


def reporting(ctx: Any, args: dict[str, Any]) -> int:
    """Let the child report progress, which is none of its business."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for number in range(100):
        ctx.progress(number, 100)
    return -1


def spawned(ctx: Any, args: dict[str, Any]) -> list[int]:
    """Use processes that are started as new interpreters."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        return pool.map(math.factorial, [3, 4])


def spread(ctx: Any, args: dict[str, Any]) -> list[Any]:
    """Call functions of this file and of one beside it in processes that are started anew."""
    context = multiprocessing.get_context(args["method"])
    results = context.SimpleQueue()
    child = context.Process(target=_put, args=(results, Odd(5)))
    child.start()
    child.join()
    with context.Pool(2) as pool:
        sums = pool.map(_doubled, [Odd(1), Odd(3)])
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        return [results.get().number, sums, *executor.map(triple, [4])]


class Odd(NamedTuple):
    number: int


def _put(results: Any, value: Odd) -> None:
    results.put(value)


def _doubled(odd: Odd) -> int:
    return 2 * odd.number


def pid(ctx: Any, args: dict[str, Any]) -> int:
    return os.getpid()


handlers = {
    "plain": plain,
    "retried": plain,
    "coroutine": coroutine,
    "suspended": suspended,
    "beside": beside,
    "isolated": plain,
    "terminated": terminated,
    "reporting": reporting,
    "spawned": spawned,
    "spread": spread,
    "spread_isolated": spread,
    "pid": pid,
}
