"""Handlers that hold the interpreter until the test writes into a FIFO."""

import asyncio
import ctypes
import os
from pathlib import Path
from typing import Any

#: unlike ``ctypes.CDLL``, it keeps the interpreter during a call
_C = ctypes.PyDLL(None)


def interpreter(ctx: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Note the run, and hold the interpreter until there is something in the FIFO."""
    place = Path(args["place"])
    with (place / "runs").open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    fifo = os.open(place / "fifo", os.O_RDWR)
    _C.read(fifo, ctypes.create_string_buffer(1), 1)
    os.close(fifo)
    return {"pid": os.getpid()}


async def beside(ctx: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Note the run, and wait for the file ``done``."""
    place = Path(args["place"])
    with (place / "beside").open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
    while not (place / "done").exists():
        await asyncio.sleep(0.02)
    return {"pid": os.getpid()}


def nothing(ctx: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Return at once."""
    return {"pid": os.getpid()}


handlers = {"interpreter": interpreter, "briefly": interpreter, "nothing": nothing, "beside": beside}
