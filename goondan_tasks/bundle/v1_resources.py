"""The resources of the older version of the format, ``agents.example.io/v1alpha1`` (002 §2, §3).

They are the same Python classes as today's, with what the older documents add or call by another name;
what has no effect here is accepted and told as a warning (:mod:`goondan_tasks.bundle.v1_rules`). Our own
fields are allowed in them too.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from goondan_tasks.bundle.fields import Items, NonEmpty, OneRef, ResourceModel, Seconds
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.resources import (
    RESOURCE_MODELS,
    AgentResource,
    AgentSpec,
    ConnectionResource,
    ConnectionSpec,
    ConnectorResource,
    ConnectorSpec,
    ExtensionResource,
    ExtensionSpec,
    LifecyclePolicy,
    Prompts,
    Resource,
    SwarmPolicy,
    SwarmResource,
    SwarmSpec,
    ToolExport,
    ToolResource,
    ToolSpec,
)
from goondan_tasks.json_values import shown
from goondan_tasks.messages import JsonObject
from goondan_tasks.names import SEPARATOR, SYSTEM_TOOL

_EXPORT_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def _check_export_name(name: str) -> str:
    """Check the name of an export, which the model sees as it stands (002 §3.2; upper case is a warning)."""
    if name.startswith(SYSTEM_TOOL + SEPARATOR):
        message = f"'{name[:80]}': '{SYSTEM_TOOL}{SEPARATOR}…' is the system's own"
        raise FieldError(message, "Give the export another name.", ConfigCode.INVALID_NAME)
    if SEPARATOR in name:
        message = f"'{name[:80]}': names with '{SEPARATOR}' are those of goondan.ai/v1"
        raise FieldError(message, "Write a dot in its place.", ConfigCode.INVALID_NAME)
    if _EXPORT_NAME.fullmatch(name) is None:
        suggestion = "Use lower-case letters, digits, '.', '_' and '-', such as slack.post-message."
        raise FieldError(f"'{name[:80]}' is no valid name", suggestion, ConfigCode.INVALID_NAME)
    return name


def _check_runtime(runtime: Any) -> Any:
    if runtime != "python":
        suggestion = "Rewrite the entry as a .py file, and write 'runtime: python'."
        raise FieldError(f"no worker has the runtime {shown(runtime)}: workers run Python", suggestion)
    return runtime


def _refuse_isolation(isolation: Any) -> None:
    if isolation is not None:
        raise FieldError(
            "the older context reaches into its worker: it has no use in a process of its own",
            "Remove it, or rewrite the Tool for goondan.ai/v1.",
        )


def _check_prompts(prompts: Prompts) -> Prompts:
    if prompts.system is not None and prompts.system_ref is not None:
        raise FieldError("'system' and 'systemRef' exclude each other", "Remove one of the two.")
    return prompts


V1ExportName = Annotated[str, AfterValidator(_check_export_name)]
#: the documents' own value is ``node``
Runtime = Annotated[Literal["python"], BeforeValidator(_check_runtime)]


#: of today's tools only
NoIsolation = Annotated[None, BeforeValidator(_refuse_isolation)]


class V1ExportAuth(ResourceModel):
    """The scopes that an export's tokens are narrowed to."""

    scopes: Items[NonEmpty] | None = None


class V1ToolAuth(V1ExportAuth):
    """The OAuthApp whose tokens a Tool asks for."""

    oauth_app_ref: OneRef


class V1ToolExport(ToolExport):
    """One function that the model may call, under the name that stands here (002 §3.1)."""

    name: V1ExportName
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
    """What an Agent may use."""

    #: ``system`` or ``systemRef``
    prompts: Annotated[Prompts, AfterValidator(_check_prompts)] | None = None
    #: kept, without effect
    hooks: Items[JsonObject] = ()


class V1AgentResource(AgentResource):
    """An Agent."""

    spec: V1AgentSpec = Field(default_factory=V1AgentSpec)


class V1LifecyclePolicy(LifecyclePolicy):
    """How long instances live."""

    #: kept, without effect
    auto_pause_idle_seconds: Seconds | None = None


class V1SwarmPolicy(SwarmPolicy):
    """The rules of a Swarm; the last three are kept, without effect."""

    lifecycle: V1LifecyclePolicy = Field(default_factory=V1LifecyclePolicy)
    #: events of one instance are always handled in order
    queue_mode: Literal["serial"] | None = None
    live_config: JsonObject | None = None
    retry: JsonObject | None = None
    timeout: JsonObject | None = None


class V1SwarmSpec(SwarmSpec):
    """The agents that work together, and where work from outside arrives."""

    entry_agent: OneRef = Field(alias="entrypoint")
    policy: V1SwarmPolicy = Field(default_factory=V1SwarmPolicy)


class V1SwarmResource(SwarmResource):
    """A Swarm."""

    spec: V1SwarmSpec


class V1ExtensionSpec(ExtensionSpec):
    """A Python file with ``register(api)``, and what it is configured with."""

    runtime: Runtime = "python"


class V1ExtensionResource(ExtensionResource):
    """An Extension that gets the older api."""

    spec: V1ExtensionSpec


class V1ConnectorSpec(ConnectorSpec):
    """A file that turns the outside world's events into AgentEvents."""

    #: kept, unchecked
    events: Any = None


class V1ConnectorResource(ConnectorResource):
    """A Connector."""

    spec: V1ConnectorSpec


class V1ConnectionSpec(ConnectionSpec):
    """A Connector tied to a Swarm."""

    #: kept, unchecked
    ingress: Any = None


class V1ConnectionResource(ConnectionResource):
    """A Connection."""

    spec: V1ConnectionSpec


#: the other kinds are the same in both versions
V1_RESOURCE_MODELS: Mapping[str, type[Resource]] = {
    **RESOURCE_MODELS,
    "Tool": V1ToolResource,
    "Agent": V1AgentResource,
    "Swarm": V1SwarmResource,
    "Extension": V1ExtensionResource,
    "Connector": V1ConnectorResource,
    "Connection": V1ConnectionResource,
}
