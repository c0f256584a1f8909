"""The reviewer: reads what the coder wrote in the same workdir, and names what should be better."""

from goondan_tasks.agent_api import AgentContext, AgentEvent, HandoffError, JsonObject


def handle(ctx: AgentContext, event: AgentEvent) -> JsonObject:
    """Look at the files that ``event.input`` names; a plain function: ``ctx.call`` blocks."""
    review = ctx.call("review__style", event.input)
    if review.error is not None:
        raise HandoffError(review.error.message, code=review.error.code, suggestion=review.error.suggestion)
    # Here a model would weigh the findings; this reviewer wants every one of them corrected.
    return {"files": review.output["files"], "findings": review.output["findings"]}
