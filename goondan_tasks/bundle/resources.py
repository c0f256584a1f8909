"""The resources of a bundle as their YAML declares them (001 §12, 003 §2 and §4; DESIGN §3).

Tool, Agent, Swarm, Extension, Package and OAuthApp run. Model, Connector and Connection are checked
and kept.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from goondan_tasks.bundle.fields import (
    Dependencies,
    ExportName,
    Items,
    NonEmpty,
    OneRef,
    OneUse,
    Positive,
    Rate,
    ResourceModel,
    RunSeconds,
    Seconds,
)
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.oauth_fields import OAuthAppSpec
from goondan_tasks.bundle.values import ValueSource
from goondan_tasks.messages import JsonObject

API_VERSION = "goondan.ai/v1"
#: the documents of the first age, whose resources stand beside today's (DESIGN §6)
V1_API_VERSION = "agents.example.io/v1alpha1"


class Metadata(ResourceModel):
    """What every resource says of itself."""

    name: NonEmpty
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Resource(ResourceModel):
    """A document of the bundle."""

    api_version: Literal["goondan.ai/v1", "agents.example.io/v1alpha1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        """The resource's own name."""
        return self.metadata.name

    @property
    def is_v1(self) -> bool:
        """Whether it is of the first age: its code gets the older context and api (002)."""
        return self.api_version == V1_API_VERSION


class Retry(ResourceModel):
    """How often a failed run is tried again, and after what. Only for what is idempotent."""

    max: Positive
    #: before the first retry; doubled for each one more
    backoff_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    #: the error codes that are tried again; empty means every one
    codes: Items[NonEmpty] = ()


class RunPolicy(ResourceModel):
    """How an export is run (DESIGN §3, our fields). ``None`` takes the Tool's value, then the default."""

    timeout_seconds: RunSeconds | None = None
    idempotent: bool | None = None
    max_attempts: Positive | None = None
    retry: Retry | None = None
    isolation: Literal["process"] | None = None
    memory_mb: Positive | None = None
    max_concurrency: Positive | None = None
    rate_limit: Rate | None = None
    #: the arguments that make two calls the same one
    idempotency_key: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)] | None = None
    #: one at a time per instance
    serial: bool | None = None
    requires_approval: bool | None = None


class ToolExport(RunPolicy):
    """One function that the model may call (003 §4.1)."""

    name: ExportName
    description: str | None = None
    parameters: JsonObject | None = None


class ToolSpec(RunPolicy):
    """An entry file, its exports, and the defaults of their run policies (003 §2.2)."""

    entry: NonEmpty
    error_message_limit: Positive = 1000
    exports: Annotated[tuple[ToolExport, ...], Field(strict=False, min_length=1)]


class ToolResource(Resource):
    """A Tool."""

    kind: Literal["Tool"]
    spec: ToolSpec


class ModelConfiguration(ResourceModel):
    """The model that an Agent's brain calls; nothing here is used by workers."""

    model_ref: OneRef
    params: JsonObject = Field(default_factory=dict)


class Prompts(ResourceModel):
    """An Agent's prompts, in the spellings of the different ages of the documents."""

    system_prompt: str | None = None
    system: str | None = None
    system_ref: str | None = None


class AllowedFiles(ResourceModel):
    """Globs of files; an empty list allows nothing."""

    files: Items[NonEmpty] = ()


class AgentChangesets(ResourceModel):
    """What an Agent may change, of what its Swarm allows."""

    allowed: AllowedFiles = Field(default_factory=AllowedFiles)


class AgentSpec(ResourceModel):
    """What an Agent may use, and how it runs."""

    configuration: ModelConfiguration | None = Field(default=None, alias="modelConfig")
    prompts: Prompts | None = None
    prompt: Prompts | None = None
    tools: Items[OneUse] = ()
    extensions: Items[OneUse] = ()
    required_tools: Items[NonEmpty] = ()
    #: a Python file with ``handle``, which is the Agent's own brain
    entry: NonEmpty | None = None
    idempotent: bool = False
    workdir: Literal["shared", "local"] = "shared"
    #: without it, whatever its Swarm allows
    changesets: AgentChangesets | None = None


class AgentResource(Resource):
    """An Agent."""

    kind: Literal["Agent"]
    spec: AgentSpec = Field(default_factory=AgentSpec)


class ToolCallPolicy(ResourceModel):
    """Which tool calls the Swarm allows (003 §7.1)."""

    allow: Literal["catalog", "registry"] = "catalog"
    #: globs of tool names that wait for a person's approval
    approval: Items[NonEmpty] = ()


class ChangesetPolicy(ResourceModel):
    """Whether agents may propose changes of the bundle."""

    enabled: bool = False
    apply_at: Items[NonEmpty] = ("step.config",)
    allowed: AllowedFiles = Field(default_factory=AllowedFiles)
    emit_revision_changed_event: bool = False
    #: whether agents may also change what protects: see :mod:`goondan_tasks.changesets.check`
    allow_policy_changes: bool = False


class LifecyclePolicy(ResourceModel):
    """How long instances live."""

    ttl_seconds: Seconds | None = None
    gc_grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class ShutdownPolicy(ResourceModel):
    """How long running work may take to end."""

    grace_period_seconds: Seconds | None = None


class SwarmPolicy(ResourceModel):
    """The rules of a Swarm."""

    max_steps_per_turn: Positive = 32
    tool_calls: ToolCallPolicy = Field(default_factory=ToolCallPolicy)
    changesets: ChangesetPolicy = Field(default_factory=ChangesetPolicy)
    lifecycle: LifecyclePolicy = Field(default_factory=LifecyclePolicy)
    shutdown: ShutdownPolicy = Field(default_factory=ShutdownPolicy)


class SwarmSpec(ResourceModel):
    """The agents that work together, and where work from outside arrives."""

    entry_agent: OneRef
    agents: Annotated[tuple[OneRef, ...], Field(strict=False, min_length=1)]
    instance_key: NonEmpty | None = None
    policy: SwarmPolicy = Field(default_factory=SwarmPolicy)


class SwarmResource(Resource):
    """A Swarm."""

    kind: Literal["Swarm"]
    spec: SwarmSpec


class ExtensionSpec(ResourceModel):
    """A Python file with ``register(api)``, and what it is configured with."""

    entry: NonEmpty
    config: JsonObject = Field(default_factory=dict)


class ExtensionResource(Resource):
    """An Extension."""

    kind: Literal["Extension"]
    spec: ExtensionSpec


class PackageSpec(ResourceModel):
    """The bundle as something that is published and depended on."""

    version: NonEmpty | None = None
    description: str | None = None
    license: str | None = None
    access: NonEmpty | None = None
    #: versions by package name; also written as a list of ``{name, version}``
    dependencies: Dependencies = Field(default_factory=dict)
    values: JsonObject = Field(default_factory=dict)
    dist: Items[NonEmpty] = ()


class PackageResource(Resource):
    """The Package that the bundle is."""

    kind: Literal["Package"]
    spec: PackageSpec = Field(default_factory=PackageSpec)


class KeptSpec(ResourceModel):
    """A specification whose other fields belong to programs that are not part of this one."""

    model_config = ConfigDict(extra="allow")


class ModelSpec(KeptSpec):
    """A language model."""

    provider: NonEmpty
    api_key: ValueSource | None = None


class ModelResource(Resource):
    """A Model."""

    kind: Literal["Model"]
    spec: ModelSpec


class ConnectorEvent(KeptSpec):
    """A kind of event that a Connector makes, and the properties by which rules route it."""

    name: NonEmpty
    properties: JsonObject = Field(default_factory=dict)


class ConnectorSpec(KeptSpec):
    """A file that turns the outside world's events into AgentEvents."""

    entry: NonEmpty
    events: Items[ConnectorEvent] = ()


class ConnectorResource(Resource):
    """A Connector."""

    kind: Literal["Connector"]
    spec: ConnectorSpec


class IngressMatch(ResourceModel):
    """What an event must be for a rule to apply; all of it."""

    event: NonEmpty | None = None
    properties: JsonObject = Field(default_factory=dict)


class IngressRoute(ResourceModel):
    """The agent and the instance that an event goes to; by default the Swarm's entry agent."""

    agent_ref: OneRef | None = None
    instance_key: NonEmpty | None = None
    #: the event's property that is the key, behind the prefix
    instance_key_property: NonEmpty | None = None
    instance_key_prefix: str | None = None

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.instance_key is not None and self.instance_key_property is not None:
            raise FieldError(
                "'instanceKey' and 'instanceKeyProperty' exclude each other", "Keep one of the two."
            )
        return self


class IngressRule(ResourceModel):
    """Where events go; the first rule that matches counts, and one without ``match`` matches all."""

    match: IngressMatch = Field(default_factory=IngressMatch)
    route: IngressRoute = Field(default_factory=IngressRoute)


class Ingress(KeptSpec):
    """How a Connection routes events."""

    rules: Items[IngressRule] = ()


class ConnectionSpec(KeptSpec):
    """A Connector tied to a Swarm."""

    connector_ref: OneRef
    swarm_ref: OneRef | None = None
    ingress: Ingress = Field(default_factory=Ingress)


class ConnectionResource(Resource):
    """A Connection."""

    kind: Literal["Connection"]
    spec: ConnectionSpec


class OAuthAppResource(Resource):
    """An OAuthApp."""

    kind: Literal["OAuthApp"]
    spec: OAuthAppSpec


RESOURCE_MODELS: Mapping[str, type[Resource]] = {
    "Tool": ToolResource,
    "Agent": AgentResource,
    "Swarm": SwarmResource,
    "Extension": ExtensionResource,
    "Package": PackageResource,
    "Model": ModelResource,
    "Connector": ConnectorResource,
    "Connection": ConnectionResource,
    "OAuthApp": OAuthAppResource,
}
