"""Every rule of a bundle that its types alone do not hold (002 §12.1, 003 §13; DESIGN §6)."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from goondan_tasks.bundle.binding import BASE_PACKAGE, Scope, bind_extensions, bind_tools, tool_auth_faults
from goondan_tasks.bundle.entries import entry_path_findings, text_file_findings
from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import OLDER_FIELDS, ConfigCode, FieldError, Finding, unknown_field
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.resources import DEFAULT_SWARM, PackageResource
from goondan_tasks.json_values import FieldPath, member
from goondan_tasks.names import SYSTEM_TOOL
from goondan_tasks.schema import SchemaError, compile_schema
from goondan_tasks.spelling import hint

_EXPORTS: FieldPath = ("spec", "exports")
_SPEC: FieldPath = ("spec",)


def tool_findings(tool: Declaration) -> Iterator[Finding]:
    """Yield what is wrong with a Tool's exports and run policies."""
    if tool.name == SYSTEM_TOOL:
        reserved = f"the name '{SYSTEM_TOOL}' is the system's own"
        error = FieldError(reserved, "Give the Tool another name.", ConfigCode.INVALID_NAME)
        yield tool.finding(("metadata", "name"), error)
    seen: dict[str, FieldPath] = {}
    for path, export in tool.items(_EXPORTS):
        if not isinstance(export, dict):
            continue
        yield from _name_findings(tool, path, seen)
        yield from _parameter_findings(tool, path)
        yield from _policy_findings(tool, path)
        yield from _key_findings(tool, path)


def _name_findings(tool: Declaration, path: FieldPath, seen: dict[str, FieldPath]) -> Iterator[Finding]:
    place = (*path, "name")
    name = tool.value(place)
    if not isinstance(name, str):
        return
    first = seen.setdefault(name, place)
    if first != place:
        error = FieldError(
            f"the export '{name[:80]}' is there twice (first in line {tool.document.line_of(first)})",
            "Rename or remove one of the two.",
            ConfigCode.DUPLICATE_NAME,
        )
        yield tool.finding(place, error)
    if name != name.lower():
        error = FieldError(
            f"the export '{name[:80]}' has upper-case letters",
            f"Use lower case: '{name[:80].lower()}'.",
            ConfigCode.INVALID_NAME,
        )
        yield tool.finding(place, error, "warning")


def _parameter_findings(tool: Declaration, path: FieldPath) -> Iterator[Finding]:
    place = (*path, "parameters")
    parameters = tool.value(place)
    if parameters is None:
        error = FieldError(
            "without 'parameters' any object is accepted",
            "Describe the arguments: parameters: {type: object, properties: {…}}.",
        )
        yield tool.finding(path, error, "warning")
    elif isinstance(parameters, dict):
        yield from _schema_findings(tool, place, parameters)


def _schema_findings(tool: Declaration, place: FieldPath, parameters: dict[str, Any]) -> Iterator[Finding]:
    try:
        compile_schema(parameters)
    except SchemaError as error:
        reason = FieldError(
            f"no valid JSON Schema: {error.message}", "Correct it as JSON Schema 2020-12 says."
        )
        yield tool.finding((*place, *error.path), reason)
        return
    if "type" not in parameters:
        reason = FieldError("the parameters do not say 'type: object'", "Add 'type: object'.")
        yield tool.finding(place, reason, "warning")
    elif parameters["type"] != "object":
        reason = FieldError("the parameters must have the type object", "Write 'type: object'.")
        yield tool.finding((*place, "type"), reason)


def _policy_findings(tool: Declaration, path: FieldPath) -> Iterator[Finding]:
    """Check the run policies that need each other, where the export or its Tool sets them."""
    retry, memory = _policy_path(tool, path, "retry"), _policy_path(tool, path, "memoryMb")
    if tool.value(retry) is not None and tool.value(_policy_path(tool, path, "idempotent")) is not True:
        error = FieldError(
            "only an idempotent export may be retried", "Add 'idempotent: true', or remove 'retry'."
        )
        yield tool.finding(retry, error)
    if tool.value(memory) is not None and tool.value(_policy_path(tool, path, "isolation")) != "process":
        error = FieldError("'memoryMb' needs a process of its own", "Add 'isolation: process'.")
        yield tool.finding(memory, error, "warning")


def _policy_path(tool: Declaration, path: FieldPath, name: str) -> FieldPath:
    """Return where a run policy of an export stands: on the export itself, else on its Tool."""
    own = (*path, name)
    return (*_SPEC, name) if tool.value(own) is None else own


def _key_findings(tool: Declaration, path: FieldPath) -> Iterator[Finding]:
    """Check that ``idempotencyKey`` names arguments that exist."""
    properties = member(tool.value((*path, "parameters")), "properties")
    if not isinstance(properties, dict):
        return
    for place, name in tool.items(_policy_path(tool, path, "idempotencyKey")):
        if isinstance(name, str) and name not in properties:
            error = FieldError(
                f"'{name[:80]}' is no argument of the export '{tool.value((*path, 'name'))}'",
                hint(name, properties, "Declare it in the parameters."),
            )
            yield tool.finding(place, error)


_OPTIONS: FieldPath = ("spec", "options")
_GOONDAN: FieldPath = (*_OPTIONS, "goondan")

#: what the request for consent is made of (RFC 6749 §4.1.1, RFC 7636 §4.3), or replaced by (RFC 9101)
RESERVED_PARAMETERS = frozenset({
    "client_id",
    "client_secret",
    "code_challenge",
    "code_challenge_method",
    "redirect_uri",
    "request",
    "request_uri",
    "response_type",
    "scope",
    "state",
})  # fmt: skip

_NEEDED: Mapping[str, tuple[FieldPath, ...]] = {
    "authorizationCode": (("spec", "endpoints", "authorizationUrl"), ("spec", "redirect", "callbackPath")),
    "deviceCode": (("spec", "endpoints", "deviceAuthorizationUrl"),),
}


def oauth_app_findings(app: Declaration) -> Iterator[Finding]:
    """Yield what an OAuthApp's flow lacks, and options that contradict the flow or the subject."""
    flow = app.value(("spec", "flow"))
    for path in _NEEDED.get(flow, ()) if isinstance(flow, str) else ():
        if app.value(path) is None:
            name = ".".join(map(str, path[1:]))
            error = FieldError(f"the flow '{flow}' needs '{name}'", f"Add '{name}'.")
            yield app.finding(path[:-1], error)
    yield from _subject_findings(app)
    options = app.value(_OPTIONS)
    for name in options if isinstance(options, dict) else ():
        if isinstance(name, str) and name.lower() in RESERVED_PARAMETERS:
            error = FieldError(f"the option '{name}' is reserved", "Remove it: the flow sets it by itself.")
            yield app.finding((*_OPTIONS, name), error)


def _subject_findings(app: Declaration) -> Iterator[Finding]:
    """Yield what keeps a consent's account from being compared with its subject (000 §12.5.6 rule 5)."""
    mode = app.value(("spec", "subjectMode"))
    is_known = app.value((*_GOONDAN, "subject")) is not None
    is_anyone = app.value((*_GOONDAN, "anyone")) is True
    if mode == "global" and not is_known and not is_anyone:
        error = FieldError(
            "with subjectMode 'global' nothing says whose account may consent",
            "Add options.goondan.subject, such as slack:team:{team.id}, to be compared with the Turn's "
            "subject; or options.goondan.anyone: true, if any account will do.",
        )
        yield app.finding(("spec", "subjectMode"), error)
    if is_anyone and (mode == "user" or is_known):
        other = "options.goondan.subject" if is_known else "subjectMode 'user'"
        error = FieldError(f"'anyone' contradicts {other}", "Remove 'anyone': the account is compared.")
        yield app.finding((*_GOONDAN, "anyone"), error)


#: what the older documents know and workers do not run, and what to do instead
_WITHOUT_EFFECT: Mapping[str, Mapping[FieldPath, str]] = {
    "Agent": {("spec", "hooks"): "Write an Extension that registers with api.pipelines."},
    "Swarm": {
        ("spec", "policy", "liveConfig"): "Remove it: edit the bundle and restart, or use changesets.",
        ("spec", "policy", "retry"): "Remove it: set 'retry' on a Tool or an export.",
        ("spec", "policy", "timeout"): "Remove it: set 'timeoutSeconds' on a Tool or an export.",
        ("spec", "policy", "lifecycle", "autoPauseIdleSeconds"): "Remove it: an idle instance costs nothing.",
    },
}


def without_effect_findings(declaration: Declaration) -> Iterator[Finding]:
    """Yield a warning for each field of an older resource that is kept and not run."""
    for path, suggestion in _WITHOUT_EFFECT.get(declaration.kind, {}).items():
        if declaration.value(path) is not None:
            error = FieldError(f"'{path[-1]}' has no effect here", suggestion)
            yield declaration.finding(path, error, "warning")


_AGENTS: FieldPath = ("spec", "agents")


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
        yield from (tool.finding(path, error) for path, error, _ in faults)


def _extension_findings(extension: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(extension, scope.own.root)


def _agent_findings(agent: Declaration, scope: Scope) -> Iterator[Finding]:
    yield from entry_path_findings(agent, scope.own.root)
    for prompts in ("prompts", "prompt"):
        yield from text_file_findings(agent, ("spec", prompts, "systemRef"), scope.own.root)
    yield from _ref_findings(agent, ("spec", "modelConfig", "modelRef"), "Model", scope)
    yield from (agent.finding(path, error) for path, error, _ in bind_extensions(agent, scope)[1])
    binding = bind_tools(agent, scope)
    yield from (agent.finding(path, error) for path, error, _ in binding.faults)
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
    connection: Declaration, path: FieldPath, events: set[str], swarm: Declaration | None, scope: Scope
) -> Iterator[Finding]:
    """Check where a rule leads, and that its Connector makes the event that it is for."""
    place: FieldPath = (*path, "route", "agentRef")
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


def _event_names(connector: Declaration) -> Iterator[tuple[FieldPath, str]]:
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


def _ref_findings(declaration: Declaration, path: FieldPath, kind: str, scope: Scope) -> Iterator[Finding]:
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


def _ref_name(declaration: Declaration, path: FieldPath) -> str | None:
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
