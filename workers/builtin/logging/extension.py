"""``logging``: a line of the log when a Turn, a Step or a tool call begins, and one when it ends.

Nothing is held back and nothing changed: what is raised inside is logged and goes on.
"""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from goondan_tasks.extension_api import ExtensionApi, StepContext, ToolCallContext, TurnContext
from goondan_tasks.messages import JsonObject
from workers.builtin.logging.redaction import redacted, redacted_text

LEVELS = ("debug", "info", "warning", "error")

#: further out than whatever does not ask for a place, so that it sees all of it
PRIORITY = -1000


@dataclass(frozen=True, slots=True)
class Options:
    """The extension's config."""

    level: str = "info"
    include_tool_args: bool = False
    include_turn_metadata: bool = True

    @classmethod
    def of(cls, config: JsonObject) -> "Options":
        """Read the config.

        Raises:
            ValueError: a field is unknown, or has a value that it cannot have.
        """
        known = {"level": "level", "includeToolArgs": "include_tool_args"}
        known["includeTurnMetadata"] = "include_turn_metadata"
        for name, value in config.items():
            if name not in known:
                raise ValueError(f"config has no field {name!r}; it has: {', '.join(known)}")
            if name == "level" and value not in LEVELS:
                raise ValueError(f"level is one of {', '.join(LEVELS)}, not {value!r}")
            if name != "level" and not isinstance(value, bool):
                raise ValueError(f"{name} is true or false, not {value!r}")
        return cls(**{known[name]: value for name, value in config.items()})


def register(api: ExtensionApi, config: JsonObject) -> None:
    """Log what happens at each of the three points."""
    options = Options.of(config)

    def log(event: str, **fields: Any) -> None:
        getattr(api.logger, options.level)(event, **fields)

    def failed(event: str, **fields: Any) -> None:
        (api.logger.error if options.level == "error" else api.logger.warning)(event, **fields)

    async def logged_tool_call(ctx: ToolCallContext) -> Any:
        about = {**_place(ctx), "tool": ctx.tool_name, "tool_call_id": ctx.tool_call_id, "step": ctx.step_id}
        args = {"args": redacted(ctx.args)} if options.include_tool_args else {}
        log("tool.called", **about, **args)
        with _Lasting("tool.failed", about, failed) as lasting:
            result = await ctx.next()
            log("tool.completed", **about, status=result.status, duration_ms=lasting.milliseconds)
        return result

    async def logged_step(ctx: StepContext) -> Any:
        about = {**_place(ctx), "step": ctx.step_id, "index": ctx.step_index}
        log("step.started", **about, tools=len(ctx.tool_catalog))
        with _Lasting("step.failed", about, failed) as lasting:
            result = await ctx.next()
            log("step.completed", **about, duration_ms=lasting.milliseconds)
        return result

    async def logged_turn(ctx: TurnContext) -> Any:
        about = {**_place(ctx), "type": ctx.event.type}
        metadata = {"metadata": redacted(ctx.event.metadata)} if options.include_turn_metadata else {}
        log("turn.started", **about, **metadata)
        with _Lasting("turn.failed", about, failed) as lasting:
            result = await ctx.next()
            log("turn.completed", **about, duration_ms=lasting.milliseconds)
        return result

    api.pipeline.register("toolCall", logged_tool_call, PRIORITY)
    api.pipeline.register("step", logged_step, PRIORITY)
    api.pipeline.register("turn", logged_turn, PRIORITY)


def _place(ctx: ToolCallContext | StepContext | TurnContext) -> JsonObject:
    return {"instance": ctx.instance_key, "turn": ctx.turn_id, "trace_id": ctx.trace_id}


class _Lasting(AbstractContextManager["_Lasting"]):
    """Something that lasts, and may fail."""

    def __init__(self, event: str, about: JsonObject, failed: Any) -> None:
        self._event = event
        self._about = about
        self._failed = failed
        self._begun = time.monotonic()

    @property
    def milliseconds(self) -> int:
        """How long it has lasted."""
        return round((time.monotonic() - self._begun) * 1000)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            code = getattr(error, "code", None)
            self._failed(
                self._event,
                **self._about,
                duration_ms=self.milliseconds,
                error=type(error).__name__,
                code=code if isinstance(code, str) else None,
                reason=redacted_text(str(error)),
            )
