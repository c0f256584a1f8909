"""Tell of progress."""

import time
from pathlib import Path
from typing import Any

from goondan_tasks.errors import ToolError
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler

PATIENCE_SECONDS = 60

ODD: dict[str, tuple[Any, ...]] = {
    "nan": (float("nan"),),
    "infinite": (1, float("inf")),
    "negative": (-1, 10),
    "huge": (10**400,),
    "text": ("3", 10),
    "bool": (True,),
    "none": (None,),
    "long": (1, 2, "x" * 1_000_000),
    "bytes": (1, 2, b"x"),
}


def counts(ctx: ToolContext, input: JsonObject) -> str:
    """Tell of so many steps as fast as can be, wait for a guest, and tell that all is done."""
    total = input["steps"]
    for step in range(total):
        ctx.progress(step, total, f"step {step}")
    end = time.monotonic() + PATIENCE_SECONDS
    while not (Path(input["place"]) / "guest").exists() and time.monotonic() < end:
        time.sleep(0.02)
    ctx.progress(total, total)
    return "counted"


def errs(ctx: ToolContext, input: JsonObject) -> list[str]:
    """Tell what cannot be told, and return what is said to that."""
    ctx.progress(1, 2, "right")
    said = []
    for arguments in ODD.values():
        try:
            ctx.progress(*arguments)
        except ToolError as error:
            said.append(f"{error.code}: {error.message}")
    return said


handlers: dict[str, ToolHandler] = {"counts": counts, "errs": errs}
