"""Tools that overwrite the records of calls of their own Turn in Redis, as another program might."""

import os
import time

from redis import Redis

from goondan_tasks.contract.names import call_identity
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler

#: how often a call looks whether it may end, in seconds
PAUSE_SECONDS = 0.05


def damage(ctx: ToolContext, input: JsonObject) -> JsonObject:
    redis = _redis()
    for name in input["toolCallIds"]:
        call_id = call_identity(ctx.agent_name, ctx.instance_key, ctx.turn_id, str(name))
        redis.set(f"goondan:call:{call_id}", "overwritten")
    return input


async def damage_on_the_loop(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return damage(ctx, input)


def hold(ctx: ToolContext, input: JsonObject) -> JsonObject:
    redis = _redis()
    damage(ctx, input)
    redis.sadd("held", str(input["until"]))
    while not redis.exists(str(input["until"])) and not ctx.cancelled:
        time.sleep(PAUSE_SECONDS)
    return input


def echo(ctx: ToolContext, input: JsonObject) -> JsonObject:
    return input


def _redis() -> Redis:
    return Redis.from_url(os.environ["GOONDAN_REDIS_URL"])


handlers: dict[str, ToolHandler] = {
    "damage": damage,
    "damage-on-the-loop": damage_on_the_loop,
    "hold": hold,
    "echo": echo,
}
