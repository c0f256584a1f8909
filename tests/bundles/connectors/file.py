"""Emits the events of a file, from the cursor on, and leaves a line for each answer."""

import asyncio
import json
import os
from pathlib import Path


def note(ctx, **line):
    with Path(ctx.config["SEEN"]).open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), **line}) + "\n")


async def connect(ctx):
    note(ctx, began=ctx.connection_name, token=ctx.secrets["TOKEN"], environment=sorted(os.environ))
    print("the token is", ctx.secrets["TOKEN"])
    place = await ctx.cursor.get() or 0
    while True:
        lines = Path(ctx.config["EVENTS"]).read_text().splitlines()
        for line in lines[place:]:
            try:
                accepted = await ctx.emit(json.loads(line))
                note(ctx, agent=accepted.agent, instance=accepted.instance_key)
            except Exception as error:
                note(ctx, error=f"{type(error).__name__}: {error}")
            place += 1
            await ctx.cursor.set(place)
        await asyncio.sleep(0.05)
