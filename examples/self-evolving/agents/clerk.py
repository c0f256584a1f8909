"""The clerk: counts parts of a text, and writes a tool for that if there is none."""

from pathlib import Path
from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentEvent, HandoffError, JsonObject

from .scripted_model import ScriptedModel

PROMPT = Path(__file__).parents[1] / "prompts" / "clerk.md"


async def handle(ctx: AgentContext, event: AgentEvent) -> JsonObject | None:
    """Answer ``event.input``: what to count, and the text."""
    if event.type == "swarmBundle.revisionChanged":  # the clerk's own commit has become active
        ctx.logger.info("clerk.changed", revision=event.input["newRef"])
        return None
    # Here you would ask a model, with the prompt; a script stands in for it.
    model, prompt = ScriptedModel(**event.input), PROMPT.read_text(encoding="utf-8")
    results: list[Any] = []
    while True:
        # Each Step shows the tools of the revision that is active when it opens.
        async with ctx.step() as step:
            results = [output_of(result) for result in await step.run(model.reply(step.catalog, results))]
        if not step.should_continue:
            return {**(model.answer or {}), "prompt": prompt}


def output_of(result: Any) -> Any:
    """Return a tool's output; its error ends the Turn and reaches the asker."""
    if result.error is not None:
        message = f"{result.tool_name}: {result.error.message}"
        raise HandoffError(message, code=result.error.code, suggestion=result.error.suggestion)
    return result.output
