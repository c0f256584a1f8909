"""What happens in a Step is written on the message that it begins with."""

import os
from pathlib import Path
from typing import Any

from goondan_tasks.extension_api import ExtensionApi, StepContext, StepResult, ToolCallContext, TurnContext
from goondan_tasks.tool_api import ToolHandler


def note(wish: dict[str, Any], line: str) -> None:
    if "diary" in wish:
        with Path(wish["diary"]).open("a") as diary:
            diary.write(f"{line} {os.getpid()}\n")


def may_register(wish: dict[str, Any]) -> bool:
    if "only" not in wish:
        return True
    try:
        Path(wish["only"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def register(api: ExtensionApi) -> None:
    def special_of(user: Any) -> ToolHandler:
        async def special(ctx: Any, input: dict[str, Any]) -> dict[str, Any]:
            if "unregister" in input:
                api.tools.unregister(input["unregister"])
            return {"special": input, "pid": os.getpid(), "user": user}

        return special

    async def menu(ctx: StepContext) -> Any:
        wish = ctx.message or {}
        note(wish, f"step {ctx.step_index} in")
        if "hide" in wish:
            ctx.tool_catalog = [item for item in ctx.tool_catalog if item.name not in wish["hide"]]
        ctx.tool_catalog += wish.get("add", [])
        for name in wish.get("register", ()):
            if may_register(wish):
                api.tools.register({"name": name, "description": "Today only."}, special_of(ctx.auth))
        ctx.blocks += wish.get("blocks", [])
        if "raise" in wish:
            raise ValueError(wish["raise"])
        if wish.get("skip"):
            return StepResult()
        if "tell" in wish:
            ctx.blocks.append({"type": "custom.told", "data": {"auth": ctx.auth, "origin": ctx.origin}})
        try:
            result = await ctx.next()
        except LookupError as error:
            note(wish, f"step {ctx.step_index} caught {error}")
            return StepResult(metadata={"caught": str(error)})
        ctx.tool_catalog.clear()
        names = ",".join(call["name"] for call in result.tool_calls)
        note(wish, f"step {ctx.step_index} out [{names}]")
        return result

    async def seen(ctx: ToolCallContext) -> Any:
        result = await ctx.next()
        if not ctx.args.get("seen") or ctx.message is None:
            return result
        return {**result.output, "seen": {"toolCallId": ctx.tool_call_id, "message": ctx.message.to_wire()}}

    async def turn(ctx: TurnContext) -> Any:
        wish = ctx.event.input if isinstance(ctx.event.input, dict) else {}
        note(wish, "turn in")
        try:
            answer = await ctx.next()
        except ValueError as error:
            note(wish, f"turn failed: {error}")
            raise
        note(wish, "turn out")
        return {**answer, "turn": ctx.turn_id} if isinstance(answer, dict) else answer

    api.pipeline.register("step", menu)
    api.pipeline.register("turn", turn)
    api.pipeline.register("toolCall", seen)
