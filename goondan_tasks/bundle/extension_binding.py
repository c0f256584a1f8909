"""What an Agent's ``spec.extensions`` comes to: its extensions in declared order, each with its config."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.entry_rules import entry_error
from goondan_tasks.bundle.field_findings import field_faults
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.overrides import Faults, merged
from goondan_tasks.bundle.refs import Ref, Use, parse_use
from goondan_tasks.bundle.resources import AgentResource, ExtensionResource
from goondan_tasks.bundle.scope import Scope
from goondan_tasks.json_values import Path as FieldPath
from goondan_tasks.messages import JsonObject

#: the built-in extension that an Agent's ``requiredTools`` bring with them
REQUIRED_TOOLS_GUARD = "required-tools-guard"


@dataclass(frozen=True, slots=True)
class BoundExtension:
    """An Extension as one Agent uses it."""

    name: str
    #: the Extension's own, or what the Agent puts in its place
    config: JsonObject
    #: absolute
    entry_path: Path
    #: whether it gets the older api
    is_v1: bool = False


@dataclass(slots=True)
class ExtensionBinding:
    """An Agent's extensions in declared order, and what is wrong with how it asks for them."""

    extensions: dict[str, BoundExtension] = field(default_factory=dict)
    faults: Faults = field(default_factory=list)


def bind_extensions(agent: Declaration, scope: Scope) -> ExtensionBinding:
    """Follow the references and selectors of ``spec.extensions``; the last use of the same one wins."""
    binding = ExtensionBinding()
    for path, raw in agent.items(("spec", "extensions")):
        try:
            use = parse_use(raw)
        except FieldError:
            # the check of the Agent's fields has said so
            continue
        try:
            targets = scope.targets(use, "Extension")
        except FieldError as error:
            binding.faults.append((path, error))
            continue
        for target in targets:
            _bind(target, use, path, scope, binding)
    _bind_guard(agent, scope, binding)
    return binding


def _bind_guard(agent: Declaration, scope: Scope, binding: ExtensionBinding) -> None:
    """Let the built-in guard see to the ``requiredTools`` of an Agent that handles its events itself."""
    spec = agent.resource.spec if isinstance(agent.resource, AgentResource) else None
    if spec is None or spec.entry is None or not spec.required_tools or scope.base is None:
        return
    if REQUIRED_TOOLS_GUARD not in binding.extensions:
        use = Use(Ref("Extension", REQUIRED_TOOLS_GUARD))
        [target] = scope.targets(use, "Extension")
        _bind(target, use, ("spec", "requiredTools"), scope, binding)
    config = binding.extensions[REQUIRED_TOOLS_GUARD].config
    config.setdefault("requiredTools", list(spec.required_tools))


def _bind(target: Declaration, use: Use, path: FieldPath, scope: Scope, binding: ExtensionBinding) -> None:
    root, extension = scope.root_of(target), target.resource
    if isinstance(extension, ExtensionResource) and use.overrides:
        extension, faults = _overridden(extension, use.overrides, root)
        binding.faults += [((*path, "overrides", *place), error) for place, error in faults]
    if isinstance(extension, ExtensionResource):
        config = {**extension.spec.config, **(use.config or {})}
        entry = (root / extension.spec.entry).resolve()
        binding.extensions[extension.name] = BoundExtension(
            extension.name, copy.deepcopy(config), entry, extension.is_v1
        )


def _overridden(
    extension: ExtensionResource, overrides: JsonObject, root: Path
) -> tuple[ExtensionResource | None, Faults]:
    data = merged(extension.model_dump(by_alias=True, exclude_unset=True), overrides)
    try:
        changed = type(extension).model_validate(data)
    except ValidationError as error:
        return None, [(fault.path, fault.error) for fault in field_faults(error, type(extension), data)]
    return changed, list(_faults(extension, changed, root))


def _faults(
    extension: ExtensionResource, changed: ExtensionResource, root: Path
) -> Iterator[tuple[FieldPath, FieldError]]:
    if changed.name != extension.name:
        message = "overrides cannot rename an Extension"
        yield ("metadata", "name"), FieldError(message, "Remove the name from them.")
    if changed.spec.entry != extension.spec.entry and (error := entry_error(changed.spec.entry, root)):
        yield ("spec", "entry"), error
