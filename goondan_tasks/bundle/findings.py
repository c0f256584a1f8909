"""Findings: errors and warnings about a bundle, with file, line, code and suggestion (002 §12.1, 003 §13).

The codes are those of the specification (``E_CONFIG_*``). It has none for an entry file that lacks what its
resource needs; that is ``E_CONFIG_SCHEMA_INVALID`` too.
"""

import copy
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from broker_config.value_faults import fault_text
from goondan_tasks.contract import errors
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.redaction import is_named_as_secret
from goondan_tasks.contract.wording import FieldPath, counted, hint, member, shown

Level = Literal["error", "warning"]

#: the most findings in one report; a text of 1 MiB can hold 300,000 faults
MAX_FINDINGS = 1000


class ConfigCode(StrEnum):
    PARSE_ERROR = "E_CONFIG_PARSE_ERROR"
    FILE_TOO_LARGE = "E_CONFIG_FILE_TOO_LARGE"
    TOO_MANY_DOCUMENTS = "E_CONFIG_TOO_MANY_DOCUMENTS"
    UNSUPPORTED_API_VERSION = "E_CONFIG_UNSUPPORTED_API_VERSION"
    UNKNOWN_KIND = "E_CONFIG_UNKNOWN_KIND"
    INVALID_NAME = "E_CONFIG_INVALID_NAME"
    DUPLICATE_NAME = "E_CONFIG_DUPLICATE_NAME"
    INVALID_REF = "E_CONFIG_INVALID_REF"
    REF_NOT_FOUND = "E_CONFIG_REF_NOT_FOUND"
    SCHEMA_INVALID = "E_CONFIG_SCHEMA_INVALID"
    ENTRY_NOT_FOUND = "E_CONFIG_ENTRY_NOT_FOUND"
    PACKAGE_DOC_POSITION = "E_CONFIG_PACKAGE_DOC_POSITION"
    PACKAGE_DOC_DUPLICATED = "E_CONFIG_PACKAGE_DOC_DUPLICATED"
    PACKAGE_NOT_INSTALLED = errors.PACKAGE_NOT_INSTALLED


class FieldError(ValueError):
    """An error in a value, without its place. Validators raise it, and it becomes a finding."""

    def __init__(self, message: str, suggestion: str, code: ConfigCode = ConfigCode.SCHEMA_INVALID) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.code = code


class FieldFault(NamedTuple):
    path: FieldPath
    error: FieldError
    #: ``warning`` if the resource can be used without the field
    level: Level = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or warning, and its place."""

    level: Level
    code: str
    message: str
    file: str
    #: from 1
    line: int
    #: in the resource, such as ``spec.exports[1].name``; empty for a whole file or resource
    path: str
    #: such as ``Tool/bash``; empty if the document does not name one
    resource: str
    suggestion: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.level} {self.code} {self.subject_and_message}"

    @property
    def subject_and_message(self) -> str:
        """The message after the resource and the path that it is about."""
        subject = " ".join(part for part in (self.resource, self.path) if part)
        return f"{subject}: {self.message}" if subject else self.message

    def to_wire(self) -> JsonObject:
        """Return the finding as ``goondan validate --format json`` prints it (DESIGN §3)."""
        return asdict(self)


class BundleError(ConfigError):
    """The bundle has errors; ``findings`` has all errors and warnings."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        errors = [finding for finding in findings if finding.level == "error"]
        lines = "\n".join(f"  {error}" for error in errors)
        super().__init__(f"The bundle has {counted(len(errors), 'error')}:\n{lines}", code=errors[0].code)
        self.suggestion = errors[0].suggestion if len(errors) == 1 else type(self).suggestion
        self.findings = tuple(findings)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings by file and line, without duplicates; keep at most :data:`MAX_FINDINGS`, errors first."""
    unique = sorted(dict.fromkeys(findings), key=_place)
    kept = sorted(unique, key=lambda finding: finding.level)[:MAX_FINDINGS]
    if len(kept) == len(unique):
        return unique
    more = f"{len(unique) - len(kept)} more findings are not shown"
    kept.append(replace(kept[-1], message=more, suggestion="Fix the others first."))
    return sorted(kept, key=_place)


def _place(finding: Finding) -> tuple[str, int]:
    return finding.file, finding.line


#: fields of the older version, and what replaced them (003 appendix B)
OLDER_FIELDS = {
    "runtime": "Remove it: the suffix of the entry decides what runs it.",
    "auth": "Remove it: Extensions get tokens from api.oauth and offer tools that use them.",
    "triggers": "Remove it: a Connector's events are routed by its Connection.",
    "hooks": "Remove it: write an Extension that registers a middleware.",
    "entrypoint": "Use 'entryAgent' instead.",
    "liveConfig": "Remove it: edit the bundle and restart, or use changesets.",
    "queueMode": "Remove it: events of one instance are always handled in order.",
}
#: suggestions by pydantic's type of error
_SUGGESTIONS = {
    "string_type": "Quote it if it looks like a number or a word such as true.",
    "int_type": "Write only digits, such as 4: no quotes, no unit.",
    "float_type": "Write a number such as 30 or 0.5: no quotes, no unit.",
    "bool_type": "Write true or false, without quotes.",
    "tuple_type": "Write one '- item' per line.",
    "dict_type": "Write one 'field: value' per line.",
    "model_type": "Write one 'field: value' per line.",
    "too_short": "Add an item, or remove the list.",
    "string_too_short": "Write at least one character.",
}


def field_faults(error: ValidationError, model: type[BaseModel], data: Any) -> Iterator[FieldFault]:
    """Yield a fault, in the terms of the YAML, for each error that ``model`` found in ``data``."""
    for details in error.errors(include_url=False):
        path: FieldPath = details["loc"]
        value = functools.reduce(member, map(str, path), data)
        # pydantic counts only valid items; each invalid one has its own error
        if details["type"] == "too_short" and value:
            continue
        is_older = details["type"] == "extra_forbidden" and path[0] == "spec" and path[-1] in OLDER_FIELDS
        yield FieldFault(path, _field_error(details, model, value), "warning" if is_older else "error")


def _field_error(details: ErrorDetails, model: type[BaseModel], value: Any) -> FieldError:
    kind, name = details["type"], str(details["loc"][-1])
    own = details.get("ctx", {}).get("error")
    if isinstance(own, FieldError):
        return own
    if kind == "missing":
        return FieldError(f"'{name}' is required", f"Add '{name}'.")
    if kind == "extra_forbidden":
        return unknown_field(name, _known_fields(model, details["loc"][:-1]))
    message, suggestion = fault_text(details), _SUGGESTIONS.get(kind, "Correct the value.")
    is_secret = any(is_named_as_secret(str(step)) for step in details["loc"])
    if kind not in ("too_short", "string_too_short") and not is_secret:
        message = f"{message}, not {shown(value)}"
    return FieldError(message, suggestion)


def unknown_field(name: str, known: list[str]) -> FieldError:
    if name in OLDER_FIELDS:
        return FieldError(f"'{name}' was removed in goondan.ai/v1", OLDER_FIELDS[name])
    if name == "changesets":
        return FieldError(f"'{name}' does not belong here", "Move it to spec.policy.changesets of the Swarm.")
    return FieldError(f"unknown field '{name[:80]}'", hint(name, known))


def _known_fields(model: type[BaseModel], path: FieldPath) -> list[str]:
    """Return the YAML names of the fields of the model at ``path``."""
    for step in path:
        if isinstance(step, str):
            fields = {field.alias: field.annotation for field in model.model_fields.values()}
            inner = _model_in(fields.get(step))
            if inner is None:
                return []
            model = inner
    return [str(field.alias) for field in model.model_fields.values()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def without(data: JsonObject, paths: Iterable[FieldPath]) -> JsonObject:
    rest = copy.deepcopy(data)
    for path in paths:
        owner: Any = functools.reduce(member, map(str, path[:-1]), rest)
        owner.pop(path[-1], None)  # with an alias, one object is in several places
    return rest
