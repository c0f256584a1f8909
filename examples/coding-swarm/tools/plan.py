"""The planner's tool: a task in words becomes numbered steps."""

import re

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError

_BETWEEN_STEPS = re.compile(r"(?<=[.;!?])\s+|,?\s+then\s+", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*]|\d+[.)])\s+")
_REVIEW_WORDS = re.compile(r"\b(?:review|inspect|look over|style)\b", re.IGNORECASE)


def outline(ctx: ToolContext, arguments: JsonObject) -> JsonObject:
    """Split ``task`` at sentences, lines and the word "then"."""
    limits = {"maxSteps": 10, "maxCharacters": 200} | arguments.get("limits", {})
    lines = (_BULLET.sub("", line) for line in arguments["task"].splitlines())
    pieces = (piece.strip(" .;") for line in lines for piece in _BETWEEN_STEPS.split(line))
    texts = [piece[: limits["maxCharacters"]] for piece in pieces if piece]
    if not texts:
        raise ToolError("The task has no words.", suggestion="Say in a sentence what is to be done.")
    kept = texts[: limits["maxSteps"]]
    steps = [{"number": n, "agent": _agent_for(text), "text": text} for n, text in enumerate(kept, start=1)]
    plan = {"steps": steps, "leftOut": len(texts) - len(kept)}
    if arguments.get("format") == "markdown":
        plan["markdown"] = "\n".join(f"- [ ] {step['text']} ({step['agent']})" for step in steps)
    ctx.logger.info("plan.outlined", steps=len(steps))
    return plan


def _agent_for(step: str) -> str:
    return "reviewer" if _REVIEW_WORDS.search(step) else "coder"


handlers = {"outline": outline}
