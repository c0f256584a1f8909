"""Built-in extension ``message-compaction``: a summary replaces a conversation's older messages.

It acts before a request, also in the middle of a Turn, if the conversation has more than ``maxTokens`` or the
model has refused it as too long. The summary is one message; the last ``keepMessages`` follow it. The Turn's
own input stays, and so does a message whose metadata has ``pinned: true``.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from pydantic.alias_generators import to_camel

from goondan_tasks.contract.conversation import must_stay, start_of_last
from goondan_tasks.contract.model_messages import told_text
from goondan_tasks.errors import ModelContextLengthError, ModelError
from goondan_tasks.extension_api import ExtensionApi, Message, StepContext, StepResult
from goondan_tasks.messages import iso_time, wall_clock

#: outside the middlewares that append messages, and inside ``message-window``
PRIORITY = -40

INSTRUCTIONS = (
    "Summarize this conversation between a user and an assistant, which is to go on with it and will see "
    "nothing but your summary of this part. Say what the user wants, what was decided and done, which facts, "
    "names, files and numbers are still needed, and what is left to do. Answer with the summary alone."
)

HEADING = "Summary of the conversation so far:"

#: how much of each text, of arguments and of results the summarizing model sees
MOST_CHARACTERS = 4_000

CHARACTERS_PER_TOKEN = 4

#: a summary is requested only if it replaces at least this part of ``maxTokens``
LEAST_PART = 0.1


class MessageCompactionConfig(BaseModel):
    """The extension's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, protected_namespaces=())

    max_tokens: PositiveInt
    #: fewer are kept if these alone have more than half of ``maxTokens``
    keep_messages: PositiveInt = 8
    #: the Model that summarizes; the default is the Agent's own
    model_ref: str | None = Field(default=None, min_length=1)
    #: its instructions
    instructions: str = Field(default=INSTRUCTIONS, min_length=1)


class MessageCompaction:
    """The compaction of one agent's conversations."""

    def __init__(self, api: ExtensionApi, config: MessageCompactionConfig) -> None:
        self._name = api.extension.name
        self._logger = api.logger
        self._config = config

    async def compact(self, ctx: StepContext) -> StepResult:
        """Shorten a conversation that is too long."""
        state = ctx.conversation_state
        if state is not None:
            messages = state.next_messages
            tokens = _tokens(messages)
            if state.is_too_long or tokens > self._config.max_tokens:
                await self._shorten(ctx, messages, tokens, is_too_long=state.is_too_long)
        return await ctx.next()

    async def _shorten(
        self, ctx: StepContext, messages: Sequence[Message], tokens: int, *, is_too_long: bool
    ) -> None:
        most = self._config.max_tokens
        count = self._config.keep_messages
        while count > 1 and _estimate(messages[start_of_last(messages, count) :]) > most / 2:
            count -= 1
        ahead = messages[: start_of_last(messages, count)]
        older = [message for message in ahead if not must_stay(message, ctx.turn_id)]
        if not older or (_estimate(older) < LEAST_PART * most and not is_too_long):
            return
        names = {"instance": ctx.instance_key, "turn": ctx.turn_id, "messages": len(older), "tokens": tokens}
        try:
            summary = await self._summary(ctx, older)
        except ModelError as error:  # the model may still accept the conversation as it is
            self._logger.warning("conversation.not_compacted", **names, code=error.code, reason=error.message)
            return
        *others, last = older
        for message in others:
            ctx.emit_message_event({"type": "remove", "targetId": message.id})
        # after a Turn's input that stays: the summary includes what was done since then
        message = self._message(ctx, summary, len(older), up_to=messages[-1].id)
        ctx.emit_message_event({"type": "replace", "targetId": last.id, "message": message})
        self._logger.info("conversation.compacted", **names)

    async def _summary(self, ctx: StepContext, messages: Sequence[Message]) -> str:
        """Ask for a summary, in parts if the messages are too long for one request.

        Raises:
            ModelError: a request failed.
        """
        told = "\n\n".join(
            f"{message.data['role']}: {_text(message, MOST_CHARACTERS)}" for message in messages
        )
        config = self._config
        try:
            return await ctx.ask_model(
                [{"role": "user", "content": told}],
                instructions=config.instructions,
                model_ref=config.model_ref,
            )
        except ModelError as error:
            if error.code != ModelContextLengthError.code or len(messages) == 1:
                raise
        half = len(messages) // 2
        return "\n\n".join([await self._summary(ctx, part) for part in (messages[:half], messages[half:])])

    def _message(self, ctx: StepContext, summary: str, count: int, *, up_to: str) -> Message:
        return Message(
            id=f"msg-{ctx.step_id}-summary",
            data={"role": "user", "content": f"{HEADING}\n\n{summary}"},
            metadata={"summarizes": count, "upTo": up_to},
            created_at=iso_time(wall_clock()),
            source={"type": "extension", "extensionName": self._name},
        )


def _tokens(messages: Sequence[Message]) -> int:
    """Return about how many tokens the next request has, from the last answer's usage or estimated."""
    summarized = {message.metadata.get("upTo") for message in messages}
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].id in summarized:
            break  # earlier answers belong to the longer conversation
        usage = messages[index].metadata.get("usage")
        if isinstance(usage, dict):
            measured = int(usage.get("input", 0)) + int(usage.get("output", 0))
            return measured + _estimate(messages[index + 1 :])
    return _estimate(messages)


def _estimate(messages: Iterable[Message]) -> int:
    return sum(len(_text(message)) for message in messages) // CHARACTERS_PER_TOKEN


def _text(message: Message, most: int | None = None) -> str:
    """Return a message as text, each of its parts cut to ``most`` characters."""
    content = message.data.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    texts = map(_part_text, parts)
    return "\n".join(
        text if most is None or len(text) <= most else f"{text[:most]}…" for text in texts if text
    )


def _part_text(part: dict[str, Any]) -> str:
    kind, name = part.get("type"), part.get("toolName")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "tool-call":
        text, _ = told_text({"type": "json", "value": part.get("input")})
        return f"[calls {name} with {text}]"
    if kind == "tool-result":
        text, failed = told_text(part.get("output"))
        return f"[{'error' if failed else 'result'} of {name}: {text}]"
    return f"[{kind}]" if kind in ("image", "file") else ""


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register the compaction as a step middleware.

    Raises:
        pydantic.ValidationError: the config is not valid.
    """
    compaction = MessageCompaction(api, MessageCompactionConfig.model_validate(config))
    api.pipeline.register("step", compaction.compact, PRIORITY)
