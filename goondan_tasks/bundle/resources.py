"""The resources of a bundle as declared in YAML (001 §12, 003 §2 and §4; 000 §7.9; DESIGN §3).

Tool, Agent, Swarm, Extension, Package, OAuthApp, Model, Schedule, Connector and Connection run.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, WrapValidator, model_validator

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
    Text,
    Texts,
    ValueSource,
    Variables,
    checked,
)
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.schedule_spec import ScheduleSpec
from goondan_tasks.contract.failure import DEFAULT_MESSAGE_LIMIT
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.machine.process import is_loopback

API_VERSION = "goondan.ai/v1"
#: the older version, whose resources may be mixed with current ones (DESIGN §6)
V1_API_VERSION = "agents.example.io/v1alpha1"
DEFAULT_SWARM = "default"
#: as a Tool's exports: those that the functions of its entry declare
AUTO = "auto"

#: RFC 6749 §3.3
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]*)+")
#: text with at least one {claim}
_TEMPLATE = re.compile(r"[^{}]*(\{[^{}\s]+\}[^{}]*)+")
_NO_URL_CHARACTER = re.compile(r"[\x00-\x20\x7f-\uffff\\]")


def _check_server_url(url: str) -> str:
    """Check the URL of a model's server; plain http is allowed, for private networks."""
    parts = _split(url)
    if parts.scheme not in ("http", "https"):
        raise FieldError(
            f"'{url[:80]}' must be an http or https URL", "Write it as in http://127.0.0.1:8000/v1."
        )
    if parts.username is not None or parts.password is not None:
        raise FieldError("a URL must not contain a password", "Write the key under 'apiKey'.")
    return url


class Metadata(ResourceModel):
    name: NonEmpty
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Resource(ResourceModel):
    api_version: Literal["goondan.ai/v1", "agents.example.io/v1alpha1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_v1(self) -> bool:
        """Whether it is of the older version, so that its code gets the older context and api (002)."""
        return self.api_version == V1_API_VERSION


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


class KeptSpec(ResourceModel):
    """A spec whose further fields belong to programs outside this project."""

    model_config = ConfigDict(extra="allow")


class ModelSpec(ResourceModel):
    """A language model behind an API (001 §12.2); the last five fields are ours."""

    #: as the library of the extra ``models`` names it: ``openai``, ``openai-chat``, ``anthropic``, …
    provider: NonEmpty
    model: NonEmpty
    api_key: ValueSource | None = None
    #: the URL of a server with the provider's protocol, such as vLLM or Ollama
    base_url: Annotated[str, AfterValidator(_check_server_url)] | None = None
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


class DeclaredEvent(KeptSpec):
    """A type of event that a Connector emits, and the properties that rules can match."""

    name: NonEmpty
    properties: JsonObject = Field(default_factory=dict)


class ConnectorSpec(KeptSpec):
    """A file that turns outside events into AgentEvents."""

    entry: NonEmpty
    events: Items[DeclaredEvent] = ()


class ConnectorResource(Resource):
    kind: Literal["Connector"]
    spec: ConnectorSpec


class IngressMatch(ResourceModel):
    """The event and properties to which a rule applies."""

    event: NonEmpty | None = None
    properties: JsonObject = Field(default_factory=dict)


class IngressRoute(ResourceModel):
    """The agent, by default the Swarm's entry agent, and the instance that an event goes to."""

    agent_ref: OneRef | None = None
    instance_key: NonEmpty | None = None
    #: the event's property that is the key; the prefix goes before it
    instance_key_property: NonEmpty | None = None
    instance_key_prefix: str | None = None

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if self.instance_key is not None and self.instance_key_property is not None:
            message = "'instanceKey' and 'instanceKeyProperty' exclude each other"
            raise FieldError(message, "Keep one of the two.")
        return self


class IngressRule(ResourceModel):
    """Where events go. The first matching rule counts; a rule without ``match`` matches all."""

    match: IngressMatch = Field(default_factory=IngressMatch)
    route: IngressRoute = Field(default_factory=IngressRoute)


class Ingress(KeptSpec):
    rules: Items[IngressRule] = ()


class VerifyWebhook(KeptSpec):
    """How a Connector knows that an event is genuine."""

    signing_secret: Text


class Verify(KeptSpec):
    webhook: VerifyWebhook | None = None


class ConnectionSpec(KeptSpec):
    """A Connector tied to a Swarm."""

    connector_ref: OneRef
    swarm_ref: OneRef | None = None
    #: what the Connector reads as ``ctx.config``
    config: Texts = Field(default_factory=dict)
    #: what it reads as ``ctx.secrets``; no environment has them
    secrets: Texts = Field(default_factory=dict)
    verify: Verify = Field(default_factory=Verify)
    ingress: Ingress = Field(default_factory=Ingress)


class ConnectionResource(Resource):
    kind: Literal["Connection"]
    spec: ConnectionSpec


class ScheduleResource(Resource):
    kind: Literal["Schedule"]
    spec: ScheduleSpec

    def record(self, owner: str) -> Schedule:
        """Return the schedule as it is kept in Redis, of the bundle in the workspace ``owner``."""
        spec = self.spec
        fields = spec.model_dump(exclude={"agent_ref"}, exclude_none=True)
        return Schedule(name=self.name, owner=owner, agent=spec.agent_ref.name, **fields)


def _check_url(url: str) -> str:
    """Check an endpoint's URL (RFC 6749 §3.1, §3.2 on fragments and TLS; RFC 8252 §8.3 on loopback)."""
    parts = _split(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        suggestion = "Write https://…; http is only for this machine (127.0.0.1)."
        raise FieldError(f"'{url[:80]}' must be an https URL", suggestion)
    if parts.username is not None or parts.password is not None:
        suggestion = "Write the client's id and secret under 'client'."
        raise FieldError("a URL must not contain a password", suggestion)
    if "#" in url:
        raise FieldError(f"'{url[:80]}' has a fragment", "Leave out the '#' and what follows it.")
    return url


def _check_base_url(url: str) -> str:
    if "?" in _check_url(url):
        raise FieldError(f"'{url[:80]}' has a query", "Leave out the '?' and what follows it.")
    return url


def _split(url: str) -> SplitResult:
    error = FieldError(f"'{url[:80]}' is not a URL", "Write it in full: https://host/path.")
    if _NO_URL_CHARACTER.search(url):
        raise error
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a port
    except ValueError as reason:
        raise error from reason
    if not parts.scheme or not parts.hostname:
        raise error
    return parts


EndpointUrl = Annotated[str, AfterValidator(_check_url)]
OAuthScope = Annotated[
    str, checked(_SCOPE.fullmatch, "a scope", "Write one scope per item, without spaces and quotes.")
]
UrlPath = Annotated[
    str, checked(_PATH.fullmatch, "a path", "Begin it with '/', such as /oauth/callback; no query.")
]
#: text with the provider's claims in braces
SubjectTemplate = Annotated[
    str,
    checked(
        _TEMPLATE.fullmatch,
        "a subject template",
        "Write the provider's claims in braces, such as slack:user:{team.id}:{authed_user.id}.",
    ),
]


class OAuthClient(ResourceModel):
    client_id: ValueSource
    client_secret: ValueSource


class OAuthEndpoints(ResourceModel):
    authorization_url: EndpointUrl | None = None
    token_url: EndpointUrl
    revoke_url: EndpointUrl | None = None
    user_info_url: EndpointUrl | None = None
    device_authorization_url: EndpointUrl | None = None


class OAuthRedirect(ResourceModel):
    """The URL to which the provider sends the user back."""

    callback_path: UrlPath
    #: comes before the path; by default ``GOONDAN_PUBLIC_URL``
    base_url: Annotated[str, AfterValidator(_check_base_url)] | None = None


class GoondanOptions(ResourceModel):
    """How a provider differs from others."""

    #: the subject that a token belongs to, built from the provider's claims
    subject: SubjectTemplate | None = None
    #: with ``subjectMode: global``: whether any account may give the first consent for the subject
    anyone: bool = False
    #: the provider's issuer identifier: every callback must name it in ``iss`` (RFC 9207)
    issuer: Annotated[str, AfterValidator(_check_url)] | None = None
    #: how the client authenticates (RFC 6749 §2.3.1); the specification has the secret in the form
    client_auth: Literal["client_secret_post", "client_secret_basic"] = "client_secret_post"


class OAuthOptions(ResourceModel):
    """Options of a provider: strings are added to the authorization URL's query, others are notes."""

    model_config = ConfigDict(extra="allow")

    goondan: GoondanOptions = Field(default_factory=GoondanOptions)

    @property
    def query(self) -> dict[str, str]:
        return {name: value for name, value in (self.model_extra or {}).items() if isinstance(value, str)}


class OAuthAppSpec(ResourceModel):
    """A provider, our client there, and whose tokens are requested."""

    provider: NonEmpty
    flow: Literal["authorizationCode", "deviceCode"]
    subject_mode: Literal["global", "user"]
    client: OAuthClient
    endpoints: OAuthEndpoints
    scopes: Annotated[tuple[OAuthScope, ...], Field(strict=False, min_length=1)]
    redirect: OAuthRedirect | None = None
    options: OAuthOptions = Field(default_factory=OAuthOptions)


class OAuthAppResource(Resource):
    kind: Literal["OAuthApp"]
    spec: OAuthAppSpec


def scopes_beyond(wanted: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted scopes that are not allowed, each once, in order."""
    known = set(allowed)
    return tuple(dict.fromkeys(scope for scope in wanted if scope not in known))


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


def swarm_in_workspace(swarms: Collection[str], swarm: str | None) -> str | None:
    """Return the Swarm whose name a folder's workspace has; ``None`` unless there are several.

    Without ``swarm`` it is ``default``, which :meth:`Bundle.swarm` chooses among several.
    """
    return (swarm or DEFAULT_SWARM) if len(swarms) > 1 else None
