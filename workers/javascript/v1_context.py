"""The v1 ToolContext in a host: its data, and the functions that it offers (002 §4.3)."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from goondan_tasks.authoring.v1_api import V1ToolContext
from goondan_tasks.contract.messages import JsonObject
from workers.javascript.host import Asked

_DATA = ("instance", "swarm", "agent", "turn", "step", "tool_catalog")


def v1_data(ctx: V1ToolContext) -> JsonObject:
    """Return the data of the context, which is sent with the order."""
    return {to_camel(name): plain(getattr(ctx, name)) for name in _DATA}


def plain(value: Any) -> Any:
    """Return a view or a resource as JSON with the specification's names, without absent fields."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if dataclasses.is_dataclass(value):
        shown = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {to_camel(name): plain(one) for name, one in shown if one is not None}
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def v1_asked(ctx: V1ToolContext) -> Asked:
    """Return the context's functions that a handler may ask for."""

    async def get_access_token(request: Any = None) -> Any:
        return plain(await ctx.oauth.get_access_token(request))

    async def emit(name: str, event: Any = None) -> None:
        ctx.events.emit(name, event)

    return {
        "oauth.getAccessToken": get_access_token,
        "swarmBundle.openChangeset": lambda request=None: ctx.swarm_bundle.open_changeset(request),
        "swarmBundle.commitChangeset": lambda *given: ctx.swarm_bundle.commit_changeset(*given),
        "swarmBundle.getActiveRef": lambda: ctx.swarm_bundle.get_active_ref(),
        "events.emit": emit,
    }
