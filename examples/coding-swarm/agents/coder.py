"""The coder: writes a module and its test, and corrects it until the reviewer finds nothing."""

import json
import shlex
import sys
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent, HandoffError, JsonObject

from .scripted_model import correct, draft

MOST_ROUNDS = 3
PYTHON = shlex.quote(sys.executable)


async def handle(ctx: AgentContext, event: AgentEvent) -> JsonObject:
    """Do the task in ``event.input``, a text, with the agent's own tools, in the instance's workdir."""
    # Here a model would decide what to write, and below, how to correct it; a script stands in for it.
    work = draft(event.input)
    await use(ctx, "python-project__scaffold", work.skeleton)
    await use(ctx, "file-system__write", {"path": work.test, "content": work.test_source})
    source = work.source
    for number in range(1, MOST_ROUNDS + 1):
        ctx.progress(number, MOST_ROUNDS, f"round {number}")
        await use(ctx, "file-system__write", {"path": work.module, "content": source})
        tests = await use(ctx, "python-project__run-tests")
        # The worker takes other work while this waits.
        review = await ctx.runtime.request("reviewer", {"input": {"glob": work.module}})
        findings = review.response["findings"]
        if tests["passed"] and not findings:
            run = await use(ctx, "bash__exec", {"command": f"{PYTHON} -B {work.command}"})
            output = json.loads(run["stdout"])
            return {"module": work.module, "tests": tests["ran"], "rounds": number, "output": output}
        source = correct(source, findings)
    raise HandoffError(f"{work.module} is still not good after {MOST_ROUNDS} rounds.")


async def use(ctx: AgentContext, tool: str, args: JsonObject | None = None) -> Any:
    """Call a tool and return its output; its error ends the Turn and reaches the asker."""
    result = await ctx.call(tool, args)
    if result.error is not None:
        message = f"{tool}: {result.error.message}"
        raise HandoffError(message, code=result.error.code, suggestion=result.error.suggestion)
    return result.output
