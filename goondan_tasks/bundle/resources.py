"""The resources of a bundle as declared in YAML (001 §12, 003 §2 and §4; 000 §7.9; DESIGN §3).

Tool, Agent, Swarm, Extension, Package, OAuthApp, Model, Schedule, Connector and Connection run.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, WrapValidator

from goondan_tasks.bundle.connection_spec import ConnectionResource, ConnectorResource
from goondan_tasks.bundle.fields import (
    Dependencies,
    ExportName,
    Items,
    NonEmpty,
    OneRef,
    OneUse,
    Positive,
    Rate,
    Requirement,
    ResourceModel,
    RunSeconds,
    Seconds,
    ValueSource,
    Variables,
)
from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource
from goondan_tasks.bundle.resource import Resource
from goondan_tasks.bundle.schedule_spec import ScheduleSpec
from goondan_tasks.bundle.urls import ServerUrl
from goondan_tasks.contract.failure import DEFAULT_MESSAGE_LIMIT
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schedules import Schedule

DEFAULT_SWARM = "default"
#: as a Tool's exports: those that the functions of its entry declare
AUTO = "auto"


class Retry(ResourceModel):
    """Retries of a failed run; for idempotent exports only."""

    max: Positive
    #: before the first retry; doubled before each further one
    backoff_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    #: the error codes to retry; empty means all
    codes: Items[NonEmpty] = ()


class RunPolicy(ResourceModel):
    """How an export is run (DESIGN §3, our fields). ``None`` means the Tool's value, or else the default."""

    timeout_seconds: RunSeconds | None = None
    idempotent: bool | None = None
    max_attempts: Positive | None = None
    retry: Retry | None = None
    isolation: Literal["process"] | None = None
    memory_mb: Positive | None = None
    #: whether programs and an isolated handler are cut off from other files, processes and the network
    sandbox: Literal[True, False, "strict"] | None = None
    #: variables for programs and isolated handlers, added to a minimal environment
    env: Variables | None = None
    max_concurrency: Positive | None = None
    rate_limit: Rate | None = None
    #: the arguments that make two calls the same
    idempotency_key: Annotated[tuple[NonEmpty, ...], Field(strict=False, min_length=1)] | None = None
    #: whether calls run one at a time per instance
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
    #: the Python packages that the entry imports
    requirements: Items[Requirement] = ()
    error_message_limit: Positive = DEFAULT_MESSAGE_LIMIT
    #: empty for ``auto``, until they are read from the entry
    exports: Annotated[
        tuple[ToolExport, ...],
        Field(strict=False, min_length=1),
        WrapValidator(
            lambda exports, check: () if exports == AUTO else check(exports),
            json_schema_input_type=Literal["auto"] | Annotated[tuple[ToolExport, ...], Field(min_length=1)],
        ),
    ]


class ToolResource(Resource):
    kind: Literal["Tool"]
    spec: ToolSpec


class ModelConfiguration(ResourceModel):
    """The model that an Agent thinks with."""

    model_ref: OneRef
    #: of each request, such as ``temperature`` and ``maxTokens``; they override the Model's ``options``
    params: JsonObject = Field(default_factory=dict)
    #: Models to ask, in this order, when one cannot be reached or is over its limits
    fallback_refs: Items[OneRef] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the Models, in the order in which they are asked."""
        return tuple(ref.name for ref in (self.model_ref, *self.fallback_refs))


class Prompts(ResourceModel):
    """An Agent's prompts, in the spellings of all versions of the specification."""

    system_prompt: str | None = None
    system: str | None = None
    system_ref: str | None = None


class AllowedFiles(ResourceModel):
    """Globs of files; an empty list allows nothing."""

    files: Items[NonEmpty] = ()


class AgentChangesets(ResourceModel):
    """What an Agent may change, within what its Swarm allows."""

    allowed: AllowedFiles = Field(default_factory=AllowedFiles)


class AgentSpec(ResourceModel):
    """What an Agent may use, and how it runs."""

    configuration: ModelConfiguration | None = Field(default=None, alias="modelConfig")
    prompts: Prompts | None = None
    prompt: Prompts | None = None
    tools: Items[OneUse] = ()
    extensions: Items[OneUse] = ()
    required_tools: Items[NonEmpty] = ()
    #: a Python file with ``handle``, which handles the Agent's events
    entry: NonEmpty | None = None
    idempotent: bool = False
    workdir: Literal["shared", "local"] = "shared"
    #: for all its tools; a tool's own variables override them
    env: Variables = Field(default_factory=dict)
    #: ``None`` allows what its Swarm allows
    changesets: AgentChangesets | None = None
    #: the JSON Schema of answers of an Agent that thinks
    output_schema: JsonObject | None = None


class AgentResource(Resource):
    kind: Literal["Agent"]
    spec: AgentSpec = Field(default_factory=AgentSpec)

    @property
    def thinks(self) -> bool:
        """Whether workers handle its events with its model: it has one, but no entry."""
        return not self.is_v1 and self.spec.configuration is not None and self.spec.entry is None

    @property
    def handles_events(self) -> bool:
        """Whether workers handle its events, with its entry or its model."""
        return self.spec.entry is not None or self.thinks


class ToolCallPolicy(ResourceModel):
    """Which tool calls the Swarm allows (003 §7.1)."""

    allow: Literal["catalog", "registry"] = "catalog"
    #: globs of tool names whose calls wait for a person's approval
    approval: Items[NonEmpty] = ()


class ChangesetPolicy(ResourceModel):
    """Whether agents may propose changes to the bundle."""

    enabled: bool = False
    apply_at: Items[NonEmpty] = ("step.config",)
    allowed: AllowedFiles = Field(default_factory=AllowedFiles)
    emit_revision_changed_event: bool = False
    #: whether agents may also change policies: see :mod:`goondan_tasks.changesets.check`
    allow_policy_changes: bool = False


class LifecyclePolicy(ResourceModel):
    ttl_seconds: Seconds | None = None
    gc_grace_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


class ShutdownPolicy(ResourceModel):
    grace_period_seconds: Seconds | None = None


class SpawnPolicy(ResourceModel):
    """Where instances may work that agents spawn with a ``cwd``."""

    #: below the spawner's own workdir, or anywhere below the workspace's instances
    cwd: Literal["workdir", "instances"] = "workdir"


class BudgetPolicy(ResourceModel):
    """How many tokens an agent that thinks may use, input and output together."""

    tokens_per_turn: Positive | None = None
    tokens_per_instance: Positive | None = None


class SwarmPolicy(ResourceModel):
    max_steps_per_turn: Positive = 32
    budget: BudgetPolicy = Field(default_factory=BudgetPolicy)
    tool_calls: ToolCallPolicy = Field(default_factory=ToolCallPolicy)
    changesets: ChangesetPolicy = Field(default_factory=ChangesetPolicy)
    lifecycle: LifecyclePolicy = Field(default_factory=LifecyclePolicy)
    shutdown: ShutdownPolicy = Field(default_factory=ShutdownPolicy)
    spawn: SpawnPolicy = Field(default_factory=SpawnPolicy)


class SwarmSpec(ResourceModel):
    """Agents that work together, and the one that gets work from outside."""

    entry_agent: OneRef
    agents: Annotated[tuple[OneRef, ...], Field(strict=False, min_length=1)]
    instance_key: NonEmpty | None = None
    policy: SwarmPolicy = Field(default_factory=SwarmPolicy)


class SwarmResource(Resource):
    kind: Literal["Swarm"]
    spec: SwarmSpec


class ExtensionSpec(ResourceModel):
    """A Python file with ``register(api)``, and its configuration."""

    entry: NonEmpty
    config: JsonObject = Field(default_factory=dict)


class ExtensionResource(Resource):
    kind: Literal["Extension"]
    spec: ExtensionSpec


class PackageSpec(ResourceModel):
    """The bundle as a package that can be published and depended on."""

    version: NonEmpty | None = None
    description: str | None = None
    license: str | None = None
    access: NonEmpty | None = None
    #: versions by package name; YAML may have a list of ``{name, version}``
    dependencies: Dependencies = Field(default_factory=dict)
    #: the Python packages that its entries import
    requirements: Items[Requirement] = ()
    values: JsonObject = Field(default_factory=dict)
    dist: Items[NonEmpty] = ()


class PackageResource(Resource):
    kind: Literal["Package"]
    spec: PackageSpec = Field(default_factory=PackageSpec)


class ModelSpec(ResourceModel):
    """A language model behind an API (001 §12.2); the last five fields are ours."""

    #: as the library of the extra ``models`` names it: ``openai``, ``openai-chat``, ``anthropic``, …
    provider: NonEmpty
    model: NonEmpty
    api_key: ValueSource | None = None
    #: the URL of a server with the provider's protocol, such as vLLM or Ollama
    base_url: ServerUrl | None = None
    #: the defaults of ``modelConfig.params``
    options: JsonObject = Field(default_factory=dict)
    #: concurrent requests of all workers
    max_concurrency: Positive | None = None
    #: requests of all workers
    rate_limit: Rate | None = None
    #: input and output tokens of all workers
    tokens_per_minute: Positive | None = None
    #: the limit of one request
    timeout_seconds: RunSeconds = 120.0
    #: whether the model looks at images; by default as the library knows
    images: bool | None = None


class ModelResource(Resource):
    kind: Literal["Model"]
    spec: ModelSpec


class ScheduleResource(Resource):
    kind: Literal["Schedule"]
    spec: ScheduleSpec

    def record(self, owner: str) -> Schedule:
        """Return the schedule as it is kept in Redis, of the bundle in the workspace ``owner``."""
        spec = self.spec
        fields = spec.model_dump(exclude={"agent_ref"}, exclude_none=True)
        return Schedule(name=self.name, owner=owner, agent=spec.agent_ref.name, **fields)


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
    "Schedule": ScheduleResource,
}
