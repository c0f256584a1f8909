"""Loads and checks a bundle: valid resources with resolved references.

:func:`load_bundle` is for programs: of the entry files it imports only those with ``@tool`` functions, which
declare exports. :func:`inspect_bundle` is for people (``goondan validate``): it also reports warnings and
imports all entries. Both import in child processes.

The rules beyond the types of fields (000 §7.9 and §12.5.7, 002 §12.1, 003 §2.3, §4.2 and §13, DESIGN §3 and
§6) check the values in the YAML, not the validated resources, so that a type error hides no other finding.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from goondan_tasks.bundle.binding import (
    BASE_PACKAGE,
    BoundConnector,
    BoundExtension,
    BoundTool,
    Scope,
    base_package_root,
    bind_connector,
    bind_extensions,
    bind_tools,
    bound_exports,
    parameter_faults,
    tool_auth_faults,
)
from goondan_tasks.bundle.connection_spec import ConnectionResource, ConnectorResource
from goondan_tasks.bundle.connectors import connection_findings, connector_findings
from goondan_tasks.bundle.entries import (
    ENTRY,
    EXPORTS,
    Imports,
    Records,
    entry_findings,
    entry_path_findings,
    read_typed_inventory,
    text_file_findings,
)
from goondan_tasks.bundle.export_cache import ExportCache
from goondan_tasks.bundle.fields import Ref
from goondan_tasks.bundle.findings import (
    OLDER_FIELDS,
    BundleError,
    ConfigCode,
    Finding,
    in_order,
)
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.models import model_findings
from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource
from goondan_tasks.bundle.oauth_apps import oauth_app_findings
from goondan_tasks.bundle.references import (
    AGENTS,
    member_findings,
    members,
    ref_findings,
    ref_name,
    variable_findings,
)
from goondan_tasks.bundle.resource import Metadata, Resource
from goondan_tasks.bundle.resources import (
    DEFAULT_SWARM,
    AgentResource,
    ExtensionResource,
    ModelResource,
    PackageResource,
    ScheduleResource,
    SwarmResource,
    SwarmSpec,
    ToolResource,
)
from goondan_tasks.bundle.schedules import tool_findings
from goondan_tasks.bundle.workspaces import swarm_in_workspace
from goondan_tasks.contract.errors import AgentNotFoundError, ConfigError
from goondan_tasks.contract.names import SYSTEM_TOOL, folder_workspace
from goondan_tasks.contract.wording import FieldPath, hint, member
from goondan_tasks.machine import sandbox
from goondan_tasks.machine.javascript import is_javascript

_Kind = TypeVar("_Kind", bound=Resource)
_MODEL_REF: FieldPath = ("spec", "modelConfig", "modelRef")

#: fields of the older version without effect, and what to do instead
_WITHOUT_EFFECT: Mapping[str, Mapping[FieldPath, str]] = {
    "Agent": {("spec", "hooks"): "Write an Extension that registers with api.pipelines."},
    "Connector": {("spec", "egress"): "Remove it: answers are sent by tools."},
    "Connection": {("spec", "egress"): "Remove it: answers are sent by tools."},
    "Swarm": {
        ("spec", "policy", "liveConfig"): OLDER_FIELDS["liveConfig"],
        ("spec", "policy", "retry"): "Remove it: set 'retry' on a Tool or an export.",
        ("spec", "policy", "timeout"): "Remove it: set 'timeoutSeconds' on a Tool or an export.",
        ("spec", "policy", "lifecycle", "autoPauseIdleSeconds"): "Remove it: an idle instance costs nothing.",
    },
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A valid bundle: its resources by name, in order of files and documents."""

    #: the folder that the paths in resources start from; absolute
    root: Path
    #: the bundle's own folder; ``root`` may be a checkout of it
    home: Path
    package: PackageResource | None
    tools: Mapping[str, ToolResource]
    agents: Mapping[str, AgentResource]
    swarms: Mapping[str, SwarmResource]
    extensions: Mapping[str, ExtensionResource]
    models: Mapping[str, ModelResource]
    connectors: Mapping[str, ConnectorResource]
    connections: Mapping[str, ConnectionResource]
    oauth_apps: Mapping[str, OAuthAppResource]
    schedules: Mapping[str, ScheduleResource]
    _bound: Mapping[str, Mapping[str, BoundTool]] = field(repr=False)
    _registry: Mapping[str, BoundTool] = field(repr=False)
    _extensions: Mapping[str, tuple[BoundExtension, ...]] = field(repr=False)
    _connectors: Mapping[str, BoundConnector] = field(repr=False)

    def swarm(self, name: str | None = None) -> SwarmResource:
        """Return the Swarm called ``name``, or by default the only one, ``default``, or all agents.

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        if name is not None and name not in self.swarms:
            suggestion = hint(name, self.swarms, "Leave out the Swarm, or declare it.")
            message = f"The bundle has no Swarm '{name}'."
            raise ConfigError(message, code=ConfigCode.REF_NOT_FOUND, suggestion=suggestion)
        if name is None and len(self.swarms) == 1:
            return next(iter(self.swarms.values()))
        named = self.swarms.get(DEFAULT_SWARM if name is None else name)
        if named is not None:
            return named
        if not self.agents:
            raise ConfigError("The bundle has no agents.", suggestion="Declare an Agent.")
        refs = tuple(Ref("Agent", agent) for agent in self.agents)
        return SwarmResource.model_construct(
            api_version="goondan.ai/v1",
            kind="Swarm",
            metadata=Metadata(name=DEFAULT_SWARM),
            spec=SwarmSpec.model_construct(entry_agent=refs[0], agents=refs),
        )

    def agent_names(self, swarm: str | None = None) -> tuple[str, ...]:
        """Return the names of a Swarm's agents, chosen as :meth:`swarm` does.

        Raises:
            ConfigError: there is no such Swarm, or no agent at all.
        """
        return tuple(dict.fromkeys(ref.name for ref in self.swarm(swarm).spec.agents))

    def workspace_name(self, named: str | None = None, swarm: str | None = None) -> str:
        """Return a Swarm's workspace: ``named`` (``GOONDAN_WORKSPACE``), else the Package's name.

        Without either it is :func:`~goondan_tasks.contract.names.folder_workspace` of the folder and, among
        several Swarms, of the one that :meth:`swarm` chooses.
        """
        own = self.package.name if self.package else None
        return named or own or folder_workspace(self.home, swarm_in_workspace(self.swarms, swarm))

    def bound_tools(self, agent: str) -> Mapping[str, BoundTool]:
        """Return the tools an agent may call, by full name in declared order (001 §12.1 rule 2).

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        self._check_agent(agent)
        return self._bound[agent]

    def bound_extensions(self, agent: str) -> tuple[BoundExtension, ...]:
        """Return an agent's extensions in declared order.

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        self._check_agent(agent)
        return self._extensions[agent]

    def bound_connector(self, connection: str) -> BoundConnector:
        """Return the Connector of one of the bundle's Connections, which may be a built-in one."""
        return self._connectors[connection]

    def agents_with_commands(self) -> tuple[str, ...]:
        """Return the agents that can run any command: those with the built-in ``bash``."""
        root = base_package_root()
        return tuple(
            agent
            for agent, tools in self._bound.items()
            if root and any(tool.entry_path == root / "bash.py" for tool in tools.values())
        )

    def all_tools(self) -> Mapping[str, BoundTool]:
        """Return the registry: every tool of the bundle, and the built-in tools that its agents use."""
        return self._registry

    def _check_agent(self, agent: str) -> None:
        if agent not in self._bound:
            suggestion = hint(agent, self.agents, "Declare an Agent.")
            raise AgentNotFoundError(f"The bundle has no agent '{agent}'.", suggestion=suggestion)


def load_bundle(path: Path) -> Bundle:
    """Load the bundle in a directory or a single file.

    Raises:
        BundleError: the bundle has errors; the exception has all findings.
    """
    bundle, findings = inspect_bundle(path, import_entries=False)
    if bundle is None:
        raise BundleError(findings)
    return bundle


def inspect_bundle(
    path: Path,
    *,
    import_entries: bool = True,
    base_root: Path | None = None,
    records: Records | None = None,
) -> tuple[Bundle | None, list[Finding]]:
    """Return the bundle, if it has no errors, and every finding, sorted by file and line.

    ``base_root`` is the folder of the built-in package, by default the installed one. Entries with a record
    in ``records`` are not imported again; the records of the others are added to it.
    """
    return inspect_resources(path, import_entries=import_entries, base_root=base_root, records=records)[:2]


def inspect_resources(
    path: Path,
    *,
    import_entries: bool = True,
    import_typed: bool = True,
    import_seconds: float | None = None,
    base_root: Path | None = None,
    records: Records | None = None,
) -> tuple[Bundle | None, list[Finding], Scope]:
    """Do the same as :func:`inspect_bundle`, and also return the declared resources.

    ``import_seconds`` limits the import of all entries together. Without ``import_typed`` no code is run, and
    the bundle lacks the Tools with ``exports: auto``.
    """
    deadline = math.inf if import_seconds is None else time.monotonic() + import_seconds
    records = {} if records is None else records
    imports: Imports = "all" if import_entries else "typed" if import_typed else "none"
    cache = ExportCache.of_user() if imports == "typed" else None  # a check imports everything itself
    inventory, findings = read_typed_inventory(path, records, deadline, imports=imports, cache=cache)
    scope = Scope(inventory, base_root or base_package_root())
    findings += bundle_findings(scope)
    if import_entries:
        # imported here: it takes 50 ms, which producers and workers do without
        from goondan_tasks.bundle.requirements import requirement_findings

        findings += [
            *requirement_findings(inventory),
            *entry_findings(inventory, records),
            *_sandbox_findings(scope),
            *model_findings(scope),
            *variable_findings(scope),
        ]
    findings = in_order(findings)
    is_valid = all(finding.level == "warning" for finding in findings)
    return _bundle(scope) if is_valid else None, findings, scope


def _bundle(scope: Scope) -> Bundle:
    own = scope.own
    agents = own.of_kind("Agent")
    bound = {agent.name: MappingProxyType(bind_tools(agent, scope).tools) for agent in agents}
    extensions = {agent.name: tuple(bind_extensions(agent, scope)[0].values()) for agent in agents}

    connections = ((one.name, bind_connector(one, scope)) for one in own.of_kind("Connection"))
    connectors = {name: bound for name, bound in connections if bound is not None}

    def of(model: type[_Kind]) -> Mapping[str, _Kind]:
        resources = (declaration.resource for declaration in own.declarations)
        return MappingProxyType({item.name: item for item in resources if isinstance(item, model)})

    # the bundle's own tools, as declared, take precedence over those with an agent's overrides
    registry = {tool.name: tool for tools in bound.values() for tool in tools.values()}
    registry |= {
        tool.name: tool for one in of(ToolResource).values() for tool in bound_exports(one, own.root)
    }
    return Bundle(
        root=own.root,
        home=own.root,
        package=next(iter(of(PackageResource).values()), None),
        tools=of(ToolResource),
        agents=of(AgentResource),
        swarms=of(SwarmResource),
        extensions=of(ExtensionResource),
        models=of(ModelResource),
        connectors=of(ConnectorResource),
        connections=of(ConnectionResource),
        oauth_apps=of(OAuthAppResource),
        schedules=of(ScheduleResource),
        _bound=MappingProxyType(bound),
        _registry=MappingProxyType(registry),
        _extensions=MappingProxyType(extensions),
        _connectors=MappingProxyType(connectors),
    )


def bundle_findings(scope: Scope) -> list[Finding]:
    """Check every declaration of the bundle, invalid ones as far as possible."""
    findings = list(_unused_agents(scope))
    for declaration in scope.own.declarations:
        if declaration.kind in _RULES:
            findings += _RULES[declaration.kind](declaration, scope)
        if declaration.is_v1:
            for path, suggestion in _WITHOUT_EFFECT.get(declaration.kind, {}).items():
                if declaration.value(path) is not None:
                    message = f"'{path[-1]}' has no effect here"
                    findings.append(declaration.warning(path, message, suggestion))
    return findings


def _tool_findings(tool: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(tool, scope.own.root)
    if tool.name == SYSTEM_TOOL:
        message, suggestion = f"the name '{SYSTEM_TOOL}' is reserved", "Give the Tool another name."
        yield tool.error(("metadata", "name"), message, suggestion, ConfigCode.INVALID_NAME)
    yield from _export_name_findings(tool)
    for path, export in tool.items(EXPORTS):
        if isinstance(export, dict):
            yield from _parameter_findings(tool, (*path, "parameters"))
            yield from _policy_findings(tool, path)
    if tool.is_v1:
        yield from (
            tool.finding(*fault) for fault in tool_auth_faults(tool.name, tool.value(("spec",)), scope)
        )


def _export_name_findings(tool: Declaration) -> Iterator[Finding]:
    seen: dict[str, FieldPath] = {}
    for path, name in tool.item_names(EXPORTS):
        first = seen.setdefault(name, path)
        if first != path:
            message = f"duplicate export '{name[:80]}' (first in line {tool.document.line_of(first)})"
            yield tool.error(path, message, "Rename or remove one of the two.", ConfigCode.DUPLICATE_NAME)
        if name != name.lower():
            message, suggestion = f"the export '{name[:80]}' has upper-case letters", f"'{name[:80].lower()}'"
            yield tool.warning(path, message, f"Use lower case: {suggestion}.", ConfigCode.INVALID_NAME)


def _parameter_findings(tool: Declaration, path: FieldPath) -> Iterator[Finding]:
    parameters = tool.value(path)
    if parameters is None:
        suggestion = "Describe the arguments: parameters: {type: object, properties: {…}}."
        yield tool.warning(path[:-1], "without 'parameters' any object is accepted", suggestion)
    if not isinstance(parameters, dict):
        return
    faults = list(parameter_faults(parameters))
    yield from (tool.finding((*path, *fault.path), fault.error) for fault in faults)
    if not faults and "type" not in parameters:
        yield tool.warning(path, "the parameters do not say 'type: object'", "Add 'type: object'.")
    elif not faults and parameters["type"] != "object":
        message = "the parameters must have the type object"
        yield tool.error((*path, "type"), message, "Write 'type: object'.")


def _policy_findings(tool: Declaration, export: FieldPath) -> Iterator[Finding]:
    """Check the run policies that depend on each other, wherever they are set: on the export or its Tool."""

    def place(name: str) -> FieldPath:
        own = (*export, name)
        return ("spec", name) if tool.value(own) is None else own

    if tool.value(place("retry")) is not None and tool.value(place("idempotent")) is not True:
        suggestion = "Add 'idempotent: true', or remove 'retry'."
        yield tool.error(place("retry"), "only an idempotent export may be retried", suggestion)
    if tool.value(place("memoryMb")) is not None and tool.value(place("isolation")) != "process":
        message = "'memoryMb' works only in a process of its own"
        yield tool.warning(place("memoryMb"), message, "Add 'isolation: process'.")
    entry = tool.value(("spec", "entry"))
    is_outside = tool.value(place("isolation")) != "process" and not is_javascript(str(entry))
    if tool.value(place("sandbox")) in (True, "strict") and is_outside:
        message = "'sandbox' covers only the programs of ctx.run_process: the handler runs in the worker"
        yield tool.warning(place("sandbox"), message, "Add 'isolation: process' if the handler may do harm.")
    properties = member(tool.value((*export, "parameters")), "properties")
    for path, name in tool.items(place("idempotencyKey")) if isinstance(properties, dict) else ():
        if isinstance(name, str) and name not in properties:
            message = f"'{name[:80]}' is not an argument of the export '{tool.value((*export, 'name'))}'"
            yield tool.error(path, message, hint(name, properties, "Declare it in the parameters."))


def _agent_findings(agent: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(agent, scope.own.root)
    for prompts in ("prompts", "prompt"):
        yield from text_file_findings(agent, ("spec", prompts, "systemRef"), scope.own.root)
    yield from _thinking_findings(agent, scope)
    schema = agent.value(("spec", "outputSchema"))
    for fault in parameter_faults(schema) if isinstance(schema, dict) else ():
        yield agent.finding(("spec", "outputSchema", *fault.path), fault.error)
    binding = bind_tools(agent, scope)
    yield from (agent.finding(*fault) for fault in (*bind_extensions(agent, scope)[1], *binding.faults))
    for path, name in agent.items(("spec", "requiredTools")):
        if binding.is_complete and isinstance(name, str) and name not in binding.tools:
            message = f"the required tool '{name[:80]}' is not in the Agent's catalog"
            suggestion = hint(name, binding.tools, "Add its Tool to spec.tools.")
            yield agent.error(path, message, suggestion, ConfigCode.REF_NOT_FOUND)


def _thinking_findings(agent: Declaration, scope: Scope) -> Iterator[Finding]:
    """Check the references to Models, and where an Agent that thinks keeps its conversations."""
    for path in (_MODEL_REF, *(path for path, _ in agent.items(("spec", "modelConfig", "fallbackRefs")))):
        yield from ref_findings(agent, path, "Model", scope)
        model = scope.own.find("Model", ref_name(agent, path) or "")
        if model is not None and model.is_v1 and not agent.is_v1:
            message = f"{model.label} is of the older version, which workers cannot ask"
            yield agent.error(path, message, "Migrate it: goondan migrate.")
    thinks = agent.value(_MODEL_REF) is not None and agent.value(ENTRY) is None and not agent.is_v1
    if thinks and agent.value(("spec", "workdir")) == "local":
        message = "conversations are in the instance's directory, so each machine would have its own"
        suggestion = "Remove 'workdir', and give all workers of the Agent the same GOONDAN_STATE_ROOT."
        yield agent.warning(("spec", "workdir"), message, suggestion)


def _sandbox_findings(scope: Scope) -> Iterator[Finding]:
    """Yield the Agents whose tools need a sandbox, if this machine has none."""
    for agent in scope.own.of_kind("Agent"):
        wanted = [name for name, tool in bind_tools(agent, scope).tools.items() if tool.export.sandbox]
        found = sandbox.fault() if wanted else None
        if found is not None:
            message = f"the tool '{wanted[0]}' needs a sandbox, but this machine has none: {found[0]}"
            yield agent.error(("spec", "tools"), message, found[1])


def _swarm_findings(swarm: Declaration, scope: Scope) -> Iterator[Finding]:
    for path, _ in swarm.items(AGENTS):
        yield from ref_findings(swarm, path, "Agent", scope)
    yield from member_findings(swarm, ("spec", "entrypoint" if swarm.is_v1 else "entryAgent"), swarm, scope)


def _unused_agents(scope: Scope) -> Iterator[Finding]:
    swarms = scope.own.of_kind("Swarm")
    used = {name for swarm in swarms for name in members(swarm)}
    for agent in scope.own.of_kind("Agent") if swarms else ():
        if agent.name and agent.name not in used:
            message = f"the Agent '{agent.name}' is in no Swarm"
            suggestion = f"Add 'Agent/{agent.name}' to spec.agents of a Swarm, or remove the Agent."
            yield agent.warning(("metadata", "name"), message, suggestion, ConfigCode.REF_NOT_FOUND)


def _schedule_findings(schedule: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from ref_findings(schedule, ("spec", "agentRef"), "Agent", scope)
    yield from tool_findings(schedule, scope)


def _dependency_findings(package: Declaration, _: Scope) -> Iterator[Finding]:
    for name in package.resource.spec.dependencies if isinstance(package.resource, PackageResource) else ():
        if name != BASE_PACKAGE:
            message = f"the package '{name[:80]}' is not installed: only {BASE_PACKAGE} is built in"
            path, suggestion = ("spec", "dependencies", name), "Copy what you use from it into this bundle."
            yield package.warning(path, message, suggestion, ConfigCode.PACKAGE_NOT_INSTALLED)


_RULES: Mapping[str, Callable[[Declaration, Scope], Iterator[Finding]]] = {
    "Tool": _tool_findings,
    "Extension": lambda extension, scope: entry_path_findings(extension, scope.own.root),
    "Agent": _agent_findings,
    "Swarm": _swarm_findings,
    "Connector": connector_findings,
    "Connection": connection_findings,
    "Package": _dependency_findings,
    "OAuthApp": oauth_app_findings,
    "Schedule": _schedule_findings,
}
