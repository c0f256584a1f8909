"""Built-in extension ``logging``: a log line when a Turn, a Step or a tool call begins, and one when it ends.

Exceptions are logged and pass through unchanged. Values of keys that look secret are redacted, in structures
and in the middle of text.
"""

import time
from collections.abc import Mapping
from typing import Any

from goondan_tasks.contract.failure import message_of_error
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.redaction import MASK, hidden_by_place, may_be_secret
from goondan_tasks.extension_api import ExtensionApi, StepContext, ToolCallContext, TurnContext
from goondan_tasks.messages import JsonObject
from workers.handlers import awaits_next_alone

LEVELS = ("debug", "info", "warning", "error")

#: outside all middlewares without a priority of their own, so that it sees everything they do
PRIORITY = -1000

DEFAULTS: JsonObject = {"level": "info", "includeToolArgs": False, "includeTurnMetadata": True}

LONGEST_TEXT = 1_000
MOST_ITEMS = 50
DEEPEST = 8


def register(api: ExtensionApi, config: JsonObject) -> None:
    """Log around Turns, Steps and tool calls.

    Raises:
        ValueError: the config has an unknown field or an invalid value.
    """
    options = _options(config)
    level = options["level"]
    log = getattr(api.logger, level)

    async def logged(ctx: Any, event: str, begins: str, ids: JsonObject, **details: Any) -> Any:
        common = {"instance": ctx.instance_key, "turn": ctx.turn_id, "trace_id": ctx.trace_id, **ids}
        log(f"{event}.{begins}", **common, **details)
        started = time.monotonic()

        def log_failure(error: BaseException) -> None:
            code = getattr(error, "code", None)
            (api.logger.error if level == "error" else api.logger.warning)(
                f"{event}.failed",
                **common,
                error=type(error).__name__,
                code=code if isinstance(code, str) else None,
                reason=redacted_text(message_of_error(error)),
                duration_ms=_since(started),
            )

        with OnError(log_failure):
            result = await ctx.next()
        status = {"status": result.status} if event == "tool" else {}
        log(f"{event}.completed", **common, **status, duration_ms=_since(started))
        return result

    @awaits_next_alone
    async def logged_tool_call(ctx: ToolCallContext) -> Any:
        ids = {"tool": ctx.tool_name, "tool_call_id": ctx.tool_call_id, "step": ctx.step_id}
        details = {"args": redacted(ctx.args)} if options["includeToolArgs"] else {}
        return await logged(ctx, "tool", "called", ids, **details)

    @awaits_next_alone
    async def logged_step(ctx: StepContext) -> Any:
        ids = {"step": ctx.step_id, "index": ctx.step_index}
        return await logged(ctx, "step", "started", ids, tools=len(ctx.tool_catalog))

    @awaits_next_alone
    async def logged_turn(ctx: TurnContext) -> Any:
        details = {"metadata": redacted(ctx.event.metadata)} if options["includeTurnMetadata"] else {}
        return await logged(ctx, "turn", "started", {"type": ctx.event.type}, **details)

    api.pipeline.register("toolCall", logged_tool_call, PRIORITY)
    api.pipeline.register("step", logged_step, PRIORITY)
    api.pipeline.register("turn", logged_turn, PRIORITY)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)


def _options(config: JsonObject) -> JsonObject:
    for name, value in config.items():
        if name not in DEFAULTS:
            raise ValueError(f"config has no field {name!r}; it has: {', '.join(DEFAULTS)}")
        if name == "level" and value not in LEVELS:
            raise ValueError(f"level is one of {', '.join(LEVELS)}, not {value!r}")
        if name != "level" and not isinstance(value, bool):
            raise ValueError(f"{name} is true or false, not {value!r}")
    return {**DEFAULTS, **config}


def redacted(value: Any, depth: int = 0) -> Any:
    """Return a copy of a JSON value for the log: without secrets, and cut where it is long or deep."""
    if isinstance(value, str):
        return redacted_text(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        shown = list(value.items())[:MOST_ITEMS]
        cut: dict[str, Any] = {"…": len(value) - MOST_ITEMS} if len(value) > MOST_ITEMS else {}
        return {str(key): _member(key, item, depth + 1) for key, item in shown} | cut
    more = ["…"] if len(value) > MOST_ITEMS else []
    return [redacted(item, depth + 1) for item in value[:MOST_ITEMS]] + more


def redacted_text(text: str) -> str:
    """Return a text for the log."""
    shown = hidden_by_place(text[:LONGEST_TEXT])
    return f"{shown}…" if len(text) > LONGEST_TEXT else shown


def _member(key: Any, value: Any, depth: int) -> Any:
    if may_be_secret(str(key)) and value is not None:
        return MASK
    return redacted(value, depth)
