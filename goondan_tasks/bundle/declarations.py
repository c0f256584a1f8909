"""What the documents declare: one resource each, valid or not, with the line of every field."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from goondan_tasks.bundle.documents import Document
from goondan_tasks.bundle.field_findings import FieldFault, field_faults, without
from goondan_tasks.bundle.fields import check_tool_part
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding, Level
from goondan_tasks.bundle.resources import API_VERSION, RESOURCE_MODELS, V1_API_VERSION, Resource
from goondan_tasks.bundle.v1_resources import V1_RESOURCE_MODELS
from goondan_tasks.json_values import Path, shown, written
from goondan_tasks.messages import JsonObject
from goondan_tasks.names import is_agent_name
from goondan_tasks.schema_references import member
from goondan_tasks.spelling import hint

_NAME_PATH: Path = ("metadata", "name")


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

    def value(self, path: Path) -> Any:
        """Return what the YAML says at ``path``, or ``None``."""
        value = self.document.data
        for step in path:
            value = member(value, str(step))
        return value

    def items(self, path: Path) -> Iterator[tuple[Path, Any]]:
        """Yield the items of the list at ``path``, each with its own path; nothing if it is no list."""
        items = self.value(path)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            yield (*path, index), item

    def finding(self, path: Path, error: FieldError, level: Level = "error") -> Finding:
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
