"""What an Agent's ``spec.tools`` comes to: its tools by full name, overrides applied."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.overrides import Faults, overridden
from goondan_tasks.bundle.refs import Use, parse_use
from goondan_tasks.bundle.resources import RunPolicy, ToolExport, ToolResource
from goondan_tasks.bundle.scope import Scope
from goondan_tasks.bundle.tool_auth import tool_auth_faults
from goondan_tasks.json_values import Path as FieldPath
from goondan_tasks.messages import JsonObject
from goondan_tasks.names import build_tool_name

_FLAGS = ("idempotent", "serial", "requires_approval")


@dataclass(frozen=True, slots=True)
class BoundTool:
    """One function that may be called, with everything that was declared about it."""

    #: ``{tool}__{export}``; of an older Tool, the export's own name (002 §3.2)
    name: str
    #: the Tool it belongs to, the Agent's overrides applied
    tool: ToolResource
    #: its export; a run policy that it does not set is the Tool's
    export: ToolExport
    #: absolute
    entry_path: Path

    @property
    def is_v1(self) -> bool:
        """Whether its handler gets the older context."""
        return self.tool.is_v1


@dataclass(slots=True)
class Binding:
    """An Agent's tools in declared order, and what is wrong with how it asks for them."""

    tools: dict[str, BoundTool] = field(default_factory=dict)
    faults: list[tuple[FieldPath, FieldError]] = field(default_factory=list)
    #: whether every reference led to a valid Tool
    is_complete: bool = True


def bind_tools(agent: Declaration, scope: Scope) -> Binding:
    """Follow the references and selectors of ``spec.tools``; the last use of the same Tool wins."""
    binding = Binding()
    chosen: dict[str, tuple[ToolResource, Path, FieldPath]] = {}
    for path, use in _uses(agent):
        for target in _targets(use, path, scope, binding):
            root = scope.root_of(target)
            tool = target.resource
            if isinstance(tool, ToolResource) and use.overrides:
                tool, faults = _overridden(tool, use.overrides, root, scope)
                binding.faults += [((*path, "overrides", *place), error) for place, error in faults]
            if isinstance(tool, ToolResource):
                chosen[tool.name] = (tool, root, path)
            else:
                binding.is_complete = False
    for tool, root, path in chosen.values():
        for bound in bound_exports(tool, root):
            first = binding.tools.setdefault(bound.name, bound)
            if first.tool is not tool:
                binding.faults.append((path, _namesakes(first, bound)))
    return binding


def bound_exports(tool: ToolResource, root: Path) -> Iterator[BoundTool]:
    """Yield what a Tool of the package at ``root`` exports."""
    for export in tool.spec.exports:
        name = export.name if tool.is_v1 else build_tool_name(tool.name, export.name)
        yield BoundTool(name, tool, _resolved(export, tool), (root / tool.spec.entry).resolve())


def _uses(agent: Declaration) -> Iterator[tuple[FieldPath, Use]]:
    for path, raw in agent.items(("spec", "tools")):
        try:
            yield path, parse_use(raw)
        except FieldError:
            # the check of the Agent's fields has said so
            continue


def _targets(use: Use, path: FieldPath, scope: Scope, binding: Binding) -> list[Declaration]:
    try:
        return scope.targets(use, "Tool")
    except FieldError as error:
        binding.faults.append((path, error))
        binding.is_complete = False
        return []


def _overridden(
    tool: ToolResource, overrides: JsonObject, root: Path, scope: Scope
) -> tuple[ToolResource | None, Faults]:
    changed, faults = overridden(tool, overrides, root)
    if changed is not None and changed.is_v1:
        spec = changed.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        faults += tool_auth_faults(changed.name, spec, scope)
    return changed, faults


def _namesakes(first: BoundTool, second: BoundTool) -> FieldError:
    """Say that two Tools of an Agent have exports of one name, as only older ones can (002 §3.2)."""
    tools = f"'Tool/{first.tool.name}' and 'Tool/{second.tool.name}'"
    suggestion = "Rename one of the two exports, or use one of the two Tools."
    return FieldError(f"{tools} both export '{first.name}'", suggestion, ConfigCode.DUPLICATE_NAME)


def _resolved(export: ToolExport, tool: ToolResource) -> ToolExport:
    """Fill in the run policies that the export leaves to its Tool."""
    policies = {}
    for name in RunPolicy.model_fields:
        own = getattr(export, name)
        policies[name] = getattr(tool.spec, name) if own is None else own
    return export.model_copy(update=policies | {flag: bool(policies[flag]) for flag in _FLAGS})
