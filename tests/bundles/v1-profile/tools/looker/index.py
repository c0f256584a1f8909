"""Tells what a handler of the older version sees (002 §4.3, §4.4)."""

import asyncio
import time
from dataclasses import asdict


EVER_HEARD = []


def seen(ctx):
    return {
        "instance": {"id": ctx.instance.id, "key": ctx.instance.key, "swarmName": ctx.instance.swarm_name},
        "dynamicTools": [tool.name for tool in ctx.instance.dynamic_tools],
        "swarm": ctx.swarm.metadata.name,
        "agent": ctx.agent.metadata.name,
        "modelRef": ctx.agent.spec.configuration.model_ref.name,
        "turn": {
            "id": ctx.turn.id,
            "instanceId": ctx.turn.instance_id,
            "agentName": ctx.turn.agent_name,
            "messages": list(ctx.turn.messages),
            "toolResults": {call_id: asdict(result) for call_id, result in ctx.turn.tool_results.items()},
            "origin": ctx.turn.origin,
            "auth": ctx.turn.auth,
            "metadata": ctx.turn.metadata,
        },
        "step": asdict(ctx.step),
        "catalog": {
            item.name: {
                "tool": item.tool and item.tool.metadata.name,
                "export": item.export and item.export.name,
                "source": item.source.to_wire(),
            }
            for item in ctx.tool_catalog
        },
        "workdir": str(ctx.workdir),
    }


def look(ctx, input):
    ctx.logger.info("looking", {"at": input.get("at")}, 5)
    heard = []
    ctx.events.on("turned", EVER_HEARD.append)
    ctx.events.emit("turned")
    ctx.events.once("seen", heard.append)
    ctx.events.emit("seen", {"by": "looker"})
    ctx.events.emit("seen", {"by": "nobody"})
    return {**seen(ctx), "heard": heard, "everHeard": len(EVER_HEARD)}


async def look_ahead(ctx, input):
    return seen(ctx)


class SlackApiError(Exception):
    code = "E_CHANNEL_NOT_FOUND"


def look_hard(ctx, input):
    raise SlackApiError("요청 실패: 채널을 찾을 수 없습니다 (channel_not_found)")


def look_long(ctx, input):
    while not ctx.cancelled:
        time.sleep(0.01)


async def look_out(ctx, input):
    ctx.progress(1, 2, "half")
    outcome = await asyncio.to_thread(ctx.run_process, ["pwd"])
    return {
        "pwd": outcome.stdout.strip(),
        "deadline": ctx.deadline.isoformat(),
        "id": ctx.tool_call_id,
        "runtime": ctx.runtime is not None,
        "cancelled": ctx.cancelled,
        "async": asdict(ctx.pending("job-1", {"half": "done"})),
    }


handlers = {
    "look.around": look,
    "look.ahead": look_ahead,
    "look.hard": look_hard,
    "look.long": look_long,
    "look.out": look_out,
}
