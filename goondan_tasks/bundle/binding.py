"""Resolves an Agent's ``spec.tools`` and ``spec.extensions``, and applies its overrides.

References are looked up in this bundle first, then in the built-in package ``@goondan/base``.
"""

import copy
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from goondan_tasks.bundle.connection_spec import ConnectorResource
from goondan_tasks.bundle.entries import entry_error, entry_path
from goondan_tasks.bundle.fields import Ref, Use, parse_ref, parse_use
from goondan_tasks.bundle.findings import ConfigCode, FieldError, FieldFault, field_faults
from goondan_tasks.bundle.inventory import Declaration, Inventory, read_inventory
from goondan_tasks.bundle.oauth_app_spec import scopes_beyond
from goondan_tasks.bundle.resource import API_VERSION
from goondan_tasks.bundle.resources import (
    AgentResource,
    ExtensionResource,
    RunPolicy,
    ToolExport,
    ToolResource,
)
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog, ToolSource
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import build_tool_name
from goondan_tasks.contract.schema import SchemaError, compile_schema
from goondan_tasks.contract.wording import FieldPath, hint, member

if TYPE_CHECKING:
    from goondan_tasks.bundle.bundle import Bundle

BASE_PACKAGE = "@goondan/base"
#: the built-in extension that an Agent with ``requiredTools`` gets
REQUIRED_TOOLS_GUARD = "required-tools-guard"
# named, not imported: producers read the built-in tools without the workers' code
_BASE_MODULE = "workers.builtin"
_FLAGS = ("idempotent", "serial", "requires_approval")
_Resource = TypeVar("_Resource", ToolResource, ExtensionResource)


def base_package_root() -> Path | None:
    """Return the folder of the built-in package, or ``None`` where workers are not installed."""
    try:
        spec = importlib.util.find_spec(_BASE_MODULE)
    except ModuleNotFoundError:
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


# once per process: the built-in package ships with the code and does not change
_read_once = functools.lru_cache(maxsize=8)(read_inventory)


@dataclass(frozen=True, slots=True)
class Scope:
    """A bundle and the built-in package, which is read when a reference needs it."""

    own: Inventory
    base_root: Path | None

    @property
    def base(self) -> Inventory | None:
        return _read_once(self.base_root)[0] if self.base_root else None

    def resolve(self, ref: Ref, kind: str) -> Declaration:
        """Return the resource that ``ref`` names, which must be of ``kind``.

        Raises:
            FieldError: it is of another kind, or does not exist.
        """
        if ref.kind != kind:
            message = f"'{ref}' does not refer to a resource of kind {kind}"
            raise FieldError(message, f"Write '{kind}/<name>'.", ConfigCode.INVALID_REF)
        for package in self._packages(ref.package):
            found = package.find(kind, ref.name)
            if found is not None:
                return found
        names = [one.name for package in self._packages(ref.package) for one in package.of_kind(kind)]
        suggestion = hint(ref.name, names, f"Declare the {kind} first.")
        raise FieldError(f"there is no '{ref}'", suggestion, ConfigCode.REF_NOT_FOUND)

    def targets(self, use: Use, kind: str) -> list[Declaration]:
        """Return the resources that an item of ``tools`` or ``extensions`` selects, in order of declaration.

        A name that this bundle lacks is looked up in the built-in package; labels alone select only from this
        bundle.

        Raises:
            FieldError: they are of another kind, or do not exist.
        """
        target = use.target
        if isinstance(target, Ref):
            return [self.resolve(target, kind)]
        if target.kind not in (None, kind):
            message = f"the selector does not select the kind {kind}"
            raise FieldError(message, f"Write 'kind: {kind}'.", ConfigCode.INVALID_REF)
        found = [self.resolve(Ref(kind, target.name), kind)] if target.name else self.own.of_kind(kind)
        labels = [one.value(("metadata", "labels")) for one in found]
        matching = [
            one
            for one, own in zip(found, labels, strict=True)
            if target.match_labels.items() <= (own.items() if isinstance(own, dict) else set())
        ]
        if not matching:
            message = f"the selector matches no {kind} ({target})"
            raise FieldError(message, "Correct its name or matchLabels.", ConfigCode.REF_NOT_FOUND)
        return matching

    def root_of(self, declaration: Declaration) -> Path:
        """Return the folder that paths in a declaration start from."""
        own = self.own.find(declaration.kind, declaration.name) is declaration
        return self.own.root if own or self.base is None else self.base.root

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


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A function that may be called, with its full declaration."""

    #: ``{tool}__{export}``, or the export's own name for an older Tool (002 §3.2)
    name: str
    #: its Tool, with the Agent's overrides
    tool: ToolResource
    #: its export, with the Tool's run policies as defaults
    export: ToolExport
    #: absolute
    entry_path: Path

    @property
    def is_v1(self) -> bool:
        return self.tool.is_v1


@dataclass(frozen=True, slots=True)
class BoundExtension:
    """An Extension as one Agent uses it."""

    name: str
    #: the Extension's config, with the Agent's changes
    config: JsonObject
    #: absolute
    entry_path: Path
    #: whether its code gets the older api
    is_v1: bool = False


@dataclass(frozen=True, slots=True)
class BoundConnector:
    """The Connector of a Connection: one of the bundle, or a built-in one."""

    resource: ConnectorResource
    #: absolute
    entry_path: Path


@dataclass(slots=True)
class ToolBinding:
    """An Agent's tools in declared order, and the errors in its references and overrides."""

    tools: dict[str, BoundTool] = field(default_factory=dict)
    faults: list[FieldFault] = field(default_factory=list)
    #: whether every reference names a valid Tool
    is_complete: bool = True


def bind_tools(agent: Declaration, scope: Scope) -> ToolBinding:
    """Resolve ``spec.tools``; of several uses of the same Tool the last counts."""
    binding = ToolBinding()
    chosen: dict[str, tuple[ToolResource, Path, FieldPath]] = {}
    for path, use in _uses(agent, "tools"):
        for tool, root in _bind(ToolResource, use, path, scope, binding.faults):
            if tool is None:
                binding.is_complete = False
            else:
                chosen[tool.name] = (tool, root, path)
    for tool, root, path in chosen.values():
        for bound in bound_exports(tool, root):
            first = binding.tools.setdefault(bound.name, bound)
            if first.tool is not tool:
                # only exports of older Tools can share a full name (002 §3.2)
                tools = f"'Tool/{first.tool.name}' and 'Tool/{tool.name}'"
                suggestion = "Rename one of the two exports, or use one of the two Tools."
                message = f"{tools} both export '{first.name}'"
                error = FieldError(message, suggestion, ConfigCode.DUPLICATE_NAME)
                binding.faults.append(FieldFault(path, error))
    return binding


def bound_exports(tool: ToolResource, root: Path) -> Iterator[BoundTool]:
    """Yield the exports of a Tool of the package at ``root``."""
    for export in tool.spec.exports:
        name = export.name if tool.is_v1 else build_tool_name(tool.name, export.name)
        policies = {}
        for policy in RunPolicy.model_fields:
            own = getattr(export, policy)
            policies[policy] = getattr(tool.spec, policy) if own is None else own
        policies |= {flag: bool(policies[flag]) for flag in _FLAGS}
        yield BoundTool(name, tool, export.model_copy(update=policies), entry_path(tool.spec.entry, root))


def declared_tool(
    tool: str,
    export: JsonObject,
    entry: str,
    root: Path,
    *,
    called: str = "",
    model: type[ToolResource] = ToolResource,
    version: str = API_VERSION,
    **spec: Any,
) -> BoundTool:
    """Return the single export of a Tool that no YAML declares; errors name it ``called``.

    Raises:
        ValueError: the resource is not valid.
    """
    spec |= {"entry": entry, "exports": [export]}
    resource = {"apiVersion": version, "kind": "Tool", "metadata": {"name": tool}, "spec": spec}
    try:
        [bound] = bound_exports(model.model_validate(resource), root)
    except ValidationError as error:
        faults = [f"{fault.path[-1]} {fault.error.message}" for fault in field_faults(error, model, resource)]
        raise ValueError(f"{called}: {'; '.join(faults)}") from error
    return bound


def bind_extensions(agent: Declaration, scope: Scope) -> tuple[dict[str, BoundExtension], list[FieldFault]]:
    """Resolve ``spec.extensions``; of several uses of the same Extension the last counts.

    An Agent with ``requiredTools`` whose events workers handle also gets the built-in guard.
    """
    bound: dict[str, BoundExtension] = {}
    faults: list[FieldFault] = []
    uses = list(_uses(agent, "extensions"))
    guard = Use(Ref("Extension", REQUIRED_TOOLS_GUARD))
    required: list[str] = []
    if isinstance(agent.resource, AgentResource) and agent.resource.handles_events and scope.base is not None:
        required += agent.resource.spec.required_tools
    if required:
        uses.append((("spec", "requiredTools"), guard))
    for path, use in uses:
        if use is guard and REQUIRED_TOOLS_GUARD in bound:
            continue  # the Agent declares it itself
        for extension, root in _bind(ExtensionResource, use, path, scope, faults):
            if extension is not None:
                config = copy.deepcopy({**extension.spec.config, **(use.config or {})})
                file = entry_path(extension.spec.entry, root)
                found = BoundExtension(extension.name, config, file, extension.is_v1)
                bound[extension.name] = found
    if required:
        bound[REQUIRED_TOOLS_GUARD].config.setdefault("requiredTools", required)
    return bound, faults


def find_connector(connection: Declaration, scope: Scope) -> Declaration | None:
    """Return the Connector of a Connection; ``None`` if its reference leads to none."""
    try:
        return scope.resolve(parse_ref(connection.value(("spec", "connectorRef"))), "Connector")
    except FieldError:  # it has a finding of its own
        return None


def bind_connector(connection: Declaration, scope: Scope) -> BoundConnector | None:
    """Return what runs a Connection; ``None`` if its Connector does not exist or is not valid."""
    found = find_connector(connection, scope)
    if found is None or not isinstance(found.resource, ConnectorResource):
        return None
    return BoundConnector(found.resource, entry_path(found.resource.spec.entry, scope.root_of(found)))


def _uses(agent: Declaration, name: str) -> Iterator[tuple[FieldPath, Use]]:
    for path, raw in agent.items(("spec", name)):
        try:
            yield path, parse_use(raw)
        except FieldError:
            # reported by the check of the Agent's fields
            continue


def _bind(
    model: type[_Resource], use: Use, path: FieldPath, scope: Scope, faults: list[FieldFault]
) -> Iterator[tuple[_Resource | None, Path]]:
    """Yield each resource that ``use`` selects, with its overrides, and its folder; ``None`` if invalid."""
    try:
        targets = scope.targets(use, model.__name__.removesuffix("Resource"))
    except FieldError as error:
        faults.append(FieldFault(path, error))
        yield None, scope.own.root
        return
    for target in targets:
        resource, root = target.resource, scope.root_of(target)
        if isinstance(resource, model) and use.overrides:
            changed, found = _overridden(resource, use.overrides, root, scope)
            faults += _prefixed((*path, "overrides"), found)
            yield changed, root
        else:
            yield resource if isinstance(resource, model) else None, root


def _prefixed(path: FieldPath, faults: Iterable[FieldFault]) -> list[FieldFault]:
    return [FieldFault((*path, *fault.path), fault.error) for fault in faults]


def _overridden(
    resource: _Resource, overrides: JsonObject, root: Path, scope: Scope
) -> tuple[_Resource | None, list[FieldFault]]:
    """Return the resource with the overrides, and the errors in it, by path in the resource."""
    data = merged(resource.model_dump(by_alias=True, exclude_unset=True), overrides)
    try:
        changed = type(resource).model_validate(data)
    except ValidationError as error:
        return None, list(field_faults(error, type(resource), data))
    faults: list[FieldFault] = []
    if changed.name != resource.name:
        message = f"overrides cannot rename the {resource.kind}"
        renamed = FieldError(message, "Remove the name from the overrides.")
        faults.append(FieldFault(("metadata", "name"), renamed))
    if changed.spec.entry != resource.spec.entry and (misplaced := entry_error(changed.spec.entry, root)):
        faults.append(FieldFault(("spec", "entry"), misplaced))
    if isinstance(changed, ToolResource):
        if not changed.spec.exports:
            automatic = FieldError("overrides cannot set the exports to auto", "List the exports.")
            faults.append(FieldFault(("spec", "exports"), automatic))
        if changed.spec.exports != resource.spec.exports:
            faults += _export_faults(changed)
        if changed.is_v1:
            spec = changed.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
            faults += tool_auth_faults(changed.name, spec, scope)
    return changed, faults


def merged(original: Any, changes: Any) -> Any:
    """Merge ``changes`` into ``original`` (RFC 7396): objects merge, null removes, the rest replaces."""
    if not isinstance(changes, dict):
        return changes
    result = dict(original) if isinstance(original, dict) else {}
    for name, change in changes.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


def _export_faults(tool: ToolResource) -> Iterator[FieldFault]:
    names = [export.name for export in tool.spec.exports]
    for index, export in enumerate(tool.spec.exports):
        place: FieldPath = ("spec", "exports", index)
        if export.name in names[:index]:
            message = f"duplicate export '{export.name}'"
            error = FieldError(message, "Rename one.", ConfigCode.DUPLICATE_NAME)
            yield FieldFault((*place, "name"), error)
        yield from _prefixed((*place, "parameters"), parameter_faults(export.parameters))


def parameter_faults(parameters: JsonObject | None) -> Iterator[FieldFault]:
    """Yield the error in an export's ``parameters``, if they are not a valid JSON Schema."""
    try:
        compile_schema(parameters)
    except SchemaError as error:
        message = f"not a valid JSON Schema: {error.message}"
        yield FieldFault(error.path, FieldError(message, "Correct it as JSON Schema 2020-12 requires."))


def tool_auth_faults(tool: str, spec: Any, scope: Scope) -> Iterator[FieldFault]:
    """Yield the errors in ``auth`` of an older Tool's ``spec`` and of its exports (002 §2.3).

    Scopes can only narrow: an export's must be among its Tool's, and those among the OAuthApp's. Values of a
    wrong type have their own finding, and are skipped here.
    """
    auth, exports = member(spec, "auth"), member(spec, "exports")
    app: Declaration | None = None
    try:
        ref = parse_ref(member(auth, "oauthAppRef"))
    except FieldError:
        ref = None
    try:
        app = scope.resolve(ref, "OAuthApp") if ref else None
    except FieldError as error:
        yield FieldFault(("spec", "auth", "oauthAppRef"), error)
    tool_scopes = _scopes(auth)
    narrowed = {
        index: scopes
        for index, export in enumerate(exports if isinstance(exports, list) else ())
        if (scopes := _scopes(member(export, "auth"))) is not None
    }
    # without an app, the Tool's scopes cannot be compared
    allowed = tool_scopes if app is None else _scopes(app.value(("spec",)))
    yield from scope_faults(allowed or (), tool_scopes, narrowed, app=app.name if app else "", tool=tool)


def scope_faults(
    app_scopes: Iterable[str],
    tool_scopes: Iterable[str] | None,
    export_scopes: Mapping[int, Iterable[str]],
    *,
    app: str,
    tool: str,
) -> Iterator[FieldFault]:
    """Yield the errors in the ``auth.scopes`` of a Tool and, by index, of its exports.

    A Tool without scopes (``None``) has the app's; its exports must not have any.
    """
    for scope in scopes_beyond(tool_scopes or (), app_scopes):
        yield FieldFault(("spec", "auth", "scopes"), _scope_error(scope, app_scopes, f"OAuthApp/{app}"))
    for export, scopes in export_scopes.items():
        path: FieldPath = ("spec", "exports", export, "auth", "scopes")
        if tool_scopes is None:
            error = FieldError("an export's scopes need scopes of its Tool", "Add auth.scopes to the Tool.")
            yield FieldFault(path, error)
            continue
        for scope in scopes_beyond(scopes, tool_scopes):
            yield FieldFault(path, _scope_error(scope, tool_scopes, f"Tool/{tool}"))


def _scopes(owner: Any) -> list[str] | None:
    scopes = member(owner, "scopes")
    if not isinstance(scopes, list):
        return None
    return [scope for scope in scopes if isinstance(scope, str) and scope]


def _scope_error(scope: str, allowed: Iterable[str], owner: str) -> FieldError:
    suggestion = hint(scope, sorted(set(allowed)), "Tools and exports can narrow scopes, not widen them.")
    return FieldError(f"the scope '{scope[:80]}' is not among those of {owner}", suggestion)


def build_catalog(bundle: "Bundle", agent: str) -> ToolCatalog:
    """Build the catalog of an agent from its ``spec.tools`` (001 §12.1 rule 2).

    Raises:
        AgentNotFoundError: the bundle has no such agent.
    """
    items = (
        CatalogItem(
            name=bound.name,
            description=bound.export.description,
            parameters=bound.export.parameters,
            source=ToolSource(type="config", name=bound.tool.name),
        )
        for bound in bundle.bound_tools(agent).values()
    )
    return ToolCatalog(tuple(items))
