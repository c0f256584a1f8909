"""What the conformance suite of MCP expects of tools whose calls become tasks."""

import asyncio
import os

#: longer than a server waits for a result before it answers with a task
WORK_SECONDS = 1.0


async def greet(ctx, input):
    return f"Hello, {input['name']}!"


async def slow_compute(ctx, input):
    await asyncio.sleep(input["seconds"])
    return {"label": input.get("label")}


async def failing_job(ctx, input):
    await asyncio.sleep(WORK_SECONDS)
    raise ValueError("the job has failed")


async def protocol_error_job(ctx, input):
    await asyncio.sleep(WORK_SECONDS)
    os._exit(1)


def confirm_delete(ctx, input):
    return f"deleted {input['filename']}"


handlers = {
    "greet": greet,
    "slow_compute": slow_compute,
    "failing_job": failing_job,
    "protocol_error_job": protocol_error_job,
    "confirm_delete": confirm_delete,
}
