"""The declarations in a package's files: a resource per document, valid or not, with the line of each field.

A file belongs to a bundle if its basename is one of the specification's (``goondan.yaml``, ``tools.yaml``,
…), or if one of its documents has an ``apiVersion`` of ours. So files may have any name, and the YAML of
other programs (a compose file, a workflow) is never checked.
"""

import codecs
import functools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from goondan_tasks.bundle.fields import check_tool_part
from goondan_tasks.bundle.findings import (
    ConfigCode,
    FieldError,
    FieldFault,
    Finding,
    Level,
    field_faults,
    without,
)
from goondan_tasks.bundle.resource import API_VERSION, V1_API_VERSION, Resource
from goondan_tasks.bundle.resources import RESOURCE_MODELS
from goondan_tasks.bundle.v1_resources import V1_RESOURCE_MODELS
from goondan_tasks.bundle.yaml import Document, TextFault, parse_documents, parse_fault
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import is_agent_name
from goondan_tasks.contract.wording import FieldPath, hint, member, shown, written
from goondan_tasks.machine.trees import walk

MAX_BYTES = 1_048_576

_KINDS_IN_NAMES = ("model", "agent", "tool", "extension", "connector", "connection", "swarm")
_BASENAMES = {"goondan", "resources", *_KINDS_IN_NAMES, *(f"{kind}s" for kind in _KINDS_IN_NAMES)}
_SKIPPED_FOLDERS = {"dist", "node_modules"}
_OURS = re.compile(r"(goondan\.ai|agents\.example\.io)/")
#: an ``apiVersion`` of ours in a text that cannot be parsed; not in a comment
_OURS_IN_TEXT = re.compile(r"^[^#\r\n]*?api[-_]?version[^#]{0,40}?" + _OURS.pattern, re.M | re.I)
# UTF-32's mark begins with UTF-16's
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)

#: the models of resources, by version and kind
MODELS = {API_VERSION: RESOURCE_MODELS, V1_API_VERSION: V1_RESOURCE_MODELS}
_NAME: FieldPath = ("metadata", "name")
#: by kind: a function that accepts names, and the suggestion for others
_NAME_RULES: Mapping[str, tuple[Callable[[str], object], str]] = {
    "": (
        re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?").fullmatch,
        "Use letters, digits, '.', '_' and '-'; begin and end with a letter or digit.",
    ),
    "Agent": (
        is_agent_name,
        "Use at most 63 lower-case letters, digits and '-'; begin with a letter or digit; not 'client'.",
    ),
    "Package": (
        re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]{0,213}").fullmatch,
        "Use lower-case letters, digits, '.', '_' and '-', such as my-swarm or @me/my-swarm.",
    ),
}


def is_document_name(path: str) -> bool:
    """Return whether a file, by its name, may declare resources."""
    return path.lower().endswith((".yaml", ".yml"))


def bundle_files(path: Path) -> list[Path]:
    """Return the bundle's files: ``path`` itself, or the files under it with ``goondan.yaml`` first."""
    if not path.is_dir():
        return [path]
    return sorted(_candidates(path), key=lambda file: (file.stem != "goondan", str(file)))


def _candidates(root: Path) -> Iterator[Path]:
    for folder, folders, names in walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            if not is_document_name(name) or name.startswith(".") or file.is_dir():
                continue
            if file.stem in _BASENAMES or _has_resource(file):
                yield file


def _has_resource(file: Path) -> bool:
    """Return whether the file declares a resource, or seems to and cannot be parsed."""
    try:
        data = _first_bytes(file, MAX_BYTES)
    except OSError:
        return False
    # without its NULs, Latin text in UTF-16 or UTF-32 can be read
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    if _OURS.search(text) is None:
        return False
    documents, faults = parse_documents(text, str(file))
    is_declared = any(_has_our_version(document.data) for document in documents)
    return is_declared or (bool(faults) and _OURS_IN_TEXT.search(text) is not None)


def _has_our_version(data: Any) -> bool:
    """Return whether a document, or an item of a list, has an ``apiVersion`` of ours.

    A misspelt key counts, so that the check of the resource reports it.
    """
    if isinstance(data, list):
        return any(_has_our_version(item) for item in data if isinstance(item, dict))
    return isinstance(data, dict) and any(
        isinstance(value, str) and _OURS.match(value) and re.sub("[^a-z]", "", key.lower()) == "apiversion"
        for key, value in data.items()
    )


def read_text(file: Path) -> tuple[str, list[TextFault]]:
    """Return the text of a file, and the faults that keep it from being read."""
    try:
        data = _first_bytes(file, MAX_BYTES + 1)
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror or error}"
        return "", [parse_fault(1, reason, "Check the path and its permissions.")]
    if len(data) > MAX_BYTES:
        message, suggestion = "the file is larger than 1 MiB", "Split it into several files."
        return "", [TextFault(1, FieldError(message, suggestion, ConfigCode.FILE_TOO_LARGE))]
    # every second byte of Latin text in UTF-16 is NUL, also without a byte order mark
    if data.startswith(_OTHER_ENCODINGS) or b"\0" in data[:2]:
        return "", [parse_fault(1, "the file is UTF-16 or UTF-32, not UTF-8", "Save it as UTF-8.")]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return "", [parse_fault(line, "the file is not UTF-8", "Save it as UTF-8.")]


def _first_bytes(file: Path, limit: int) -> bytes:
    # a pipe or device may never end
    if not file.is_file():
        raise FileNotFoundError(2, "no such file" if not file.exists() else "not a regular file")
    with file.open("rb") as stream:
        return stream.read(limit)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A document that declares a resource; ``resource`` is set if its fields are valid."""

    document: Document
    kind: str
    name: str
    resource: Resource | None = None

    @property
    def label(self) -> str:
        """The name of the resource in findings: ``Tool/bash``."""
        return f"{self.kind}/{self.name}" if self.kind and self.name else self.kind

    @property
    def is_v1(self) -> bool:
        """Whether the rules of the older version apply."""
        return bool(self.value(("apiVersion",)) == V1_API_VERSION)

    def value(self, path: FieldPath) -> Any:
        """Return the value at ``path`` in the YAML, or ``None``."""
        return functools.reduce(member, map(str, path), self.document.data)

    def items(self, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
        """Yield the items of the list at ``path``, each with its path; nothing if it is not a list."""
        items = self.value(path)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            yield (*path, index), item

    def item_names(self, path: FieldPath) -> Iterator[tuple[FieldPath, str]]:
        """Yield the ``name`` of each item of the list at ``path``, with its path."""
        for item_path, item in self.items(path):
            name = member(item, "name")
            if isinstance(name, str):
                yield (*item_path, "name"), name

    def finding(self, path: FieldPath, error: FieldError, level: Level = "error") -> Finding:
        file, line, place = self.document.file, self.document.line_of(path), written(path, "")
        return Finding(
            level, error.code.value, error.message, file, line, place, self.label, error.suggestion
        )

    def error(
        self, path: FieldPath, message: str, suggestion: str, code: ConfigCode = ConfigCode.SCHEMA_INVALID
    ) -> Finding:
        return self.finding(path, FieldError(message, suggestion, code))

    def warning(
        self, path: FieldPath, message: str, suggestion: str, code: ConfigCode = ConfigCode.SCHEMA_INVALID
    ) -> Finding:
        return self.finding(path, FieldError(message, suggestion, code), "warning")


def declare(document: Document) -> tuple[Declaration | None, list[Finding]]:
    """Read the resource of a document; ``None`` if its kind is unknown."""
    data = document.data
    if not isinstance(data, dict):
        message, suggestion = f"{shown(data)} is not a resource", "Write apiVersion, kind, metadata and spec."
        return None, [Declaration(document, "", "").error((), message, suggestion)]
    kind, name = data.get("kind"), member(data.get("metadata"), "name")
    named = Declaration(
        document, kind if isinstance(kind, str) else "", name if isinstance(name, str) else ""
    )
    findings, version = [], named.value(("apiVersion",))
    if version not in (API_VERSION, V1_API_VERSION):
        message = "'apiVersion' is missing" if version is None else f"{shown(version)} is not supported"
        suggestion = f"{'Add' if version is None else 'Write'} 'apiVersion: {API_VERSION}'."
        unsupported = ConfigCode.UNSUPPORTED_API_VERSION
        findings.append(named.error(("apiVersion",), message, suggestion, unsupported))
    model = MODELS[V1_API_VERSION if named.is_v1 else API_VERSION].get(named.kind)
    if model is None:
        message = "'kind' is missing" if kind is None else f"{shown(kind)} is not a kind"
        suggestion = hint(named.kind, RESOURCE_MODELS)
        return None, [*findings, named.error(("kind",), message, suggestion, ConfigCode.UNKNOWN_KIND)]
    name_error = _name_error(named)
    findings += [named.finding(_NAME, name_error)] if name_error else []
    # the fields of an unsupported version are checked anyway
    version = V1_API_VERSION if named.is_v1 else API_VERSION
    resource, faults = _read(model, {**data, "apiVersion": version})
    findings += [named.finding(*fault) for fault in faults if fault.path != _NAME]
    is_valid = all(finding.level == "warning" for finding in findings)
    return replace(named, resource=resource if is_valid else None), findings


def _read(model: type[Resource], data: JsonObject) -> tuple[Resource | None, list[FieldFault]]:
    """Validate a resource without the fields that are only warnings."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        faults = list(field_faults(error, model, data))
    older = [fault for fault in faults if fault.level == "warning"]
    if not older:
        return None, faults
    resource, rest = _read(model, without(data, [fault.path for fault in older]))
    return resource, older + rest


def _name_error(named: Declaration) -> FieldError | None:
    if not isinstance(named.value(("metadata",)), dict):
        return None
    name = named.value(_NAME)
    if not isinstance(name, str) or not name:
        message = "'name' is required" if name is None else f"the name must be text, not {shown(name)}"
        return FieldError(message, "Add 'name: …'; quote it if needed.", ConfigCode.INVALID_NAME)
    # models do not see the name of an older Tool
    if named.kind == "Tool" and not named.is_v1:
        try:
            check_tool_part(name)
        except FieldError as error:
            return error
        return None
    return name_error(named.kind, name)


def name_error(kind: str, name: str) -> FieldError | None:
    """Return why a resource of a kind other than Tool cannot have a name; ``None`` if it can."""
    accepts, suggestion = _NAME_RULES.get(kind, _NAME_RULES[""])
    if accepts(name):
        return None
    return FieldError(f"'{name[:80]}' is not a valid name", suggestion, ConfigCode.INVALID_NAME)


@dataclass(frozen=True, slots=True)
class Inventory:
    #: the folder that paths in resources start from, as given
    folder: Path
    #: the same folder, absolute and without links
    root: Path
    #: in order of files and documents
    declarations: tuple[Declaration, ...]
    #: by kind and name; of duplicates the first
    by_name: Mapping[tuple[str, str], Declaration]

    def find(self, kind: str, name: str) -> Declaration | None:
        return self.by_name.get((kind, name))

    def of_kind(self, kind: str) -> list[Declaration]:
        """Return the declarations of a kind, one per name."""
        return [declaration for declaration in self.by_name.values() if declaration.kind == kind]


def read_inventory(path: Path) -> tuple[Inventory, list[Finding]]:
    """Read a package: a file, or all files under a directory that belong to a bundle."""
    found: list[Declaration] = []
    findings: list[Finding] = []
    for file in bundle_files(path):
        text, faults = read_text(file)
        documents, syntax_faults = parse_documents(text, str(file))
        findings += [whole_file(file, fault.error, fault.line) for fault in (*faults, *syntax_faults)]
        for document in documents:
            declaration, field_findings = declare(document)
            found += [declaration] if declaration else []
            findings += field_findings
    by_name: dict[tuple[str, str], Declaration] = {}
    for declaration in found:
        first = by_name.setdefault((declaration.kind, declaration.name), declaration)
        if first is not declaration and declaration.name and declaration.kind != "Package":
            place = f"{first.document.file}:{first.document.line_of(_NAME)}"
            message = f"{declaration.label} is declared twice (first in {place})"
            suggestion = "Rename or remove one of the two."
            findings.append(declaration.error(_NAME, message, suggestion, ConfigCode.DUPLICATE_NAME))
    findings += _package_findings([item for item in found if item.kind == "Package"])
    if not found and not findings:
        error = FieldError(
            "the bundle has no resources", "Write a goondan.yaml; `goondan demo` shows an example."
        )
        findings.append(whole_file(path, error))
    folder = path if path.is_dir() else path.parent
    return Inventory(folder, folder.resolve(), tuple(found), by_name), findings


def _package_findings(packages: list[Declaration]) -> Iterator[Finding]:
    """Check that there is one Package, and that it is the first document of its file."""
    for package in packages:
        if package is not packages[0]:
            message = f"a bundle has one Package (the first is in {packages[0].document.file})"
            suggestion = "Remove one of them, or validate the two folders separately."
            yield package.error(("kind",), message, suggestion, ConfigCode.PACKAGE_DOC_DUPLICATED)
        elif package.document.index > 0:
            message = "the Package must be the first document of its file"
            suggestion = "Move it to the top of the file."
            yield package.error(("kind",), message, suggestion, ConfigCode.PACKAGE_DOC_POSITION)


def whole_file(file: Path, error: FieldError, line: int = 1) -> Finding:
    """Return ``error`` as a finding about a file rather than a resource."""
    return Finding("error", error.code.value, error.message, str(file), line, "", "", error.suggestion)
