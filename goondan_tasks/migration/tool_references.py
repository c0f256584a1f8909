"""Where Agents and Swarms name Tools and their exports."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from goondan_tasks.bundle.base_package import BASE_PACKAGE
from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import FieldError, Finding
from goondan_tasks.json_values import Path

_TOOL = "Tool/"
_NAMED: Mapping[str, Path] = {
    "Agent": ("spec", "requiredTools"),
    "Swarm": ("spec", "policy", "toolCalls", "approval"),
}


class Mention(NamedTuple):
    """A place in a resource, and what is to stand there."""

    path: Path
    text: str


def tool_mentions(agent: Declaration, names: Mapping[str, str]) -> Iterator[Mention]:
    """Yield where an Agent uses Tools of this bundle whose names change, by their older ``names``."""
    for path, raw in agent.items(("spec", "tools")):
        yield from _in_use(path, raw, names)


def _in_use(path: Path, raw: Any, names: Mapping[str, str]) -> Iterator[Mention]:
    if isinstance(raw, str) and raw.startswith(_TOOL) and raw.removeprefix(_TOOL) in names:
        yield Mention(path, _TOOL + names[raw.removeprefix(_TOOL)])
    if not isinstance(raw, dict):
        return
    for key in ("ref", "selector"):
        yield from _in_use((*path, key), raw.get(key), names)
    name = raw.get("name")
    is_ours = raw.get("kind") in (None, "Tool") and raw.get("package") != BASE_PACKAGE
    if isinstance(name, str) and name in names and is_ours:
        yield Mention((*path, "name"), names[name])


def export_mentions(resource: Declaration, names: Mapping[str, str]) -> Iterator[Mention]:
    """Yield where an Agent or a Swarm names tools by the full ``names`` that change."""
    for path, name in resource.items(_NAMED.get(resource.kind, ())):
        if isinstance(name, str) and name in names:
            yield Mention(path, names[name])


def glob_findings(swarm: Declaration, names: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the globs of approvals that matched a tool by its older name and do not match it any more."""
    for path, glob in swarm.items(_NAMED["Swarm"]) if swarm.kind == "Swarm" else ():
        for old, new in names.items() if isinstance(glob, str) and glob not in names else ():
            if fnmatchcase(old, glob) and not fnmatchcase(new, glob):
                message = f"'{glob[:80]}' matched '{old}', which is '{new}' now"
                error = FieldError(message, f"Add '{new}', or a glob that matches it.")
                yield swarm.finding(path, error)
