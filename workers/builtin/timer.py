"""Built-in extension ``timer``: tools with which an agent sends itself events for later.

Each timer is a scheduled event of the agent's own instance. The extension's state has the ids of the timers;
the events themselves say which of them are still to come.
"""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt
from pydantic.alias_generators import to_camel

from goondan_tasks.errors import ToolError, ToolInputValidationError
from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.tool_api import AgentRuntime, JsonObject, ScheduledEvent, ToolContext

#: the type of a timer's event
EVENT_TYPE = "timer"

SCHEDULE: JsonObject = {
    "name": "timer__schedule",
    "description": (
        "Send yourself a message for later: it begins a new turn of this conversation at its time. Give "
        "inSeconds or at. The answer has the timer's id."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "text": {
                "type": "string",
                "minLength": 1,
                "maxLength": 10_000,
                "description": "What you are to know or do then",
            },
            "inSeconds": {"type": "number", "minimum": 0, "description": "In how many seconds"},
            "at": {
                "type": "string",
                "minLength": 1,
                "description": "The time, such as 2026-12-01T09:00+09:00; UTC without a time zone",
            },
        },
        "required": ["text"],
        "additionalProperties": False,
    },
}
LIST: JsonObject = {
    "name": "timer__list",
    "description": "List the timers of this conversation that are still to come, the soonest first.",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
CANCEL: JsonObject = {
    "name": "timer__cancel",
    "description": "Cancel a timer of this conversation. cancelled is false if its time has come already.",
    "parameters": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "minLength": 1, "description": "The id from schedule or list"}
        },
        "required": ["id"],
        "additionalProperties": False,
    },
}


class TimerConfig(BaseModel):
    """The extension's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    #: how many timers an instance may have at once
    max_timers: PositiveInt = 20
    #: how far ahead they may be
    max_ahead_seconds: PositiveFloat = 30 * 86_400


class Timers:
    """The timers of one agent's instances."""

    def __init__(self, api: ExtensionApi, config: TimerConfig) -> None:
        self._state = api.state
        self._config = config

    async def schedule(self, ctx: ToolContext, input: JsonObject) -> JsonObject:
        """Send the instance an event for later."""
        self._require_near(input)
        waiting, most = await self._waiting(ctx), self._config.max_timers
        if len(waiting) >= most:
            raise ToolError(
                f"This conversation has {len(waiting)} timers, and may have {most}.",
                suggestion="Cancel one with timer__cancel, or wait until one has come.",
            )
        options = {"delay": input.get("inSeconds"), "notBefore": input.get("at")}
        event = {"input": input["text"], "type": EVENT_TYPE}
        sent = await _runtime(ctx).send(ctx.agent_name, event, options)
        await self._state.set(sent.id, True)
        # one whose time has come is on its way, and is no timer any more
        [timer] = await _runtime(ctx).scheduled([sent.id]) or [None]
        return {"id": sent.id, "at": None if timer is None else timer.not_before}

    async def listed(self, ctx: ToolContext, input: JsonObject) -> JsonObject:
        """Return the timers that are still to come."""
        timers = sorted(await self._waiting(ctx), key=lambda one: one.not_before)
        rows = [{"id": one.id, "at": one.not_before, "text": one.input} for one in timers]
        return {"count": len(rows), "timers": rows}

    async def cancel(self, ctx: ToolContext, input: JsonObject) -> JsonObject:
        """Cancel one of the timers."""
        timer_id = input["id"]
        if timer_id not in await self._state.keys():
            raise ToolError(
                f"This conversation has no timer {timer_id!r}.",
                suggestion="timer__list shows the timers that are still to come.",
            )
        is_cancelled = await _runtime(ctx).cancel(timer_id)
        await self._state.set(timer_id, None)
        return {"id": timer_id, "cancelled": is_cancelled}

    def _require_near(self, input: JsonObject) -> None:
        if ("inSeconds" in input) == ("at" in input):
            raise ToolInputValidationError("Give inSeconds or at, one of the two.")
        seconds = _seconds_until(input["at"]) if "at" in input else input["inSeconds"]
        if seconds > self._config.max_ahead_seconds:
            raise ToolInputValidationError(
                f"A timer may be {self._config.max_ahead_seconds:,g} seconds ahead, not {seconds:,.0f}."
            )

    async def _waiting(self, ctx: ToolContext) -> list[ScheduledEvent]:
        """Return the timers that are still to come, and forget the others."""
        ids = await self._state.keys()
        waiting: list[ScheduledEvent] = await _runtime(ctx).scheduled(ids) if ids else []
        for past in set(ids) - {one.id for one in waiting}:
            await self._state.set(past, None)
        return waiting


def _seconds_until(at: str) -> float:
    try:
        time = datetime.fromisoformat(at)
    except ValueError as error:
        raise ToolInputValidationError(
            f"at: {at[:100]!r} is not an ISO 8601 time such as 2026-12-01T09:00+09:00."
        ) from error
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()


def _runtime(ctx: ToolContext) -> AgentRuntime:
    if ctx.runtime is None:
        raise ToolError("There are no timers here.", suggestion="Let a worker run the tool.")
    return ctx.runtime


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register the tools."""
    timers = Timers(api, TimerConfig.model_validate(config))
    # a second run after a worker's death sends the same event, which comes once
    policy = {"timeoutSeconds": 60, "idempotent": True}
    for item, handler in ((SCHEDULE, timers.schedule), (LIST, timers.listed), (CANCEL, timers.cancel)):
        api.tools.register(item, handler, policy=policy)
