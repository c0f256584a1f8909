"""Migrates a bundle to the current version of the format, and reports what is left to do by hand."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

from goondan_tasks.authoring.extension_api import ExtensionApi
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle.binding import BASE_PACKAGE, Scope, base_package_root
from goondan_tasks.bundle.entries import ENTRY, entry_error, entry_file
from goondan_tasks.bundle.findings import BundleError, ConfigCode, Finding, in_order
from goondan_tasks.bundle.inventory import Declaration, Inventory, read_inventory, read_text, whole_file
from goondan_tasks.bundle.resource import API_VERSION, V1_API_VERSION
from goondan_tasks.bundle.resources import ModelSpec
from goondan_tasks.bundle.yaml import syntax_fault
from goondan_tasks.contract.names import SYSTEM_TOOL, build_tool_name, is_name_part
from goondan_tasks.contract.wording import FieldPath
from goondan_tasks.migration.yaml_text import DocumentText, UnchangeableText, YamlText

_VERSION: FieldPath = ("apiVersion",)
_ENTRYPOINT: FieldPath = ("spec", "entrypoint")
_EXPORTS: FieldPath = ("spec", "exports")
_MODEL: FieldPath = ("spec", "modelConfig")
_UNREADABLE = {ConfigCode.PARSE_ERROR, ConfigCode.FILE_TOO_LARGE, ConfigCode.TOO_MANY_DOCUMENTS}
#: where references to other resources may be; in a list, in each item
_REFERENCES: Mapping[str, tuple[FieldPath, ...]] = {
    "Agent": (("spec", "modelConfig", "modelRef"), ("spec", "tools"), ("spec", "extensions")),
    "Swarm": (_ENTRYPOINT, ("spec", "entryAgent"), ("spec", "agents")),
    "Connection": (("spec", "connectorRef"), ("spec", "swarmRef")),
}
#: fields that were renamed
_RENAMED: Mapping[str, Mapping[FieldPath, str]] = {
    "Swarm": {_ENTRYPOINT: "entryAgent"},
    "Model": {("spec", "name"): "model", ("spec", "endpoint"): "baseUrl"},
}
#: where tools are named by their full names
_TOOL_NAMES: Mapping[str, FieldPath] = {
    "Agent": ("spec", "requiredTools"),
    "Swarm": ("spec", "policy", "toolCalls", "approval"),
}
#: fields without effect, which the current version lacks
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
#: fields that are dropped without a warning, because their only effect is the default
_SELF_EVIDENT = {"runtime", "queueMode"}
_OWN_EXTENSION = "Write an Extension that requests tokens (api.oauth) and registers the tool."
_OWN_CONNECT = "Keep it, it runs as it is; or write `connect(ctx)`, and route its events in a Connection."
_OWN_RULES = "Keep it, it runs as it is; or write 'secrets' and 'ingress.rules'."
_OWN_OPTION = "Move it into 'options', or remove it."
#: text that names of the current version cannot contain
_FORBIDDEN = re.compile(r"\.|__+")
#: names of a handler's first parameter
_CONTEXTS = {"ctx", "context"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Migration:
    """The new texts of a bundle's files, in its order."""

    files: dict[Path, str]
    changed: tuple[Path, ...]
    #: errors for what could not be migrated, warnings for what else must change
    findings: list[Finding]


def migrate_bundle(path: Path) -> Migration:
    """Return the texts of a bundle for the current version, without writing files.

    Resources that cannot be migrated are kept. A bundle may contain resources of both versions, so a partly
    migrated one works.

    Raises:
        BundleError: a file cannot be read, or is not YAML, or there is no resource at all.
    """
    inventory, findings = read_inventory(path)
    unreadable = [finding for finding in findings if finding.code in _UNREADABLE]
    if unreadable or not inventory.declarations:
        raise BundleError(unreadable or findings)
    unknown = [finding for finding in findings if finding.code == ConfigCode.UNKNOWN_KIND]
    files = dict.fromkeys(Path(declaration.document.file) for declaration in inventory.declarations)
    rewriting = _Rewriting(inventory, unknown, {file: _yaml_text(file) for file in files})
    before = {file: text.text for file, text in rewriting.texts.items()}
    rewriting.run()
    after = {file: text.text for file, text in rewriting.texts.items()}
    changed = tuple(file for file, text in after.items() if text != before[file])
    return Migration(after, changed, in_order(rewriting.findings))


def _yaml_text(file: Path) -> YamlText:
    text = read_text(file)[0]
    try:
        return YamlText(text)
    except yaml.MarkedYAMLError as error:
        fault = syntax_fault(error, text)
        raise BundleError([whole_file(file, fault.error, fault.line)]) from error


@dataclass(frozen=True, slots=True)
class _Renaming:
    """The new names of a Tool and its exports; the exports by their older names."""

    tool: str
    exports: Mapping[str, str]

    def full_names(self) -> dict[str, str]:
        """Return the full names of the tools, by their older names."""
        return {old: build_tool_name(self.tool, new) for old, new in self.exports.items()}


@dataclass(slots=True)
class _Rewriting:
    inventory: Inventory
    findings: list[Finding]
    texts: dict[Path, YamlText]
    #: by the older name of the Tool
    renamings: dict[str, _Renaming] = field(default_factory=dict)

    def run(self) -> None:
        declarations = self.inventory.declarations
        for resource in [one for one in declarations if one.is_v1 and self._can_move(one)]:
            if resource.kind != "Tool" or self._choose_names(resource):
                self._move(resource)
        for resource in declarations:
            self._follow(resource)

    def _can_move(self, resource: Declaration) -> bool:
        found = list(_obstacles(resource, self.inventory.root))
        places = [_VERSION, *_dropped(resource), *_renamed(resource)]
        if resource.kind == "Tool":
            places += [path for path, _ in _tool_names(resource)]
        message = "other places share its text, by an anchor (&name) or an alias (*name)"
        shared = filter(self._text(resource).is_shared, places)
        found += [_stays(resource, path, message, "Write the text out twice.") for path in shared]
        self.findings += found
        return not found

    def _choose_names(self, tool: Declaration) -> bool:
        """Choose the new names of a Tool and its exports."""
        base = Scope(self.inventory, base_package_root()).base
        taken = {other.name for one in (self.inventory, base) if one for other in one.of_kind("Tool")}
        taken |= {names.tool for names in self.renamings.values()}
        exports = [name for _, name in tool.item_names(_EXPORTS)]
        names = _renaming(tool.name, exports, taken) if tool.name else None
        # an older name that two Tools share would be ambiguous in requiredTools
        if names is None or tool.name in self.renamings or self._full_names().keys() & names.exports.keys():
            message = "its names cannot be converted without a conflict"
            self.findings.append(_stays(tool, _EXPORTS, message, "Rename the Tool, or its exports."))
            return False
        self.renamings[tool.name] = names
        return True

    def _move(self, resource: Declaration) -> None:
        try:
            with self._text(resource).all_or_none():
                self._rewrite(resource)
        except UnchangeableText as error:
            if resource.kind == "Tool":
                del self.renamings[resource.name]
            message = "the text of this field cannot be changed alone"
            suggestion = "Write each field on a line of its own, as 'name: value'."
            self.findings.append(_stays(resource, error.path, message, suggestion))
            return
        if resource.kind == "Tool":
            self.findings += _renaming_findings(resource, self.renamings[resource.name])
        for path in _dropped(resource):
            if path[-1] not in _SELF_EVIDENT:
                message = f"'{path[-1]}' had no effect and is left out"
                self.findings.append(resource.warning(path, message, "Nothing needs to be done."))
        if resource.kind == "Agent" and resource.value(_MODEL) and resource.value(ENTRY) is None:
            message = "workers handle the Agent's events with this model from now on"
            suggestion = "Remove 'modelConfig', or add an 'entry', if a program of yours handles them."
            self.findings.append(resource.warning(_MODEL, message, suggestion))

    def _rewrite(self, resource: Declaration) -> None:
        text = self._text(resource)
        text.replace(_VERSION, API_VERSION)
        for path in _reference_versions(resource):
            if not text.is_shared(path):  # a version left in a reference has no effect
                text.replace(path, API_VERSION)
        for path in _dropped(resource):
            text.remove(path)
        for path, name in _renamed(resource).items():
            text.rename(path, name)
        if resource.kind == "Tool":
            names = self.renamings[resource.name]
            for path, name in _tool_names(resource):
                new = names.tool if path[0] == "metadata" else names.exports[name]
                if new != name:
                    text.replace(path, new)

    def _follow(self, resource: Declaration) -> None:
        """Use the new names of Tools in an Agent or a Swarm of either version."""
        tools = {old: names.tool for old, names in self.renamings.items() if names.tool != old}
        exports = self._full_names()
        named = list(resource.items(_TOOL_NAMES.get(resource.kind, ())))
        mentions = [
            (path, exports[name]) for path, name in named if isinstance(name, str) and name in exports
        ]
        if resource.kind == "Agent":
            for path, raw in resource.items(("spec", "tools")):
                mentions += _tool_mentions(path, raw, tools)
                self.findings += _override_findings(resource, path) if self.renamings else ()
        self.findings += _glob_findings(resource, exports)
        for path, text in mentions:
            if resource.value(path) != text and not self._is_written(resource, path, text):
                suggestion = "Write it by hand: other places share the text or depend on it."
                self.findings.append(resource.error(path, f"'{text}' must be written here", suggestion))

    def _text(self, resource: Declaration) -> DocumentText:
        return self.texts[Path(resource.document.file)].document(resource.document.index)

    def _full_names(self) -> dict[str, str]:
        return {old: new for names in self.renamings.values() for old, new in names.full_names().items()}

    def _is_written(self, resource: Declaration, path: FieldPath, text: str) -> bool:
        if self._text(resource).is_shared(path):
            return False
        try:
            self._text(resource).replace(path, text)
        except UnchangeableText:
            return False
        return True


def _tool_names(tool: Declaration) -> list[tuple[FieldPath, str]]:
    """Return where a Tool's own name and those of its exports are, with the older names."""
    own: list[tuple[FieldPath, str]] = [(("metadata", "name"), tool.name)] if tool.name else []
    return [*own, *tool.item_names(_EXPORTS)]


def _dropped(resource: Declaration) -> list[FieldPath]:
    """Return the fields of an older resource that the current version lacks and that had no effect."""
    return [path for path in _DROPPED.get(resource.kind, ()) if resource.value(path) is not None]


def _renamed(resource: Declaration) -> Mapping[FieldPath, str]:
    """Return the renamed fields of an older resource, with their new names."""
    renamed = _RENAMED.get(resource.kind, {})
    return {path: name for path, name in renamed.items() if resource.value(path) is not None}


def _reference_versions(resource: Declaration) -> Iterator[FieldPath]:
    """Yield where references name the older version; the same text in other fields is kept."""
    for path in _REFERENCES.get(resource.kind, ()):
        is_list = isinstance(resource.value(path), list)
        for owner in [item for item, _ in resource.items(path)] if is_list else [path]:
            for place in ((*owner, "apiVersion"), (*owner, "ref", "apiVersion")):
                if resource.value(place) == V1_API_VERSION:
                    yield place


def _renaming(tool: str, exports: Iterable[str], taken: Collection[str]) -> _Renaming | None:
    """Choose the names of a Tool and its exports: ``slack.post`` becomes ``slack__post``.

    A namespace that all exports share becomes the Tool's name, unless it is reserved or ``taken`` by another
    Tool. Return ``None`` if two exports would get the same name, or one would get none.
    """

    def is_free(name: str) -> bool:
        return name != SYSTEM_TOOL and (name == tool or name not in taken)

    old = list(dict.fromkeys(exports))
    namespaces = {name.partition(".")[0] if "." in name else "" for name in old}
    namespace = namespaces.pop() if len(namespaces) == 1 else ""
    shared = is_name_part(namespace) and is_free(namespace)
    new_tool = namespace if shared else _FORBIDDEN.sub("-", tool)
    short = {name: name.partition(".")[2] if shared else name for name in old}
    names = _Renaming(new_tool, {name: _FORBIDDEN.sub("-", part) for name, part in short.items()})
    new = list(names.exports.values())
    is_usable = all(map(is_name_part, [names.tool, *new])) and len(set(new)) == len(new)
    return names if is_usable and is_free(names.tool) else None


def _renaming_findings(tool: Declaration, names: _Renaming) -> Iterator[Finding]:
    full = names.full_names()
    for path, name in tool.item_names(_EXPORTS):
        suggestion = "Programs and prompts that name the tool need the new name."
        if names.exports[name] != name:
            suggestion = f"Call its handler '{names.exports[name]}' in {tool.value(ENTRY)}. {suggestion}"
        message = f"the model sees '{full[name]}' instead of '{name}'"
        yield tool.warning(path, message, suggestion, ConfigCode.INVALID_NAME)


def _tool_mentions(path: FieldPath, raw: Any, names: Mapping[str, str]) -> Iterator[tuple[FieldPath, str]]:
    """Yield where an item of an Agent's ``tools`` uses a renamed Tool of this bundle, and the new text."""
    if isinstance(raw, str) and raw.startswith("Tool/") and raw.removeprefix("Tool/") in names:
        yield path, f"Tool/{names[raw.removeprefix('Tool/')]}"
    if not isinstance(raw, dict):
        return
    for key in ("ref", "selector"):
        yield from _tool_mentions((*path, key), raw.get(key), names)
    name = raw.get("name")
    is_ours = raw.get("kind") in (None, "Tool") and raw.get("package") != BASE_PACKAGE
    if isinstance(name, str) and name in names and is_ours:
        yield (*path, "name"), names[name]


def _override_findings(agent: Declaration, path: FieldPath) -> Iterator[Finding]:
    """Yield the overrides in an item of an Agent's ``tools`` that only older Tools have."""
    for name in ("runtime", "auth", "exports"):
        place = (*path, "overrides", "spec", name)
        if agent.value(place) is not None:
            yield agent.warning(
                place, f"'{name}' may be meant for an older Tool", "Rewrite it for the new Tool."
            )


def _glob_findings(swarm: Declaration, names: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the globs of approvals that matched a tool by its older name and no longer match it."""
    for path, glob in swarm.items(_TOOL_NAMES["Swarm"]) if swarm.kind == "Swarm" else ():
        for old, new in names.items() if isinstance(glob, str) and glob not in names else ():
            if fnmatchcase(old, glob) and not fnmatchcase(new, glob):
                message = f"'{glob[:80]}' matched '{old}', which is now '{new}'"
                yield swarm.error(path, message, f"Add '{new}', or a glob that matches it.")


def _stays(resource: Declaration, path: FieldPath, message: str, suggestion: str) -> Finding:
    """Return the finding that a resource cannot be migrated."""
    return resource.error(path, f"not migrated: {message}", suggestion, ConfigCode.UNSUPPORTED_API_VERSION)


def _obstacles(resource: Declaration, root: Path) -> Iterator[Finding]:
    """Yield why a resource cannot be migrated: the new version lacks what its fields or its code use."""
    for path, suggestion in _lost_fields(resource):
        if resource.value(path) is not None:
            yield _stays(resource, path, f"the current version has no '{path[-1]}'", suggestion)
    spec = resource.value(("spec",))
    for path, name in _renamed(resource).items():
        if isinstance(spec, dict) and name in spec:
            message = f"it has both '{path[-1]}' and '{name}'"
            yield _stays(resource, ("spec", name), message, "Remove one of the two.")
    if resource.kind == "Model" and isinstance(spec, dict) and not {"name", "model"} & spec.keys():
        yield _stays(resource, ("spec",), "it names no model", "Add 'model', as the provider names it.")
    if resource.kind not in ("Tool", "Extension"):
        return
    entry = resource.value(ENTRY)
    if isinstance(entry, str) and (error := entry_error(entry, root)):
        yield _stays(resource, ENTRY, error.message, error.suggestion)
    file = entry_file(resource, root)
    for code, line in _older_uses(file, resource.kind).items() if file else ():
        message = f"the code uses '{code}', which the current version does not have"
        found = _stays(resource, ENTRY, message, "Rewrite that part of the code, then migrate again.")
        yield replace(found, file=str(file), line=line)


def _lost_fields(resource: Declaration) -> Iterator[tuple[FieldPath, str]]:
    if resource.kind == "Tool":
        for owner in (("spec",), *(path for path, _ in resource.items(_EXPORTS))):
            yield (*owner, "auth"), _OWN_EXTENSION
    elif resource.kind == "Model":
        spec, known = resource.value(("spec",)), {to_camel(name) for name in ModelSpec.model_fields}
        for name in spec if isinstance(spec, dict) else ():
            if ("spec", name) not in _RENAMED["Model"] and name not in known:
                yield ("spec", name), _OWN_OPTION
    elif resource.kind == "Connector":
        for name in ("triggers", "ingress", "auth"):
            yield ("spec", name), _OWN_CONNECT
    elif resource.kind == "Connection":
        for name in ("auth", "rules"):
            yield ("spec", name), _OWN_RULES


def _older_uses(file: Path, kind: str) -> dict[str, int]:
    """Return what an entry uses of the older context or api that the new one lacks, with line numbers.

    Only attributes of the first parameter are found: in a Tool, of functions that call it ``ctx`` or
    ``context``; in an Extension, of ``register``. A file that is unreadable or not Python has no findings.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return {}
    api = ToolContext if kind == "Tool" else ExtensionApi
    known = set(dir(api))
    uses: dict[str, int] = {}
    for function, name in _functions(tree, kind):
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
                if node.attr.startswith("_") or node.attr not in known:
                    uses.setdefault(f"{name}.{node.attr}", node.lineno)
            elif isinstance(node, ast.Call) and _registers_one_object(node, name):
                uses.setdefault(f"{name}.tools.register({{…}})", node.lineno)
    return dict(sorted(uses.items(), key=lambda use: (use[1], use[0])))


def _functions(tree: ast.Module, kind: str) -> Iterator[tuple[_Function, str]]:
    """Yield the functions that receive a context or an api, with the name of that parameter."""
    for node in ast.walk(tree):
        parameters = [*node.args.posonlyargs, *node.args.args] if isinstance(node, _Function) else []
        if isinstance(node, _Function) and parameters:
            is_register = not isinstance(node, ast.Lambda) and node.name == "register"
            if parameters[0].arg in _CONTEXTS if kind == "Tool" else is_register:
                yield node, parameters[0].arg


def _registers_one_object(call: ast.Call, api: str) -> bool:
    return ast.unparse(call.func) == f"{api}.tools.register" and len(call.args) + len(call.keywords) == 1
