"""Built-in extension ``required-tools-guard``: no Turn ends well unless one of certain tools has done so.

It acts around an agent's entry. A Step in which the model asks for no tool any more does not end the Turn
yet: ``step.should_continue`` says so, and the next Step's blocks tell the model why, a few times. A Turn
that ends all the same fails.
"""

from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt
from pydantic.alias_generators import to_camel

from goondan_tasks.errors import HandoffError
from goondan_tasks.extension_api import ExtensionApi, StepContext, StepResult, ToolCallContext, TurnContext
from goondan_tasks.messages import ToolCallResult

#: it sees what all the others make of a Step or a Turn
PRIORITY = -100

#: the reminder stands before what other extensions tell the model
BLOCK_PRIORITY = 1000


class RequiredToolsConfig(BaseModel):
    """What the extension may be configured with."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    #: one of them must have ended well
    required_tools: tuple[str, ...] = Field(min_length=1, strict=False)
    #: what the model is told
    error_message: str = ""
    #: how often it is told in one Turn
    max_retries: NonNegativeInt = 2

    @property
    def message(self) -> str:
        """What the model, or whoever waits for the Turn, is told."""
        return (
            self.error_message or f"Call one of these tools before you end: {', '.join(self.required_tools)}."
        )


class RequiredToolsGuard:
    """The guard of one agent."""

    def __init__(self, api: ExtensionApi, config: RequiredToolsConfig) -> None:
        self._state = api.state
        self._config = config
        #: how often the model was reminded in each Turn that goes on in this process: instances may have
        #: Turns of one id, for somebody has sent all of them the same event
        self._reminders: dict[tuple[str, str], int] = {}

    def notice(self, ctx: ToolCallContext) -> Any:
        """Take note of a required tool that ends well, wherever it runs."""
        if ctx.tool_name not in self._config.required_tools:
            return ctx.next()
        return self._noticed(ctx)

    async def _noticed(self, ctx: ToolCallContext) -> ToolCallResult:
        result = await ctx.next()
        if result.status == "ok" and await self._is_guarded(ctx.turn_id):
            await self._state.set(_key(ctx.turn_id), True)
        return result

    async def remind(self, ctx: StepContext) -> StepResult:
        """Let the Turn go on after a Step without tool calls, as long as there is something to be called."""
        turn = ctx.instance_key, ctx.turn_id
        reminders = self._reminders.get(turn)
        if reminders and not await self._is_done(ctx.turn_id):
            ctx.blocks.append(
                {"type": "required-tools", "data": self._config.message, "priority": BLOCK_PRIORITY}
            )
        result = await ctx.next()
        if reminders is None or result.tool_calls or reminders >= self._config.max_retries:
            return result
        if await self._is_done(ctx.turn_id):
            return result
        self._reminders[turn] = reminders + 1
        return replace(result, metadata={**result.metadata, "shouldContinue": True})

    async def require(self, ctx: TurnContext) -> Any:
        """Let a Turn fail that has ended without a required tool."""
        turn = ctx.instance_key, ctx.turn_id
        self._reminders[turn] = 0
        await self._state.set(_key(ctx.turn_id), False)
        try:
            answer = await ctx.next()
            if await self._is_done(ctx.turn_id):
                return answer
            raise HandoffError(
                f"The Turn has ended without a successful call of a required tool. {self._config.message}"
            )
        finally:
            self._reminders.pop(turn, None)
            await self._state.set(_key(ctx.turn_id), None)

    async def _is_guarded(self, turn_id: str) -> bool:
        """Say whether somebody is to learn of it: a Turn of a producer, and a call of none, end elsewhere."""
        return await self._state.get(_key(turn_id)) is not None

    async def _is_done(self, turn_id: str) -> bool:
        return bool(await self._state.get(_key(turn_id), False))


def _key(turn_id: str) -> str:
    return f"done:{turn_id}"


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register the guard around the agent's Turns, Steps and tool calls."""
    guard = RequiredToolsGuard(api, RequiredToolsConfig.model_validate(config))
    api.pipeline.register("toolCall", guard.notice, PRIORITY)
    api.pipeline.register("step", guard.remind, PRIORITY)
    api.pipeline.register("turn", guard.require, PRIORITY)
