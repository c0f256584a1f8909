"""A bundle in today's version of the format, file by file, and what is left to do by hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from goondan_tasks.bundle.base_package import base_package_root
from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.documents import syntax_fault
from goondan_tasks.bundle.files import read_text
from goondan_tasks.bundle.findings import BundleError, ConfigCode, FieldError, Finding, in_order
from goondan_tasks.bundle.inventory import Inventory, read_inventory, whole_file
from goondan_tasks.bundle.resources import API_VERSION
from goondan_tasks.bundle.scope import Scope
from goondan_tasks.json_values import Path as FieldPath
from goondan_tasks.migration.reference_versions import reference_versions
from goondan_tasks.migration.resource_changes import (
    dropped_fields,
    dropped_findings,
    obstacles,
    override_findings,
    stays,
)
from goondan_tasks.migration.tool_names import Renaming, renaming
from goondan_tasks.migration.tool_references import Mention, export_mentions, glob_findings, tool_mentions
from goondan_tasks.migration.yaml_text import DocumentText, UnchangeableText, YamlText

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
        BundleError: a file cannot be read, or is no YAML, or there is no resource at all.
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
