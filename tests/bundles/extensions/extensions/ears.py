"""Listens, and writes down what it hears of an instance."""

import asyncio
import os
from pathlib import Path


def register(api):
    def heard(event):
        api.events.emit("ears.heard", {"tool": event["toolName"], "of": event["instanceKey"]})

    def broken(event):
        raise RuntimeError("deaf")

    one_at_a_time = asyncio.Lock()

    async def noted(event):
        async with one_at_a_time:
            heard = await api.state.get("heard", [], instance_key=event["of"])
            await api.state.set("heard", [*heard, event["tool"]], instance_key=event["of"])

    async def stopping(event):
        if "STOP_FILE" in os.environ:
            Path(os.environ["STOP_FILE"]).write_text("stopped")

    api.events.on("tool.called", broken)
    api.events.on("tool.called", heard)
    api.events.on("ears.heard", noted)
    api.events.on("worker.stopping", stopping)
    api.tools.register({"name": "ears__list"}, lambda ctx, input: api.state.get("heard"))
