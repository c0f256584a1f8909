"""The resources of the older version of the format, ``agents.example.io/v1alpha1`` (002 §2, §3).

They extend the current classes with what the older version adds or names differently. Fields without effect
are accepted with a warning (:mod:`goondan_tasks.bundle.bundle`). Our own fields are allowed too.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from goondan_tasks.bundle.fields import Items, KeptSpec, NonEmpty, OneRef, ResourceModel, Seconds, ValueSource
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.resource import Resource
from goondan_tasks.bundle.resources import (
    RESOURCE_MODELS,
    AgentResource,
    AgentSpec,
    ExtensionResource,
    ExtensionSpec,
    LifecyclePolicy,
    Prompts,
    SwarmPolicy,
    SwarmResource,
    SwarmSpec,
    ToolExport,
    ToolResource,
    ToolSpec,
)
from goondan_tasks.bundle.v1_connectors import V1ConnectionResource, V1ConnectorResource
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import SEPARATOR, SYSTEM_TOOL
from goondan_tasks.contract.wording import shown

_EXPORT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def _check_export_name(name: str) -> str:
    """Check the name of an export, which the model sees unchanged (002 §3.2; upper case is a warning)."""
    if name.startswith(SYSTEM_TOOL + SEPARATOR):
        reason, suggestion = f": '{SYSTEM_TOOL}{SEPARATOR}…' is reserved", "Give the export another name."
    elif SEPARATOR in name:
        reason, suggestion = f": names with '{SEPARATOR}' belong to goondan.ai/v1", "Use a dot instead."
    elif _EXPORT_NAME.fullmatch(name) is None:
        reason = " is not a valid name"
        suggestion = "Use lower-case letters, digits, '.', '_' and '-', such as slack.post-message."
    else:
        return name
    raise FieldError(f"'{name[:80]}'{reason}", suggestion, ConfigCode.INVALID_NAME)


def _check_runtime(runtime: Any) -> Any:
    if runtime not in ("node", "python"):
        suggestion = "Write 'runtime: node', or 'runtime: python' for a .py file."
        raise FieldError(f"the runtime {shown(runtime)} is not available", suggestion)
    return runtime


def _refuse_isolation(isolation: Any) -> None:
    if isolation is not None:
        message = "the older context needs its worker, and does not work in a separate process"
        raise FieldError(message, "Remove it, or rewrite the Tool for goondan.ai/v1.")


def _check_prompts(prompts: Prompts) -> Prompts:
    if prompts.system is not None and prompts.system_ref is not None:
        raise FieldError("'system' and 'systemRef' exclude each other", "Remove one of the two.")
    return prompts


#: ``python`` is ours; it has no effect, because the file decides
Runtime = Annotated[Literal["node", "python"], BeforeValidator(_check_runtime)]
#: isolation needs the current context
NoIsolation = Annotated[None, BeforeValidator(_refuse_isolation)]


class V1ExportAuth(ResourceModel):
    """The scopes to which an export's tokens are narrowed."""

    scopes: Items[NonEmpty] | None = None


class V1ToolAuth(V1ExportAuth):
    """The OAuthApp whose tokens a Tool requests."""

    oauth_app_ref: OneRef


class V1ToolExport(ToolExport):
    """A function that the model may call by exactly this name (002 §3.1)."""

    name: Annotated[str, AfterValidator(_check_export_name)]
    auth: V1ExportAuth | None = None
    isolation: NoIsolation = None


class V1ToolSpec(ToolSpec):
    """An entry file and its exports (002 §2.2)."""

    runtime: Runtime
    auth: V1ToolAuth | None = None
    isolation: NoIsolation = None
    exports: Annotated[tuple[V1ToolExport, ...], Field(strict=False, min_length=1)]


class V1ToolResource(ToolResource):
    """A Tool whose handlers get the older context."""

    spec: V1ToolSpec


class V1AgentSpec(AgentSpec):
    #: ``system`` or ``systemRef``
    prompts: Annotated[Prompts, AfterValidator(_check_prompts)] | None = None
    #: kept, without effect
    hooks: Items[JsonObject] = ()


class V1AgentResource(AgentResource):
    spec: V1AgentSpec = Field(default_factory=V1AgentSpec)


class V1LifecyclePolicy(LifecyclePolicy):
    #: kept, without effect
    auto_pause_idle_seconds: Seconds | None = None


class V1SwarmPolicy(SwarmPolicy):
    """The policy of a Swarm; the last three fields are kept, without effect."""

    lifecycle: V1LifecyclePolicy = Field(default_factory=V1LifecyclePolicy)
    #: events of one instance are always handled in order
    queue_mode: Literal["serial"] | None = None
    live_config: JsonObject | None = None
    retry: JsonObject | None = None
    timeout: JsonObject | None = None


class V1SwarmSpec(SwarmSpec):
    entry_agent: OneRef = Field(alias="entrypoint")
    policy: V1SwarmPolicy = Field(default_factory=V1SwarmPolicy)


class V1SwarmResource(SwarmResource):
    spec: V1SwarmSpec


class V1ExtensionSpec(ExtensionSpec):
    runtime: Runtime = "python"


class V1ExtensionResource(ExtensionResource):
    """An Extension that gets the older api."""

    spec: V1ExtensionSpec


class V1ModelSpec(KeptSpec):
    provider: NonEmpty
    api_key: ValueSource | None = None


class V1ModelResource(Resource):
    """A model that the Agent's producer calls; workers do not use it."""

    kind: Literal["Model"]
    spec: V1ModelSpec


#: the other kinds are the same in both versions
V1_RESOURCE_MODELS: Mapping[str, type[Resource]] = {
    **RESOURCE_MODELS,
    "Tool": V1ToolResource,
    "Agent": V1AgentResource,
    "Swarm": V1SwarmResource,
    "Extension": V1ExtensionResource,
    "Model": V1ModelResource,
    "Connector": V1ConnectorResource,
    "Connection": V1ConnectionResource,
}
