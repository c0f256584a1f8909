"""Everything that the files of one package declare, valid or not."""

import codecs
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

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
from goondan_tasks.bundle.resources import API_VERSION, RESOURCE_MODELS, V1_API_VERSION, Resource
from goondan_tasks.bundle.v1_resources import V1_RESOURCE_MODELS
from goondan_tasks.bundle.yaml import Document, TextFault, parse_documents, parse_fault
from goondan_tasks.json_values import FieldPath, member, shown, written
from goondan_tasks.messages import JsonObject
from goondan_tasks.names import is_agent_name
from goondan_tasks.spelling import hint

MAX_BYTES = 1_048_576

_SUFFIXES = (".yaml", ".yml")
_BASENAMES = {
    "goondan",
    "resources",
    *(
        name + plural
        for name in ("model", "agent", "tool", "extension", "connector", "connection", "swarm")
        for plural in ("", "s")
    ),
}
_SKIPPED_FOLDERS = {"dist", "node_modules"}
_OURS = re.compile(r"(goondan\.ai|agents\.example\.io)/")
#: how a text that cannot be parsed says the same; comments do not count
_OURS_IN_TEXT = re.compile(r"^[^#\r\n]*?api[-_]?version[^#]{0,40}?" + _OURS.pattern, re.M | re.I)
#: UTF-32's begins with UTF-16's
_OTHER_ENCODINGS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)


def bundle_files(path: Path) -> list[Path]:
    """Return the bundle's files: ``path`` itself, or those under it, ``goondan.yaml`` first."""
    if not path.is_dir():
        return [path]
    return sorted(_candidates(path), key=lambda file: (file.stem != "goondan", str(file)))


def is_document_name(path: str) -> bool:
    """Say whether a file, by its name, may declare resources."""
    return path.lower().endswith(_SUFFIXES)


def read_text(file: Path) -> tuple[str, list[TextFault]]:
    """Return the text of a file, or why there is none."""
    try:
        data = _first_bytes(file, MAX_BYTES + 1)
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror or error}"
        return "", [parse_fault(1, reason, "Check the path and its permissions.")]
    if len(data) > MAX_BYTES:
        too_large = FieldError(
            "the file is larger than 1 MiB", "Split it into several files.", ConfigCode.FILE_TOO_LARGE
        )
        return "", [TextFault(1, too_large)]
    # without a byte order mark, every second byte of Latin text is NUL
    if data.startswith(_OTHER_ENCODINGS) or b"\0" in data[:2]:
        return "", [parse_fault(1, "the file is UTF-16 or UTF-32, not UTF-8", "Save it as UTF-8.")]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return "", [parse_fault(line, "the file is not UTF-8", "Save it as UTF-8.")]


def _candidates(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(".")]
        for name in names:
            file = Path(folder, name)
            if is_document_name(name) and not name.startswith(".") and _belongs(file):
                yield file


def _belongs(file: Path) -> bool:
    if file.is_dir():
        return False
    return file.stem in _BASENAMES or _says_ours(file)


def _says_ours(file: Path) -> bool:
    """Say whether the file declares a resource, or would if it could be read."""
    try:
        data = _first_bytes(file, MAX_BYTES)
    except OSError:
        return False
    # of UTF-16 and UTF-32, Latin text is left without the NULs
    text = data.decode("utf-8-sig", "replace").replace("\0", "")
    if _OURS.search(text) is None:
        return False
    documents, faults = parse_documents(text, str(file))
    if any(_declares(document.data) for document in documents):
        return True
    return bool(faults) and _OURS_IN_TEXT.search(text) is not None


def _declares(data: Any) -> bool:
    """Say whether a document, or an item of one that is a list, has an ``apiVersion`` of ours.

    A misspelt key counts: the check of the resource says what is wrong with it.
    """
    if isinstance(data, list):
        return any(_declares(item) for item in data if isinstance(item, dict))
    fields = data.items() if isinstance(data, dict) else ()
    return any(
        isinstance(value, str) and _OURS.match(value) and re.sub("[^a-z]", "", key.lower()) == "apiversion"
        for key, value in fields
    )


def _first_bytes(file: Path, limit: int) -> bytes:
    # a pipe or a device would never end
    if not file.is_file():
        raise FileNotFoundError(2, "no such file" if not file.exists() else "this is no regular file")
    with file.open("rb") as stream:
        return stream.read(limit)


_NAME_PATH: FieldPath = ("metadata", "name")


class _NameRule(NamedTuple):
    accepts: Callable[[str], object]
    suggestion: str


_GENERAL_RULE = _NameRule(
    re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?").fullmatch,
    "Use letters, digits, '.', '_' and '-'; begin and end with a letter or digit.",
)
_NAME_RULES = {
    "Agent": _NameRule(
        is_agent_name,
        "Use lower-case letters, digits and '-', 63 at most; begin with a letter or digit; not 'client'.",
    ),
    "Package": _NameRule(
        re.compile(r"(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]{0,213}").fullmatch,
        "Use lower-case letters, digits, '.', '_' and '-', such as my-swarm or @me/my-swarm.",
    ),
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """A document that says which resource it is; ``resource`` is there if its fields are valid."""

    document: Document
    kind: str
    name: str
    resource: Resource | None = None

    @property
    def label(self) -> str:
        """The resource as findings name it: ``Tool/bash``."""
        return f"{self.kind}/{self.name}" if self.kind and self.name else self.kind

    @property
    def is_v1(self) -> bool:
        """Whether the rules of the older version are the resource's own."""
        return bool(self.value(("apiVersion",)) == V1_API_VERSION)

    def value(self, path: FieldPath) -> Any:
        """Return what the YAML says at ``path``, or ``None``."""
        value = self.document.data
        for step in path:
            value = member(value, str(step))
        return value

    def items(self, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
        """Yield the items of the list at ``path``, each with its own path; nothing if it is no list."""
        items = self.value(path)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            yield (*path, index), item

    def finding(self, path: FieldPath, error: FieldError, level: Level = "error") -> Finding:
        """Return the finding that ``error`` is at ``path``."""
        return Finding(
            level=level,
            code=error.code.value,
            message=error.message,
            file=self.document.file,
            line=self.document.line_of(path),
            path=written(path, ""),
            resource=self.label,
            suggestion=error.suggestion,
        )


def declare(document: Document) -> tuple[Declaration | None, list[Finding]]:
    """Read the resource of a document; ``None`` if the document does not say what it is."""
    data = document.data
    if not isinstance(data, dict):
        error = FieldError(f"{shown(data)} is no resource", "Write apiVersion, kind, metadata and spec.")
        return None, [Declaration(document, "", "").finding((), error)]
    named = Declaration(document, _text(data.get("kind")), _text(member(data.get("metadata"), "name")))
    version_error = _version_error(data.get("apiVersion"))
    findings = [named.finding(("apiVersion",), version_error)] if version_error else []
    model = (V1_RESOURCE_MODELS if named.is_v1 else RESOURCE_MODELS).get(named.kind)
    if model is None:
        return None, [*findings, named.finding(("kind",), _unknown_kind(data.get("kind")))]
    name_error = _name_error(data, is_v1=named.is_v1)
    findings += [named.finding(_NAME_PATH, name_error)] if name_error else []
    # an unsupported version has a finding of its own, and the fields are checked all the same
    version = V1_API_VERSION if named.is_v1 else API_VERSION
    resource, faults = _read(model, {**data, "apiVersion": version})
    own = [fault for fault in faults if fault.path != _NAME_PATH]
    findings += [named.finding(fault.path, fault.error, fault.level) for fault in own]
    is_valid = all(finding.level == "warning" for finding in findings)
    return replace(named, resource=resource if is_valid else None), findings


def _read(model: type[Resource], data: JsonObject) -> tuple[Resource | None, list[FieldFault]]:
    """Validate a resource, without the fields that it can do without."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        faults = list(field_faults(error, model, data))
    older = [fault for fault in faults if fault.level == "warning"]
    if not older:
        return None, faults
    resource, rest = _read(model, without(data, [fault.path for fault in older]))
    return resource, older + rest


def _version_error(version: Any) -> FieldError | None:
    if version in (API_VERSION, V1_API_VERSION):
        return None
    if version is None:
        message, suggestion = "'apiVersion' is missing", f"Add 'apiVersion: {API_VERSION}'."
    else:
        message, suggestion = f"{shown(version)} is not supported", f"Write 'apiVersion: {API_VERSION}'."
    return FieldError(message, suggestion, ConfigCode.UNSUPPORTED_API_VERSION)


def _unknown_kind(kind: Any) -> FieldError:
    message = "'kind' is missing" if kind is None else f"{shown(kind)} is no kind"
    return FieldError(message, hint(_text(kind), RESOURCE_MODELS), ConfigCode.UNKNOWN_KIND)


def _name_error(data: JsonObject, *, is_v1: bool) -> FieldError | None:
    if not isinstance(data.get("metadata"), dict):
        return None
    name = data["metadata"].get("name")
    if not isinstance(name, str) or not name:
        message = "'name' is required" if name is None else f"the name must be text, not {shown(name)}"
        return FieldError(message, "Add 'name: …'; quote it if needed.", ConfigCode.INVALID_NAME)
    # the older Tool's name is no part of what the model sees
    if data["kind"] == "Tool" and not is_v1:
        try:
            check_tool_part(name)
        except FieldError as error:
            return error
        return None
    rule = _NAME_RULES.get(data["kind"], _GENERAL_RULE)
    if rule.accepts(name):
        return None
    return FieldError(f"'{name[:80]}' is no valid name", rule.suggestion, ConfigCode.INVALID_NAME)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The declarations of a package."""

    #: the folder that paths in resources start from, as it was given
    folder: Path
    #: the same folder, absolute and without links
    root: Path
    #: all of them, in order of files and documents
    declarations: tuple[Declaration, ...]
    #: by kind and name; of two with the same, the first
    by_name: Mapping[tuple[str, str], Declaration]

    def find(self, kind: str, name: str) -> Declaration | None:
        """Return the declaration of a resource."""
        return self.by_name.get((kind, name))

    def of_kind(self, kind: str) -> list[Declaration]:
        """Return the declarations of a kind, one a name."""
        return [declaration for declaration in self.by_name.values() if declaration.kind == kind]


def read_inventory(path: Path) -> tuple[Inventory, list[Finding]]:
    """Read a package: a file, or a directory with everything in it that belongs to a bundle."""
    findings: list[Finding] = []
    found = tuple(_declarations(path, findings))
    by_name: dict[tuple[str, str], Declaration] = {}
    for declaration in found:
        first = by_name.setdefault((declaration.kind, declaration.name), declaration)
        if first is not declaration and declaration.name and declaration.kind != "Package":
            findings.append(_duplicate(declaration, first))
    findings += _package_findings([item for item in found if item.kind == "Package"])
    if not found and not findings:
        error = FieldError("the bundle holds no resource", "Write a goondan.yaml; `goondan demo` shows one.")
        findings.append(whole_file(path, error))
    folder = path if path.is_dir() else path.parent
    return Inventory(folder, folder.resolve(), found, by_name), findings


def _declarations(path: Path, findings: list[Finding]) -> Iterator[Declaration]:
    """Yield what the files declare; what cannot be read goes to ``findings``."""
    for file in bundle_files(path):
        text, faults = read_text(file)
        documents, syntax_faults = parse_documents(text, str(file))
        findings += [whole_file(file, fault.error, fault.line) for fault in (*faults, *syntax_faults)]
        for document in documents:
            declaration, field_findings = declare(document)
            findings += field_findings
            if declaration is not None:
                yield declaration


def _duplicate(second: Declaration, first: Declaration) -> Finding:
    place = f"{first.document.file}:{first.document.line_of(('metadata', 'name'))}"
    error = FieldError(
        f"{second.label} is declared twice (first in {place})",
        "Rename or remove one of the two.",
        ConfigCode.DUPLICATE_NAME,
    )
    return second.finding(("metadata", "name"), error)


def _package_findings(packages: Sequence[Declaration]) -> Iterator[Finding]:
    """Check that the Package is one, and the first document of its file."""
    for package in packages:
        if package is not packages[0]:
            yield _second_package(package, packages[0])
        elif package.document.index > 0:
            error = FieldError(
                "the Package must be the first document of its file",
                "Move it to the top of the file.",
                ConfigCode.PACKAGE_DOC_POSITION,
            )
            yield package.finding(("kind",), error)


def _second_package(second: Declaration, first: Declaration) -> Finding:
    error = FieldError(
        f"a bundle has one Package (the first is in {first.document.file})",
        "Remove one of them, or validate the two folders on their own.",
        ConfigCode.PACKAGE_DOC_DUPLICATED,
    )
    return second.finding(("kind",), error)


def whole_file(file: Path, error: FieldError, line: int = 1) -> Finding:
    """Return the finding that ``error`` is in a file, of whatever resource."""
    return Finding("error", error.code.value, error.message, str(file), line, "", "", error.suggestion)
