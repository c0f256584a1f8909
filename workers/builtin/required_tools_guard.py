"""Built-in extension ``required-tools-guard``: a Turn fails unless one of the required tools succeeded in it.

It acts around an agent's entry. After a Step without tool calls ``step.should_continue`` is still true, and a
block of the next Step reminds the model, up to ``maxRetries`` times per Turn.
"""

import asyncio
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt
from pydantic.alias_generators import to_camel

from goondan_tasks.errors import HandoffError
from goondan_tasks.extension_api import ExtensionApi, StepContext, StepResult, ToolCallContext, TurnContext
from goondan_tasks.messages import ToolCallResult

#: outside the other middlewares, so that it sees the result of them all
PRIORITY = -100

#: the reminder comes before the blocks of other extensions
BLOCK_PRIORITY = 1000


class RequiredToolsConfig(BaseModel):
    """The extension's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    #: one of them must succeed
    required_tools: tuple[str, ...] = Field(min_length=1, strict=False)
    #: the text of the reminder
    error_message: str = ""
    #: reminders per Turn
    max_retries: NonNegativeInt = 2

    @property
    def message(self) -> str:
        """The text of the reminder, and of the Turn's error."""
        return (
            self.error_message or f"Call one of these tools before you end: {', '.join(self.required_tools)}."
        )


class RequiredToolsGuard:
    """The guard of one agent."""

    def __init__(self, api: ExtensionApi, config: RequiredToolsConfig) -> None:
        self._state = api.state
        self._config = config
        #: the Steps with a reminder after them, by instance and id of each Turn running in this process;
        #: Turns of several instances have the same id if they handle the same event
        self._reminded: dict[tuple[str, str], list[int]] = {}

    def notice(self, ctx: ToolCallContext) -> Any:
        """Record the success of a required tool; it may run in any worker."""
        if ctx.tool_name not in self._config.required_tools:
            return ctx.next()
        return self._noticed(ctx)

    async def _noticed(self, ctx: ToolCallContext) -> ToolCallResult:
        result = await ctx.next()
        if result.status == "ok" and await self._is_guarded(ctx.turn_id):
            await self._state.set(_key(ctx.turn_id), True)
        return result

    async def remind(self, ctx: StepContext) -> StepResult:
        """Continue the Turn after a Step without tool calls while a required tool is still missing."""
        reminded = self._reminded.get((ctx.instance_key, ctx.turn_id))
        if reminded is None:
            return await ctx.next()
        if any(step < ctx.step_index for step in reminded) and not await self._is_done(ctx.turn_id):
            ctx.blocks.append(
                {"type": "required-tools", "data": self._config.message, "priority": BLOCK_PRIORITY}
            )
        result = await ctx.next()
        if any(map(self._is_success, result.tool_results)):
            # if the worker of an earlier run died, the call is not run again, and nobody else notices it
            await self._state.set(_key(ctx.turn_id), True)
        if result.tool_calls:
            return result
        # another run of the Turn goes the way of the earlier one
        if ctx.step_index not in reminded:
            if len(reminded) >= self._config.max_retries or await self._is_done(ctx.turn_id):
                return result
            reminded.append(ctx.step_index)
            await self._state.set(_reminded_key(ctx.turn_id), reminded)
        return replace(result, metadata={**result.metadata, "shouldContinue": True})

    async def require(self, ctx: TurnContext) -> Any:
        """Fail a Turn that ends without a required tool's success.

        Raises:
            HandoffError: none of the required tools succeeded.
        """
        turn = ctx.instance_key, ctx.turn_id
        # if a worker has died, an earlier run of the Turn has left its state
        self._reminded[turn] = await self._state.get(_reminded_key(ctx.turn_id), [])
        if not await self._is_done(ctx.turn_id):
            await self._state.set(_key(ctx.turn_id), False)
        may_go_on = False
        try:
            return await self._required(ctx)
        except asyncio.CancelledError:
            may_go_on = True  # in another run of the Turn, which needs the state
            raise
        finally:
            self._reminded.pop(turn, None)
            if not may_go_on:
                await self._forget(ctx.turn_id)

    async def _required(self, ctx: TurnContext) -> Any:
        answer = await ctx.next()
        if await self._is_done(ctx.turn_id):
            return answer
        raise HandoffError(
            f"The Turn has ended without a successful call of a required tool. {self._config.message}"
        )

    async def _forget(self, turn_id: str) -> None:
        await self._state.set(_key(turn_id), None)
        await self._state.set(_reminded_key(turn_id), None)

    def _is_success(self, result: ToolCallResult) -> bool:
        return result.status == "ok" and result.tool_name in self._config.required_tools

    async def _is_guarded(self, turn_id: str) -> bool:
        """Return whether the Turn has an entry: Turns of producers and single calls are not guarded."""
        return await self._state.get(_key(turn_id)) is not None

    async def _is_done(self, turn_id: str) -> bool:
        return bool(await self._state.get(_key(turn_id), False))


def _key(turn_id: str) -> str:
    return f"done:{turn_id}"


def _reminded_key(turn_id: str) -> str:
    return f"reminded:{turn_id}"


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register the guard around the agent's Turns, Steps and tool calls.

    Raises:
        pydantic.ValidationError: the config is not valid.
    """
    guard = RequiredToolsGuard(api, RequiredToolsConfig.model_validate(config))
    api.pipeline.register("toolCall", guard.notice, PRIORITY)
    api.pipeline.register("step", guard.remind, PRIORITY)
    api.pipeline.register("turn", guard.require, PRIORITY)
