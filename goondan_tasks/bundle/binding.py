"""What an Agent's ``spec.tools`` comes to: its tools by full name, overrides applied."""

import copy
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from goondan_tasks.bundle.entries import entry_error
from goondan_tasks.bundle.fields import Ref, Selector, Use, parse_ref, parse_use
from goondan_tasks.bundle.findings import ConfigCode, FieldError, field_faults
from goondan_tasks.bundle.inventory import Declaration, Inventory, read_inventory
from goondan_tasks.bundle.resources import (
    AgentResource,
    ExtensionResource,
    RunPolicy,
    ToolExport,
    ToolResource,
    scopes_beyond,
)
from goondan_tasks.json_values import FieldPath, member
from goondan_tasks.messages import JsonObject
from goondan_tasks.names import build_tool_name
from goondan_tasks.schema import SchemaError, compile_schema
from goondan_tasks.spelling import hint

BASE_PACKAGE = "@goondan/base"
# named, not imported: producers know the built-in tools without the workers' code
_MODULE = "workers.builtin"


def base_package_root() -> Path | None:
    """Return the folder of the built-in package, or ``None`` where workers are not installed."""
    try:
        spec = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


@dataclass(frozen=True, slots=True)
class Scope:
    """A bundle and the built-in package, which is read when something leads there."""

    own: Inventory
    base_root: Path | None

    @property
    def base(self) -> Inventory | None:
        """The built-in package."""
        return _built_in(self.base_root) if self.base_root else None

    def resolve(self, ref: Ref, kind: str) -> Declaration:
        """Return what ``ref`` means, where a resource of ``kind`` is wanted.

        Raises:
            FieldError: it means another kind, or nothing.
        """
        if ref.kind != kind:
            message = f"'{ref}' leads to another kind than {kind}"
            raise FieldError(message, f"Write '{kind}/<name>'.", ConfigCode.INVALID_REF)
        for inventory in self._packages(ref.package):
            found = inventory.find(ref.kind, ref.name)
            if found is not None:
                return found
        raise self._not_found(ref)

    def select(self, selector: Selector, kind: str) -> list[Declaration]:
        """Return what ``selector`` matches, in order of declaration.

        A name that this bundle does not have is looked up in the built-in package; labels alone
        select from this bundle.

        Raises:
            FieldError: it wants another kind, or matches nothing.
        """
        if selector.kind not in (None, kind):
            message = f"the selector wants another kind than {kind}"
            raise FieldError(message, f"Write 'kind: {kind}'.", ConfigCode.INVALID_REF)
        matching = [item for item in self._candidates(selector, kind) if _has_labels(item, selector)]
        if not matching:
            message = f"the selector matches no {kind} ({selector})"
            raise FieldError(message, "Correct its name or matchLabels.", ConfigCode.REF_NOT_FOUND)
        return matching

    def targets(self, use: Use, kind: str) -> list[Declaration]:
        """Return what an item of ``tools`` or ``extensions`` means.

        Raises:
            FieldError: it means another kind, or nothing.
        """
        if isinstance(use.target, Ref):
            return [self.resolve(use.target, kind)]
        return self.select(use.target, kind)

    def root_of(self, declaration: Declaration) -> Path:
        """Return the folder that the paths in a declaration start from."""
        own = self.own.find(declaration.kind, declaration.name) is declaration
        return self.own.root if own or self.base is None else self.base.root

    def _candidates(self, selector: Selector, kind: str) -> list[Declaration]:
        if selector.name is None:
            return self.own.of_kind(kind)
        return [self.resolve(Ref(kind, selector.name), kind)]

    def _packages(self, package: str | None) -> Iterator[Inventory]:
        own_names = {declaration.name for declaration in self.own.of_kind("Package")}
        if package is None or package in own_names:
            yield self.own
        if package in (None, BASE_PACKAGE):
            yield from filter(None, [self.base])
        elif package not in own_names:
            raise FieldError(
                f"the package '{package}' is not installed",
                f"Only {BASE_PACKAGE} is built in; copy the resource into this bundle.",
                ConfigCode.PACKAGE_NOT_INSTALLED,
            )

    def _not_found(self, ref: Ref) -> FieldError:
        packages = self._packages(ref.package)
        names = [declaration.name for package in packages for declaration in package.of_kind(ref.kind)]
        suggestion = hint(ref.name, names, f"Declare the {ref.kind} first.")
        return FieldError(f"there is no '{ref}'", suggestion, ConfigCode.REF_NOT_FOUND)


def _has_labels(declaration: Declaration, selector: Selector) -> bool:
    labels = declaration.value(("metadata", "labels"))
    return selector.match_labels.items() <= (labels.items() if isinstance(labels, dict) else set())


@functools.lru_cache(maxsize=8)
def _built_in(root: Path) -> Inventory:
    """Read the built-in package once in a process; it ships with the code and does not change."""
    return read_inventory(root)[0]


@dataclass(frozen=True, slots=True)
class ScopeFault:
    """Scopes that are wider than what stands above them."""

    #: the export's place among its Tool's; ``None`` for the Tool's own scopes
    export: int | None
    error: FieldError


def auth_scope_faults(
    app_scopes: Iterable[str],
    tool_scopes: Iterable[str] | None,
    export_scopes: Mapping[int, Iterable[str]],
    *,
    app: str,
    tool: str,
) -> Iterator[ScopeFault]:
    """Yield what is wrong with the ``auth.scopes`` of a Tool and of its exports, by the export's place.

    A Tool without scopes of its own (``None``) has the app's, and its exports may have none.
    """
    for scope in scopes_beyond(tool_scopes or (), app_scopes):
        yield ScopeFault(None, _fault(scope, app_scopes, f"OAuthApp/{app}"))
    for export, scopes in export_scopes.items():
        if tool_scopes is None:
            error = FieldError("an export's scopes need scopes of its Tool", "Add auth.scopes to the Tool.")
            yield ScopeFault(export, error)
            continue
        for scope in scopes_beyond(scopes, tool_scopes):
            yield ScopeFault(export, _fault(scope, tool_scopes, f"Tool/{tool}"))


def _fault(scope: str, allowed: Iterable[str], owner: str) -> FieldError:
    suggestion = hint(scope, sorted(set(allowed)), "Scopes are narrowed on the way down, never widened.")
    return FieldError(f"the scope '{scope[:80]}' is not among those of {owner}", suggestion)


_AUTH: FieldPath = ("spec", "auth")


def tool_auth_faults(tool: str, spec: Any, scope: Scope) -> Iterator[tuple[FieldPath, FieldError]]:
    """Yield what is wrong with ``auth`` in a Tool's ``spec``, as YAML says it, and in its exports.

    What has not the form of a field has a finding of its own, and is passed over here.
    """
    auth, exports = member(spec, "auth"), member(spec, "exports")
    app: Declaration | None = None
    try:
        app = _app(member(auth, "oauthAppRef"), scope)
    except FieldError as error:
        yield (*_AUTH, "oauthAppRef"), error
    tool_scopes = _scopes(auth)
    narrowed = {
        index: scopes
        for index, export in enumerate(exports if isinstance(exports, list) else ())
        if (scopes := _scopes(member(export, "auth"))) is not None
    }
    # without an app there is nothing to lay the Tool's scopes beside
    allowed = tool_scopes if app is None else _scopes(app.value(("spec",)))
    app_name = app.name if app else ""
    for fault in auth_scope_faults(allowed or (), tool_scopes, narrowed, app=app_name, tool=tool):
        owner = _AUTH if fault.export is None else ("spec", "exports", fault.export, "auth")
        yield (*owner, "scopes"), fault.error


def _app(raw: Any, scope: Scope) -> Declaration | None:
    """Return the OAuthApp; ``None`` if there is no reference, or none that has a form.

    Raises:
        FieldError: it leads nowhere, or to another kind.
    """
    try:
        ref = None if raw is None else parse_ref(raw)
    except FieldError:
        return None
    return None if ref is None else scope.resolve(ref, "OAuthApp")


def _scopes(owner: Any) -> list[str] | None:
    scopes = member(owner, "scopes")
    if not isinstance(scopes, list):
        return None
    return [scope for scope in scopes if isinstance(scope, str) and scope]


Faults = list[tuple[FieldPath, FieldError]]


def overridden(tool: ToolResource, overrides: JsonObject, root: Path) -> tuple[ToolResource | None, Faults]:
    """Return the Tool as the Agent wants it, and what is wrong with that, by path in the Tool."""
    data = merged(tool.model_dump(by_alias=True, exclude_unset=True), overrides)
    try:
        changed = type(tool).model_validate(data)
    except ValidationError as error:
        return None, [(fault.path, fault.error) for fault in field_faults(error, type(tool), data)]
    return changed, list(_faults(tool, changed, root))


def merged(original: Any, changes: Any) -> Any:
    """Lay ``changes`` over ``original`` (RFC 7396): objects merge, a null removes, all else replaces."""
    if not isinstance(changes, dict):
        return changes
    result = dict(original) if isinstance(original, dict) else {}
    for name, change in changes.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


def _faults(tool: ToolResource, changed: ToolResource, root: Path) -> Iterator[tuple[FieldPath, FieldError]]:
    if changed.name != tool.name:
        yield ("metadata", "name"), FieldError("overrides cannot rename a Tool", "Remove the name from them.")
    if changed.spec.entry != tool.spec.entry and (error := entry_error(changed.spec.entry, root)):
        yield ("spec", "entry"), error
    if changed.spec.exports != tool.spec.exports:
        yield from _export_faults(changed)


def _export_faults(tool: ToolResource) -> Iterator[tuple[FieldPath, FieldError]]:
    names = [export.name for export in tool.spec.exports]
    for index, export in enumerate(tool.spec.exports):
        place: FieldPath = ("spec", "exports", index)
        if export.name in names[:index]:
            message = f"the export '{export.name}' is there twice"
            yield (*place, "name"), FieldError(message, "Rename one.", ConfigCode.DUPLICATE_NAME)
        try:
            compile_schema(export.parameters)
        except SchemaError as error:
            message = f"no valid JSON Schema: {error.message}"
            yield (*place, "parameters", *error.path), FieldError(message, "Correct the schema.")


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
        extension, faults = _overridden_extension(extension, use.overrides, root)
        binding.faults += [((*path, "overrides", *place), error) for place, error in faults]
    if isinstance(extension, ExtensionResource):
        config = {**extension.spec.config, **(use.config or {})}
        entry = (root / extension.spec.entry).resolve()
        binding.extensions[extension.name] = BoundExtension(
            extension.name, copy.deepcopy(config), entry, extension.is_v1
        )


def _overridden_extension(
    extension: ExtensionResource, overrides: JsonObject, root: Path
) -> tuple[ExtensionResource | None, Faults]:
    data = merged(extension.model_dump(by_alias=True, exclude_unset=True), overrides)
    try:
        changed = type(extension).model_validate(data)
    except ValidationError as error:
        return None, [(fault.path, fault.error) for fault in field_faults(error, type(extension), data)]
    return changed, list(_extension_faults(extension, changed, root))


def _extension_faults(
    extension: ExtensionResource, changed: ExtensionResource, root: Path
) -> Iterator[tuple[FieldPath, FieldError]]:
    if changed.name != extension.name:
        message = "overrides cannot rename an Extension"
        yield ("metadata", "name"), FieldError(message, "Remove the name from them.")
    if changed.spec.entry != extension.spec.entry and (error := entry_error(changed.spec.entry, root)):
        yield ("spec", "entry"), error
