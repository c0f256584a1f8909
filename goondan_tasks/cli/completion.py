"""What the shell completes: agents, their tools and recent calls, as the bundle and Redis have them.

A completion only reads, runs no code of the bundle and does not wait for Redis: what cannot be read is not
suggested. Everything is imported when it is asked for, because every command declares its completions.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from broker_config.settings import Settings

#: how many calls are suggested
_CALLS = 30


def complete_agent(ctx: typer.Context) -> list[str]:
    """Suggest agents."""
    return list(_tools_by_agent(ctx))


def complete_tool(ctx: typer.Context) -> list[str]:
    """Suggest the tools of the agent that stands before; without one, those of all."""
    tools, agent = _tools_by_agent(ctx), ctx.params.get("agent")
    if isinstance(agent, str):
        return list(tools.get(agent, ()))
    return list(dict.fromkeys(tool for some in tools.values() for tool in some))


def complete_call(ctx: typer.Context) -> list[tuple[str, str]]:
    """Suggest the ids of the most recent calls, each with what it is."""
    from goondan_tasks.client import Client
    from goondan_tasks.errors import GoondanError

    with suppress(GoondanError, ValueError), Client(_settings(ctx)) as client:
        calls = client.calls(None, _CALLS)
        return [(one.id, f"{one.call.agent_name} {one.call.tool_name} {one.status}") for one in calls]
    return []


def _tools_by_agent(ctx: typer.Context) -> dict[str, Sequence[str]]:
    with suppress(ValueError):
        settings = _settings(ctx)
        # the tools of extensions, and typed ones, are known from workers alone
        return {**dict(_declared(settings)), **dict(_announced(settings))}
    return {}


def _declared(settings: "Settings") -> Iterator[tuple[str, Sequence[str]]]:
    from goondan_tasks.bundle.bundle import inspect_resources
    from goondan_tasks.cli.options import this_bundle
    from goondan_tasks.errors import ConfigError

    with suppress(ConfigError, OSError):
        path = settings.bundle or this_bundle()
        bundle, _, scope = inspect_resources(path, import_entries=False, import_typed=False)
        for agent in scope.own.of_kind("Agent"):
            yield agent.name, tuple(bundle.bound_tools(agent.name)) if bundle else ()


def _announced(settings: "Settings") -> Iterator[tuple[str, Sequence[str]]]:
    from redis.exceptions import RedisError

    from broker_config.connections import connect
    from broker_config.keys import Keys
    from goondan_tasks.agent_registry import AgentRegistry

    with suppress(RedisError, ValueError), connect(settings.redis_url, name="goondan-completion") as redis:
        for record in AgentRegistry(redis, Keys(settings.namespace)).agents().values():
            yield record.name, [item["name"] for item in record.catalog]


def _settings(ctx: typer.Context) -> "Settings":
    """Return the settings with the options that stand before; raises SettingsError, a ValueError."""
    from broker_config.settings import Settings

    given = {name: ctx.params.get(name) for name in ("redis_url", "bundle", "swarm", "workspace")}
    return Settings.load(**given, connect_timeout_seconds=0)
