"""References in the YAML, to resources and to environment variables, and what is wrong with them."""

from collections.abc import Iterator, Mapping

from goondan_tasks.bundle.binding import Scope
from goondan_tasks.bundle.connection_spec import ConnectionResource
from goondan_tasks.bundle.fields import ValueSource, parse_ref, resolve_text
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.inventory import Declaration
from goondan_tasks.bundle.resources import ModelResource
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.wording import FieldPath

AGENTS: FieldPath = ("spec", "agents")


def ref_findings(declaration: Declaration, path: FieldPath, kind: str, scope: Scope) -> Iterator[Finding]:
    """Yield a finding if the reference at ``path`` leads nowhere; a malformed one has its own finding."""
    try:
        ref = parse_ref(declaration.value(path))
    except FieldError:
        return
    try:
        scope.resolve(ref, kind)
    except FieldError as error:
        yield declaration.finding(path, error)


def member_findings(
    declaration: Declaration, path: FieldPath, swarm: Declaration | None, scope: Scope
) -> Iterator[Finding]:
    """Check that the reference at ``path`` names an Agent of the Swarm."""
    dangling = list(ref_findings(declaration, path, "Agent", scope))
    yield from dangling
    agent = ref_name(declaration, path)
    if agent is not None and swarm is not None and not dangling and agent not in members(swarm):
        message = f"the {path[-1]} '{agent}' is not among the agents of {swarm.label}"
        suggestion = f"Add 'Agent/{agent}' to spec.agents of the Swarm, or name one of its agents."
        yield declaration.error(path, message, suggestion, ConfigCode.REF_NOT_FOUND)


def members(swarm: Declaration) -> set[str]:
    names = (ref_name(swarm, path) for path, _ in swarm.items(AGENTS))
    return {name for name in names if name is not None}


def ref_name(declaration: Declaration, path: FieldPath) -> str | None:
    try:
        return parse_ref(declaration.value(path)).name
    except FieldError:
        return None


def variable_findings(scope: Scope) -> Iterator[Finding]:
    """Yield the values of Models and Connections that this process has no environment variable for."""
    for declaration in (*scope.own.of_kind("Model"), *scope.own.of_kind("Connection")):
        resource = declaration.resource
        if isinstance(resource, ModelResource) and resource.spec.api_key is not None:
            yield from _unset(declaration, ("spec",), {"apiKey": resource.spec.api_key})
        elif isinstance(resource, ConnectionResource):
            spec, webhook = resource.spec, resource.spec.verify.webhook
            yield from _unset(declaration, ("spec", "config"), spec.config)
            yield from _unset(declaration, ("spec", "secrets"), spec.secrets)
            if webhook is not None:
                path = ("spec", "verify", "webhook")
                yield from _unset(declaration, path, {"signingSecret": webhook.signing_secret})


def _unset(
    declaration: Declaration, path: FieldPath, sources: Mapping[str, str | ValueSource]
) -> Iterator[Finding]:
    for name, source in sources.items():
        try:
            resolve_text(source, name)
        except ConfigError as error:
            suggestion = "Set one where it runs; this process has none."
            yield declaration.warning((*path, name), error.message, suggestion, ConfigCode.REF_NOT_FOUND)
