import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from goondan_tasks.authoring.agent_api import AgentContext, ToolCaller
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.messages import AgentEvent, JsonObject, Message


def context() -> AgentContext:
    async def think(_: AgentContext, messages: Sequence[JsonObject | Message] | None) -> Any:
        return messages

    unused: Any = None
    return AgentContext(
        agent_name="author",
        instance_key="i",
        turn_id="t",
        trace_id="0" * 32,
        correlation_id="c",
        event=cast(AgentEvent, unused),
        workdir=Path(),
        logger=structlog.get_logger(),
        runtime=unused,
        progress=unused,
        tools=cast(ToolCaller, unused),
        _think=think,
    )


def test_unawaited_thinking_is_handler_error() -> None:
    ctx = context()
    thought = ctx.think([])
    with pytest.raises(HandoffError, match=r"before ctx\.think had begun") as raised:
        ctx.require_thoughts()
    assert raised.value.suggestion.startswith("Write `await ctx.think(")
    assert asyncio.run(thought) == []
    ctx.require_thoughts()


def test_concurrent_thinkings_are_fine_once_awaited() -> None:
    ctx = context()

    async def handle() -> list[Any]:
        return [*await asyncio.gather(asyncio.create_task(ctx.think([])), ctx.think())]

    assert asyncio.run(handle()) == [[], None]
    ctx.require_thoughts()
