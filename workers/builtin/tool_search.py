"""Built-in extension ``tool-search``: hides a large catalog behind a search tool.

The tools that a search has found are shown from the next Step on.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from pydantic.alias_generators import to_camel

from goondan_tasks.extension_api import CatalogItem, ExtensionApi, StepContext, StepResult
from goondan_tasks.tool_api import JsonObject, ToolContext

#: inside the middlewares that change the catalog, so that it searches their result
PRIORITY = 100

#: how much of a tool's description is searched and returned
DESCRIPTION_CHARACTERS = 400


class ToolSearchConfig(BaseModel):
    """The extension's config."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)

    tool_name: str = "tool-search__search"
    max_results: PositiveInt = 10
    min_query_length: PositiveInt = 1
    #: whether found tools stay visible in the instance's later Turns
    persist_selection: bool = True
    #: globs of tools that are visible without a search
    always_shown: tuple[str, ...] = Field(default=(), strict=False)


class ToolSearch:
    """The search of one agent. Its state is kept per instance and shared by all workers."""

    def __init__(self, api: ExtensionApi, config: ToolSearchConfig) -> None:
        self._state = api.state
        self._config = config

    async def narrow(self, ctx: StepContext) -> StepResult:
        """Store the Step's catalog for searches, and show only the tools found so far."""
        offered = [item for item in ctx.tool_catalog if item.name != self._config.tool_name]
        await self._state.set("catalog", [_described(item) for item in offered])
        found = await self._found(ctx.turn_id)
        ctx.tool_catalog = [item for item in ctx.tool_catalog if self._is_shown(item.name, found)]
        return await ctx.next()

    async def search(self, ctx: ToolContext, input: JsonObject) -> JsonObject:
        """Return the tools whose name or description contains every word of the query."""
        # JSON Schema counts 5.0 as an integer
        limit = max(1, min(int(input.get("limit", self._config.max_results)), self._config.max_results))
        catalog = await self._state.get("catalog", [])
        results = _matching(catalog, input["query"])[:limit]
        for result in results:
            await self._state.set(f"{self._prefix(ctx.turn_id)}{result['name']}", True)
        found = await self._found(ctx.turn_id)
        return {"query": input["query"], "results": results, "selectedTools": sorted(found)}

    def item(self) -> JsonObject:
        """Return the search tool as the model sees it."""
        config = self._config
        query = {
            "type": "string",
            "minLength": config.min_query_length,
            "description": "Words that the tool's name or description has",
        }
        limit = {"type": "integer", "description": f"How many to return, {config.max_results} at most"}
        return {
            "name": config.tool_name,
            "description": "Find tools. What is found can be called from the next step on.",
            "parameters": {
                "type": "object",
                "properties": {"query": query, "limit": limit},
                "required": ["query"],
                "additionalProperties": False,
            },
        }

    async def _found(self, turn_id: str) -> set[str]:
        prefix = self._prefix(turn_id)
        return {key.removeprefix(prefix) for key in await self._state.keys(prefix)}

    def _is_shown(self, name: str, found: set[str]) -> bool:
        config = self._config
        is_always_shown = any(fnmatchcase(name, glob) for glob in config.always_shown)
        return name == config.tool_name or name in found or is_always_shown

    def _prefix(self, turn_id: str) -> str:
        return "selected::" if self._config.persist_selection else f"selected:{turn_id}:"


def _described(item: CatalogItem) -> JsonObject:
    description = (item.description or "")[:DESCRIPTION_CHARACTERS]
    return {"name": item.name, "description": description} if description else {"name": item.name}


def _matching(catalog: Sequence[JsonObject], query: str) -> list[JsonObject]:
    """Return the matching tools; those that match by name alone come first."""
    words = query.lower().split()

    def has_all(text: str) -> bool:
        return all(word in text.lower() for word in words)

    found = [tool for tool in catalog if has_all(f"{tool['name']} {tool.get('description', '')}")]
    return sorted(found, key=lambda tool: not has_all(tool["name"]))


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register the search tool and the step middleware that narrows the catalog."""
    search = ToolSearch(api, ToolSearchConfig.model_validate(config))
    api.tools.register(search.item(), search.search, policy={"idempotent": True})
    api.pipeline.register("step", search.narrow, PRIORITY)
