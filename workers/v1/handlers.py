"""The handlers of older tools as those of plans: each call gets a V1ToolContext (002 §4.3)."""

from collections.abc import Callable
from functools import partial
from typing import Any

from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.authoring.v1_api import V1ToolContext
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.messages import JsonObject, ToolCall
from workers.concurrency.event_loop import beside_loop
from workers.concurrency.threads import on_new_thread
from workers.plain_context import PlainContext, call_of
from workers.processes.isolation import IsolatedTool
from workers.tools.registered_tool import RegisteredTool
from workers.v1.event_bus import RunEventBus

#: makes the context of a v1 tool from today's and the one of the functions around it; it may block
OlderContext = Callable[[BoundTool, ToolCall, ToolContext, ToolCallContext | None], V1ToolContext]


def handler_of_older(
    tool: RegisteredTool, limit_seconds: float, make: OlderContext
) -> Callable[[PlainContext, JsonObject], Any]:
    """Return the handler of an older tool for its plan."""

    def older(ctx: PlainContext) -> V1ToolContext:
        call = call_of(ctx)
        return make(tool.bound, call.original, ctx, call.around)

    def handle(ctx: PlainContext, args: JsonObject) -> Any:
        own = older(ctx)
        try:
            if isinstance(tool.handler, IsolatedTool):
                cancellation = call_of(ctx).ensure_cancellation()
                return tool.handler.run(own, args, limit_seconds=limit_seconds, cancellation=cancellation)
            return tool.handler(own, args)
        finally:
            let_go(own)

    async def handle_on_loop(ctx: PlainContext, args: JsonObject) -> Any:
        own = await beside_loop(partial(older, ctx), on_new_thread)
        try:
            return await tool.handler(own, args)  # type: ignore[operator]
        finally:
            let_go(own)

    return handle_on_loop if tool.is_async else handle


def let_go(ctx: V1ToolContext) -> None:
    """End what a context has begun for a run that has ended."""
    if isinstance(ctx.events, RunEventBus):
        ctx.events.end()
