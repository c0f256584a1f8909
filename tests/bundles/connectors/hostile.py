"""Emits what is no event, and at last writes a message of its own that is too long."""

import json
import os
import sys
from pathlib import Path


async def connect(ctx):
    def event(**fields):
        message = {"type": "text", "text": "x"}
        return {"name": "note", "message": message, "instanceKey": "hostile", **fields}

    for wrong in [
        None,
        [1],
        "text",
        event(auth={"number": float("nan")}),
        event(message={"type": "text", "text": "\ud800"}),
        event(instanceKey="\ud800"),
        event(message={"type": "text", "text": "y" * 2_000_000}),
        event(message={"type": "text", "text": "y" * 5_000_000}),
    ]:
        try:
            await ctx.emit(wrong)
            answer = "accepted"
        except Exception as error:
            answer = type(error).__name__
        with Path(ctx.config["SEEN"]).open("a") as file:
            file.write(json.dumps({"answer": answer}) + "\n")
    for wrong in [float("nan"), "\ud800", "y" * 100_000]:
        try:
            await ctx.cursor.set(wrong)
            answer = "moved"
        except Exception as error:
            answer = type(error).__name__
        with Path(ctx.config["SEEN"]).open("a") as file:
            file.write(json.dumps({"answer": answer}) + "\n")
    os.write(int(sys.argv[1]), b"y" * 5_000_000)
