"""Every rule of a bundle that its types alone do not hold (002 §12.1, 003 §13; DESIGN §6)."""

from collections.abc import Callable, Iterator, Mapping

from goondan_tasks.bundle.base_package import BASE_PACKAGE
from goondan_tasks.bundle.binding import bind_tools
from goondan_tasks.bundle.bundle import DEFAULT_SWARM
from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.entry_rules import entry_path_findings, text_file_findings
from goondan_tasks.bundle.extension_binding import bind_extensions
from goondan_tasks.bundle.field_findings import OLDER_FIELDS, unknown_field
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.oauth_rules import oauth_app_findings
from goondan_tasks.bundle.refs import parse_ref
from goondan_tasks.bundle.resources import PackageResource
from goondan_tasks.bundle.scope import Scope
from goondan_tasks.bundle.tool_auth import tool_auth_faults
from goondan_tasks.bundle.tool_rules import tool_findings
from goondan_tasks.bundle.v1_rules import without_effect_findings
from goondan_tasks.json_values import Path
from goondan_tasks.schema_references import member
from goondan_tasks.spelling import hint

_AGENTS: Path = ("spec", "agents")


def bundle_findings(scope: Scope) -> list[Finding]:
    """Check every declaration of the bundle, the invalid ones as far as they go."""
    findings = list(_lonely_agents(scope))
    for declaration in scope.own.declarations:
        if declaration.kind in _RULES:
            findings += _RULES[declaration.kind](declaration, scope)
        if declaration.is_v1:
            findings += without_effect_findings(declaration)
    return findings


def _tool_findings(tool: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(tool, scope.own.root)
    yield from tool_findings(tool)
    if tool.is_v1:
        faults = tool_auth_faults(tool.name, tool.value(("spec",)), scope)
        yield from (tool.finding(path, error) for path, error in faults)


def _extension_findings(extension: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(extension, scope.own.root)


def _agent_findings(agent: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(agent, scope.own.root)
    for prompts in ("prompts", "prompt"):
        yield from text_file_findings(agent, ("spec", prompts, "systemRef"), scope.own.root)
    yield from _ref_findings(agent, ("spec", "modelConfig", "modelRef"), "Model", scope)
    yield from (agent.finding(path, error) for path, error in bind_extensions(agent, scope).faults)
    binding = bind_tools(agent, scope)
    yield from (agent.finding(path, error) for path, error in binding.faults)
    for path, name in agent.items(("spec", "requiredTools")):
        if binding.is_complete and isinstance(name, str) and name not in binding.tools:
            yield agent.finding(path, _not_in_catalog(name, list(binding.tools)))


def _not_in_catalog(name: str, catalog: list[str]) -> FieldError:
    return FieldError(
        f"the required tool '{name[:80]}' is not in the Agent's catalog",
        hint(name, catalog, "Add its Tool to spec.tools."),
        ConfigCode.REF_NOT_FOUND,
    )


def _swarm_findings(swarm: Declaration, scope: Scope) -> Iterator[Finding]:
    for path, _ in swarm.items(_AGENTS):
        yield from _ref_findings(swarm, path, "Agent", scope)
    path = ("spec", "entrypoint" if swarm.is_v1 else "entryAgent")
    dangling = list(_ref_findings(swarm, path, "Agent", scope))
    yield from dangling
    entry, members = _ref_name(swarm, path), _members(swarm)
    if entry is not None and not dangling and entry not in members:
        error = FieldError(
            f"the {path[-1]} '{entry}' is not among the Swarm's agents",
            f"Add 'Agent/{entry}' to spec.agents.",
            ConfigCode.REF_NOT_FOUND,
        )
        yield swarm.finding(path, error)


def _lonely_agents(scope: Scope) -> Iterator[Finding]:
    swarms = scope.own.of_kind("Swarm")
    members = {name for swarm in swarms for name in _members(swarm)}
    for agent in scope.own.of_kind("Agent") if swarms else ():
        if agent.name and agent.name not in members:
            error = FieldError(
                f"the Agent '{agent.name}' is in no Swarm",
                f"Add 'Agent/{agent.name}' to spec.agents of a Swarm, or remove the Agent.",
                ConfigCode.REF_NOT_FOUND,
            )
            yield agent.finding(("metadata", "name"), error, "warning")


def _connector_findings(connector: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from _not_run(connector)
    yield from entry_path_findings(connector, scope.own.root, is_run=False)
    names: set[str] = set()
    for path, name in _event_names(connector):
        if name in names:
            error = FieldError(f"the event '{name[:80]}' is declared twice", "Remove one of the two.")
            yield connector.finding(path, error)
        names.add(name)
    spec = None if connector.is_v1 else connector.value(("spec",))
    for name in OLDER_FIELDS.keys() & spec.keys() if isinstance(spec, dict) else ():
        yield connector.finding(("spec", name), unknown_field(name, []), "warning")


def _connection_findings(connection: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from _not_run(connection)
    yield from _ref_findings(connection, ("spec", "connectorRef"), "Connector", scope)
    yield from _ref_findings(connection, ("spec", "swarmRef"), "Swarm", scope)
    if connection.is_v1:
        return
    connector = scope.own.find("Connector", _ref_name(connection, ("spec", "connectorRef")) or "")
    swarm = _swarm_of(connection, scope)
    events = {name for _, name in _event_names(connector)} if connector else set()
    for path, _ in connection.items(("spec", "ingress", "rules")):
        yield from _rule_findings(connection, path, events, swarm, scope)


def _swarm_of(connection: Declaration, scope: Scope) -> Declaration | None:
    """Return the Swarm that a Connection names, or else the one that is meant without a name."""
    name, swarms = _ref_name(connection, ("spec", "swarmRef")), scope.own.of_kind("Swarm")
    if name is None and len(swarms) == 1:
        return swarms[0]
    return scope.own.find("Swarm", DEFAULT_SWARM if name is None else name)


def _rule_findings(
    connection: Declaration, path: Path, events: set[str], swarm: Declaration | None, scope: Scope
) -> Iterator[Finding]:
    """Check where a rule leads, and that its Connector makes the event that it is for."""
    place: Path = (*path, "route", "agentRef")
    dangling = list(_ref_findings(connection, place, "Agent", scope))
    yield from dangling
    agent = _ref_name(connection, place)
    if agent is not None and swarm is not None and not dangling and agent not in _members(swarm):
        error = FieldError(
            f"the Agent '{agent}' is not in {swarm.label}",
            f"Add 'Agent/{agent}' to spec.agents of the Swarm, or route to one of its agents.",
            ConfigCode.REF_NOT_FOUND,
        )
        yield connection.finding(place, error)
    place = (*path, "match", "event")
    event = connection.value(place)
    if isinstance(event, str) and events and event not in events:
        suggestion = hint(event, sorted(events), "Add it to the Connector's spec.events.")
        error = FieldError(f"the Connector declares no event '{event[:80]}'", suggestion)
        yield connection.finding(place, error, "warning")


def _event_names(connector: Declaration) -> Iterator[tuple[Path, str]]:
    for path, event in connector.items(("spec", "events")):
        name = member(event, "name")
        if isinstance(name, str):
            yield (*path, "name"), name


def _not_run(declaration: Declaration) -> Iterator[Finding]:
    error = FieldError(
        f"nothing runs a {declaration.kind} here: it is checked and kept",
        "Take the events in a program of your own, which hands them over with client.send or client.request.",
    )
    yield declaration.finding(("kind",), error, "warning")


def _package_findings(package: Declaration, scope: Scope) -> Iterator[Finding]:
    for name in package.resource.spec.dependencies if isinstance(package.resource, PackageResource) else ():
        if name != BASE_PACKAGE:
            error = FieldError(
                f"the package '{name[:80]}' is not installed: only {BASE_PACKAGE} is built in",
                "Copy what you use of it into this bundle.",
                ConfigCode.PACKAGE_NOT_INSTALLED,
            )
            yield package.finding(("spec", "dependencies", name), error, "warning")


def _ref_findings(declaration: Declaration, path: Path, kind: str, scope: Scope) -> Iterator[Finding]:
    """Yield a finding if the reference at ``path`` leads nowhere; one without form has its own."""
    raw = declaration.value(path)
    if raw is None:
        return
    try:
        ref = parse_ref(raw)
    except FieldError:
        return
    try:
        scope.resolve(ref, kind)
    except FieldError as error:
        yield declaration.finding(path, error)


def _members(swarm: Declaration) -> set[str]:
    names = (_ref_name(swarm, path) for path, _ in swarm.items(_AGENTS))
    return {name for name in names if name is not None}


def _ref_name(declaration: Declaration, path: Path) -> str | None:
    try:
        return parse_ref(declaration.value(path)).name
    except FieldError:
        return None


_RULES: Mapping[str, Callable[[Declaration, Scope], Iterator[Finding]]] = {
    "Tool": _tool_findings,
    "Extension": _extension_findings,
    "Agent": _agent_findings,
    "Swarm": _swarm_findings,
    "Connector": _connector_findings,
    "Connection": _connection_findings,
    "Package": _package_findings,
    "OAuthApp": lambda app, _: oauth_app_findings(app),
}
