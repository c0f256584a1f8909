"""What becomes of an older resource in today's version: the fields that go, and the reasons to leave it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.entry_rules import ENTRY, entry_error, entry_file
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.json_values import Path as FieldPath
from goondan_tasks.migration.entry_code import older_uses

#: fields that workers do not run, or that say what always holds
_DROPPED: Mapping[str, tuple[FieldPath, ...]] = {
    "Tool": (("spec", "runtime"),),
    "Extension": (("spec", "runtime"),),
    "Connector": (("spec", "runtime"),),
    "Agent": (("spec", "hooks"),),
    "Swarm": (
        ("spec", "policy", "queueMode"),
        ("spec", "policy", "liveConfig"),
        ("spec", "policy", "retry"),
        ("spec", "policy", "timeout"),
        ("spec", "policy", "lifecycle", "autoPauseIdleSeconds"),
    ),
}
_SAY_WHAT_ALWAYS_HOLDS = {"runtime", "queueMode"}

_OWN_EXTENSION = "Write an Extension that asks for tokens (api.oauth) and registers the tool."
_OWN_CONNECTION = "Route its events in a Connection, and remove the field."
#: what an Agent's overrides cannot say of a Tool of today
_OLDER_OVERRIDES = ("runtime", "auth", "exports")


def dropped_fields(resource: Declaration) -> list[FieldPath]:
    """Return the fields of an older resource that today's version lacks and that had no effect."""
    return [path for path in _DROPPED.get(resource.kind, ()) if resource.value(path) is not None]


def dropped_findings(resource: Declaration) -> Iterator[Finding]:
    """Yield a warning for each such field that said something."""
    for path in dropped_fields(resource):
        if path[-1] not in _SAY_WHAT_ALWAYS_HOLDS:
            error = FieldError(f"'{path[-1]}' had no effect and is left out", "Nothing is to be done.")
            yield resource.finding(path, error, "warning")


def obstacles(resource: Declaration, root: Path) -> Iterator[Finding]:
    """Yield why a resource must stay as it is: what it says, or what its code asks, has no form of today."""
    for path, suggestion in _open_fields(resource):
        if resource.value(path) is not None:
            yield stays(resource, path, f"'{path[-1]}' has no form in today's version", suggestion)
    if resource.kind == "Swarm" and all(_has(resource, name) for name in ("entrypoint", "entryAgent")):
        message = "it has an 'entrypoint' and an 'entryAgent'"
        yield stays(resource, ("spec", "entryAgent"), message, "Remove one of the two.")
    if resource.kind not in ("Tool", "Extension"):
        return
    entry = resource.value(ENTRY)
    if isinstance(entry, str) and (error := entry_error(entry, root)):
        yield stays(resource, ENTRY, error.message, error.suggestion)
    file = entry_file(resource, root)
    for use in older_uses(file, resource.kind) if file else ():
        message = f"the code asks for '{use.code}', which today's version does not give it"
        found = stays(resource, ENTRY, message, "Rewrite that part of the code, then migrate again.")
        yield replace(found, file=str(file), line=use.line)


def stays(resource: Declaration, path: FieldPath, message: str, suggestion: str) -> Finding:
    """Return the finding that a resource cannot be migrated."""
    error = FieldError(f"stays as it is: {message}", suggestion, ConfigCode.UNSUPPORTED_API_VERSION)
    return resource.finding(path, error)


def override_findings(agent: Declaration, path: FieldPath) -> Iterator[Finding]:
    """Yield what the overrides of an Agent at ``path`` say that a Tool of today does not understand."""
    for name in _OLDER_OVERRIDES:
        place = (*path, "overrides", "spec", name)
        if agent.value(place) is not None:
            error = FieldError(f"'{name}' may be meant for an older Tool", "Rewrite it for today's Tool.")
            yield agent.finding(place, error, "warning")


def _open_fields(resource: Declaration) -> Iterator[tuple[FieldPath, str]]:
    if resource.kind == "Tool":
        for owner in (("spec",), *(path for path, _ in resource.items(("spec", "exports")))):
            yield (*owner, "auth"), _OWN_EXTENSION
    elif resource.kind == "Connector":
        yield ("spec", "triggers"), _OWN_CONNECTION
        yield ("spec", "auth"), _OWN_EXTENSION


def _has(resource: Declaration, name: str) -> bool:
    spec = resource.value(("spec",))
    return isinstance(spec, dict) and name in spec
