"""A bundle in today's version of the format, file by file, and what is left to do by hand."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from goondan_tasks.bundle.binding import BASE_PACKAGE, Scope, base_package_root
from goondan_tasks.bundle.entries import ENTRY, entry_error, entry_file
from goondan_tasks.bundle.findings import BundleError, ConfigCode, FieldError, Finding, in_order
from goondan_tasks.bundle.inventory import Declaration, Inventory, read_inventory, read_text, whole_file
from goondan_tasks.bundle.resources import API_VERSION, V1_API_VERSION
from goondan_tasks.bundle.yaml import syntax_fault
from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.json_values import FieldPath
from goondan_tasks.migration.yaml_text import DocumentText, UnchangeableText, YamlText
from goondan_tasks.names import SYSTEM_TOOL, build_tool_name, is_name_part
from goondan_tasks.tool_api import ToolContext

#: what the first parameter of a handler is called
_CONTEXTS = {"ctx", "context"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class OlderUse:
    """A place in the code."""

    line: int
    #: as it is written, such as ``ctx.oauth``
    code: str


def older_uses(file: Path, kind: str) -> list[OlderUse]:
    """Return what the entry of a Tool (``kind``) or an Extension uses, by line, each name once.

    Only what is asked of the first parameter itself is seen: of functions that call it ``ctx`` in a Tool, and
    of ``register`` in an Extension. Nothing is seen in a file that cannot be read or is no Python.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    known = _names(ToolContext if kind == "Tool" else ExtensionApi)
    uses: dict[str, OlderUse] = {}
    for function in _functions(tree, kind):
        name = _first_parameter(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
                code = f"{name}.{node.attr}"
                if node.attr not in known:
                    uses.setdefault(code, OlderUse(node.lineno, code))
            elif isinstance(node, ast.Call) and _registers_one_object(node, name):
                code = f"{name}.tools.register({{…}})"
                uses.setdefault(code, OlderUse(node.lineno, code))
    return sorted(uses.values(), key=lambda use: (use.line, use.code))


def _functions(tree: ast.Module, kind: str) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if not isinstance(node, _Function) or not _first_parameter(node):
            continue
        is_handler = _first_parameter(node) in _CONTEXTS
        is_register = not isinstance(node, ast.Lambda) and node.name == "register"
        if is_handler if kind == "Tool" else is_register:
            yield node


def _first_parameter(function: _Function) -> str:
    """Return the name of what is given first; empty if nothing can be."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    return parameters[0].arg if parameters else ""


def _registers_one_object(call: ast.Call, api: str) -> bool:
    return ast.unparse(call.func) == f"{api}.tools.register" and len(call.args) + len(call.keywords) == 1


def _names(kind: type) -> set[str]:
    """Return the public names of a class: its fields, properties and methods."""
    names = {*dir(kind), *(name for one in kind.__mro__ for name in vars(one).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_")}


_ONE: Mapping[str, tuple[FieldPath, ...]] = {
    "Agent": (("spec", "modelConfig", "modelRef"),),
    "Swarm": (("spec", "entrypoint"), ("spec", "entryAgent")),
    "Connection": (("spec", "connectorRef"), ("spec", "swarmRef")),
}
_LISTS: Mapping[str, tuple[FieldPath, ...]] = {
    "Agent": (("spec", "tools"), ("spec", "extensions")),
    "Swarm": (("spec", "agents"),),
}


def reference_versions(resource: Declaration) -> Iterator[FieldPath]:
    """Yield the places of the older version in references; what looks so in other fields is their own."""
    for path in _references(resource):
        for place in ((*path, "apiVersion"), (*path, "ref", "apiVersion")):
            if resource.value(place) == V1_API_VERSION:
                yield place


def _references(resource: Declaration) -> Iterator[FieldPath]:
    yield from _ONE.get(resource.kind, ())
    for path in _LISTS.get(resource.kind, ()):
        for item, _ in resource.items(path):
            yield item


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


#: what a name of today cannot hold
_FORBIDDEN = re.compile(r"\.|__+")


@dataclass(frozen=True, slots=True)
class Renaming:
    """A Tool's names of today, by its older ones."""

    tool: str
    exports: Mapping[str, str]

    def full_names(self) -> dict[str, str]:
        """Return what the model sees, by what it saw."""
        return {old: build_tool_name(self.tool, new) for old, new in self.exports.items()}


def renaming(tool: str, exports: Iterable[str], taken: Collection[str]) -> Renaming | None:
    """Choose the names of a Tool and its exports; ``None`` if two exports would get one, or one has none.

    If all exports share a namespace, that becomes the Tool's name, unless another Tool is called so (those
    names are ``taken``), or it is the system's own.
    """

    def is_free(name: str) -> bool:
        return name != SYSTEM_TOOL and (name == tool or name not in taken)

    old = list(dict.fromkeys(exports))
    namespaces = {name.partition(".")[0] if "." in name else "" for name in old}
    namespace = namespaces.pop() if len(namespaces) == 1 else ""
    if is_name_part(namespace) and is_free(namespace):
        names = Renaming(namespace, {name: _today(name.partition(".")[2]) for name in old})
    else:
        names = Renaming(_today(tool), {name: _today(name) for name in old})
    new = list(names.exports.values())
    is_usable = all(map(is_name_part, [names.tool, *new])) and len(set(new)) == len(new)
    return names if is_usable and is_free(names.tool) else None


def _today(name: str) -> str:
    return _FORBIDDEN.sub("-", name)


_TOOL = "Tool/"
_NAMED: Mapping[str, FieldPath] = {
    "Agent": ("spec", "requiredTools"),
    "Swarm": ("spec", "policy", "toolCalls", "approval"),
}


class Mention(NamedTuple):
    """A place in a resource, and what is to stand there."""

    path: FieldPath
    text: str


def tool_mentions(agent: Declaration, names: Mapping[str, str]) -> Iterator[Mention]:
    """Yield where an Agent uses Tools of this bundle whose names change, by their older ``names``."""
    for path, raw in agent.items(("spec", "tools")):
        yield from _in_use(path, raw, names)


def _in_use(path: FieldPath, raw: Any, names: Mapping[str, str]) -> Iterator[Mention]:
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


_VERSION: FieldPath = ("apiVersion",)
_ENTRYPOINT: FieldPath = ("spec", "entrypoint")
_SHARED = (
    "other places share its text, by an anchor (&name) or an alias (*name)",
    "Write the text out twice.",
)
_TANGLED = (
    "the text of this field cannot be changed by itself",
    "Write each field on a line of its own, as 'name: value'.",
)
_UNREADABLE = {ConfigCode.PARSE_ERROR, ConfigCode.FILE_TOO_LARGE, ConfigCode.TOO_MANY_DOCUMENTS}


@dataclass(frozen=True, slots=True)
class Migration:
    """The files of a bundle as they are to be, in its order."""

    files: dict[Path, str]
    changed: tuple[Path, ...]
    #: an error says what could not be migrated, a warning what else must change with it
    findings: list[Finding]


def migrate_bundle(path: Path) -> Migration:
    """Rewrite a bundle for today's version; nothing is written. What cannot be rewritten stays as it is.

    A bundle may hold resources of both versions, so the rest works on.

    Raises:
        BundleError: a file cannot be read, or is no YAML, or there is not a resource at all.
    """
    inventory, findings = read_inventory(path)
    unreadable = [finding for finding in findings if finding.code in _UNREADABLE]
    if unreadable or not inventory.declarations:
        raise BundleError(unreadable or findings)
    unknown = [finding for finding in findings if finding.code == ConfigCode.UNKNOWN_KIND]
    return _Rewriting(inventory, unknown).migration()


@dataclass(slots=True)
class _Rewriting:
    inventory: Inventory
    findings: list[Finding]
    texts: dict[Path, YamlText] = field(default_factory=dict)
    #: by the older name of the Tool
    renamings: dict[str, Renaming] = field(default_factory=dict)

    def migration(self) -> Migration:
        declarations = self.inventory.declarations
        for file in dict.fromkeys(Path(declaration.document.file) for declaration in declarations):
            self.texts[file] = _yaml_text(file)
        before = {file: text.text for file, text in self.texts.items()}
        moving = [resource for resource in declarations if resource.is_v1 and self._can_move(resource)]
        for resource in moving:
            if resource.kind != "Tool" or self._renames(resource):
                self._move(resource)
        for resource in declarations:
            self._follow(resource)
        files = {file: text.text for file, text in self.texts.items()}
        changed = tuple(file for file, text in files.items() if text != before[file])
        return Migration(files, changed, in_order(self.findings))

    def _can_move(self, resource: Declaration) -> bool:
        found = list(obstacles(resource, self.inventory.root))
        found += [
            stays(resource, path, *_SHARED) for path in _places(resource) if self._is_shared(resource, path)
        ]
        self.findings += found
        return not found

    def _renames(self, tool: Declaration) -> bool:
        """Choose today's names of a Tool and its exports."""
        base = Scope(self.inventory, base_package_root()).base
        inventories = filter(None, (self.inventory, base))
        taken = {other.name for one in inventories for other in one.of_kind("Tool")}
        taken |= {names.tool for names in self.renamings.values()}
        exports = [name for _, name in _export_names(tool)]
        names = renaming(tool.name, exports, taken) if tool.name else None
        # of an export that two Tools have, nobody can say which one a requiredTools means
        if names is None or tool.name in self.renamings or self._full_names().keys() & names.exports.keys():
            message = "its names have no form of today that no other has"
            self.findings.append(
                stays(tool, ("spec", "exports"), message, "Rename the Tool, or its exports.")
            )
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
            self.findings.append(stays(resource, error.path, *_TANGLED))
            return
        if resource.kind == "Tool":
            self.findings += _renaming_findings(resource, self.renamings[resource.name])
        self.findings += dropped_findings(resource)

    def _rewrite(self, resource: Declaration) -> None:
        text = self._text(resource)
        text.replace(_VERSION, API_VERSION)
        for path in reference_versions(resource):
            if not self._is_shared(resource, path):  # nobody looks at it there
                text.replace(path, API_VERSION)
        for path in dropped_fields(resource):
            text.remove(path)
        if resource.kind == "Swarm" and resource.value(_ENTRYPOINT) is not None:
            text.rename(_ENTRYPOINT, "entryAgent")
        if resource.kind == "Tool":
            names = self.renamings[resource.name]
            new = {path: names.exports[name] for path, name in _export_names(resource)}
            for path, name in {("metadata", "name"): names.tool, **new}.items():
                if resource.value(path) != name:
                    text.replace(path, name)

    def _follow(self, resource: Declaration) -> None:
        """Have an Agent or a Swarm, of whatever version, name Tools as they are called now."""
        tools = {old: names.tool for old, names in self.renamings.items() if names.tool != old}
        exports = self._full_names()
        mentions = list(export_mentions(resource, exports))
        if resource.kind == "Agent":
            mentions += tool_mentions(resource, tools)
            for path, _ in resource.items(("spec", "tools")) if self.renamings else ():
                self.findings += override_findings(resource, path)
        self.findings += glob_findings(resource, exports)
        self._write(resource, mentions)

    def _is_shared(self, resource: Declaration, path: FieldPath) -> bool:
        return self._text(resource).is_shared(path)

    def _text(self, resource: Declaration) -> DocumentText:
        return self.texts[Path(resource.document.file)].document(resource.document.index)

    def _full_names(self) -> dict[str, str]:
        return {old: new for names in self.renamings.values() for old, new in names.full_names().items()}

    def _write(self, resource: Declaration, mentions: list[Mention]) -> None:
        for path, text in mentions:
            if resource.value(path) != text and not self._is_written(resource, path, text):
                suggestion = "Write it by hand: other places share the text, or are bound up with it."
                error = FieldError(f"'{text}' must stand here", suggestion)
                self.findings.append(resource.finding(path, error))

    def _is_written(self, resource: Declaration, path: FieldPath, text: str) -> bool:
        if self._is_shared(resource, path):
            return False
        try:
            self._text(resource).replace(path, text)
        except UnchangeableText:
            return False
        return True


def _yaml_text(file: Path) -> YamlText:
    text = read_text(file)[0]
    try:
        return YamlText(text)
    except yaml.MarkedYAMLError as error:
        fault = syntax_fault(error, text)
        raise BundleError([whole_file(file, fault.error, fault.line)]) from error


def _places(resource: Declaration) -> list[FieldPath]:
    """Return the places of an older resource that change."""
    names: list[FieldPath] = [("metadata", "name"), *(path for path, _ in _export_names(resource))]
    by_kind = {"Swarm": [_ENTRYPOINT], "Tool": names}
    fields = [path for path in by_kind.get(resource.kind, []) if resource.value(path) is not None]
    return [_VERSION, *dropped_fields(resource), *fields]


def _export_names(tool: Declaration) -> Iterator[tuple[FieldPath, str]]:
    for path, _ in tool.items(("spec", "exports")):
        name = tool.value((*path, "name"))
        if isinstance(name, str):
            yield (*path, "name"), name


def _renaming_findings(tool: Declaration, names: Renaming) -> Iterator[Finding]:
    full = names.full_names()
    for path, name in _export_names(tool):
        suggestion = "Programs and prompts that name the tool need the new name."
        if names.exports[name] != name:
            entry = tool.value(("spec", "entry"))
            suggestion = f"Call its handler '{names.exports[name]}' in {entry}. {suggestion}"
        message = f"the model sees '{full[name]}' in place of '{name}'"
        error = FieldError(message, suggestion, ConfigCode.INVALID_NAME)
        yield tool.finding(path, error, "warning")
