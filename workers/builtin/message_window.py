"""Built-in extension ``message-window``: keeps only the last messages of a thinking agent's conversation.

Older ones are removed for good before each request. A call stays with its result, so some more may be kept.
The Turn's own input stays, and so does a message whose metadata has ``pinned: true``.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveInt
from pydantic.alias_generators import to_camel

from goondan_tasks.contract.conversation import must_stay, start_of_last
from goondan_tasks.extension_api import ExtensionApi, StepContext, StepResult

#: outside the middlewares that append messages, so that those are kept
PRIORITY = -50


class MessageWindowConfig(BaseModel):
    """The extension's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    max_messages: PositiveInt = 40


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register the middleware that removes older messages.

    Raises:
        pydantic.ValidationError: the config is not valid.
    """
    most = MessageWindowConfig.model_validate(config).max_messages

    async def narrowed(ctx: StepContext) -> StepResult:
        messages = [] if ctx.conversation_state is None else ctx.conversation_state.next_messages
        for message in messages[: start_of_last(messages, most)]:
            if not must_stay(message, ctx.turn_id):
                ctx.emit_message_event({"type": "remove", "targetId": message.id})
        return await ctx.next()

    api.pipeline.register("step", narrowed, PRIORITY)
