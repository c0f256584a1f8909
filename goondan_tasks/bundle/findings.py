"""What is wrong with a bundle: findings with file, line, code and suggestion (002 §12.1, 003 §13).

The codes are the documents' own (``E_CONFIG_*``). They have none for an entry file that stands there
but does not hold what its resource needs; that is ``E_CONFIG_SCHEMA_INVALID`` too.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from goondan_tasks.errors import ConfigError
from goondan_tasks.json_values import FieldPath, member, shown
from goondan_tasks.messages import JsonObject
from goondan_tasks.redaction import is_named_as_secret
from goondan_tasks.spelling import hint

Level = Literal["error", "warning"]

#: findings that are told at once; nobody reads on, and a text of 1 MiB can hold 300,000 faults
MAX_FINDINGS = 1000


class ConfigCode(StrEnum):
    """The codes of findings."""

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
    PACKAGE_NOT_INSTALLED = "E_CONFIG_PACKAGE_NOT_INSTALLED"


class FieldError(ValueError):
    """A value is wrong, said without its place: what validators raise and findings are made of."""

    def __init__(self, message: str, suggestion: str, code: ConfigCode = ConfigCode.SCHEMA_INVALID) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.code = code


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (``error``) or doubtful (``warning``), and where."""

    level: Level
    code: str
    message: str
    file: str
    #: from 1
    line: int
    #: inside the resource, such as ``spec.exports[1].name``; empty for a whole file or resource
    path: str
    #: such as ``Tool/bash``; empty if the document does not say what it is
    resource: str
    suggestion: str

    def __str__(self) -> str:
        what = " ".join(part for part in (self.resource, self.path) if part)
        place = f"{self.file}:{self.line}: {self.level} {self.code}"
        return f"{place} {what}: {self.message}" if what else f"{place} {self.message}"

    def to_wire(self) -> JsonObject:
        """Return the finding as ``goondan validate --format json`` prints it (DESIGN §3)."""
        return asdict(self)


class BundleError(ConfigError):
    """The bundle cannot be used; ``findings`` holds every error and warning."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        errors = [finding for finding in findings if finding.level == "error"]
        lines = "\n".join(f"  {error}" for error in errors)
        super().__init__(f"The bundle has {len(errors)} error(s):\n{lines}", code=errors[0].code)
        self.suggestion = errors[0].suggestion if len(errors) == 1 else type(self).suggestion
        self.findings = tuple(findings)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings by file and line, each one once; of thousands keep the first errors."""
    unique = sorted(dict.fromkeys(findings), key=_place)
    kept = sorted(unique, key=lambda finding: finding.level)[:MAX_FINDINGS]
    if len(kept) == len(unique):
        return unique
    more = f"{len(unique) - len(kept)} more findings are not shown"
    kept.append(replace(kept[-1], message=more, suggestion="Correct the others first."))
    return sorted(kept, key=_place)


def _place(finding: Finding) -> tuple[str, int]:
    return finding.file, finding.line


#: fields of the first age, and what took their place (003 appendix B)
OLDER_FIELDS = {
    "runtime": "Remove it: every entry is a Python file.",
    "auth": "Remove it: Extensions reach OAuth through api.oauth and offer it as tools.",
    "triggers": "Remove it: a Connector's events are routed by its Connection.",
    "hooks": "Remove it: write an Extension that registers a middleware.",
    "entrypoint": "Write 'entryAgent' in its place.",
    "liveConfig": "Remove it: edit the bundle and restart, or use changesets.",
    "queueMode": "Remove it: events of one instance are always handled in order.",
}
#: fields of both ages that stand elsewhere
_MOVED_FIELDS = {"changesets": "Move it to spec.policy.changesets of the Swarm."}

_EMPTY = ("too_short", "string_too_short")


class _Wording(NamedTuple):
    message: str
    suggestion: str


#: our words for the types of pydantic's errors
_WORDINGS = {
    "string_type": _Wording("must be text", "Quote it if it looks like a number or a word such as true."),
    "int_type": _Wording("must be a whole number", "Write digits alone, such as 4: no quotes, no unit."),
    "float_type": _Wording("must be a number", "Write it as 30 or 0.5: no quotes, no unit."),
    "bool_type": _Wording("must be true or false", "Write one of these words, without quotes."),
    "tuple_type": _Wording("must be a list", "Write one '- item' a line."),
    "dict_type": _Wording("must be a mapping", "Write one 'field: value' a line."),
    "model_type": _Wording("must be a mapping", "Write one 'field: value' a line."),
    "too_short": _Wording("must have at least one item", "Add an item, or remove the list."),
    "string_too_short": _Wording("must not be empty", "Write at least one character."),
}


@dataclass(frozen=True, slots=True)
class FieldFault:
    """A field and what is wrong with it."""

    path: FieldPath
    error: FieldError
    #: a warning if the resource can be used without the field
    level: Level = "error"


def field_faults(error: ValidationError, model: type[BaseModel], data: Any) -> Iterator[FieldFault]:
    """Yield a fault for each error that ``model`` found in ``data``."""
    for details in error.errors(include_url=False):
        path: FieldPath = details["loc"]
        value = data
        for step in path:
            value = member(value, str(step))
        # pydantic counts only the valid items; each other one has an error of its own
        if details["type"] == "too_short" and value:
            continue
        is_older = details["type"] == "extra_forbidden" and path[0] == "spec" and path[-1] in OLDER_FIELDS
        level: Level = "warning" if is_older else "error"
        yield FieldFault(path, _field_error(details, model, value), level)


def _field_error(details: ErrorDetails, model: type[BaseModel], value: Any) -> FieldError:
    kind, name = details["type"], str(details["loc"][-1])
    own = details.get("ctx", {}).get("error")
    if isinstance(own, FieldError):
        return own
    if kind == "missing":
        return FieldError(f"'{name}' is required", f"Add '{name}'.")
    if kind == "extra_forbidden":
        return unknown_field(name, _known_fields(model, details["loc"][:-1]))
    wording = _WORDINGS.get(kind)
    message = wording.message if wording else details["msg"].replace("Input should be", "must be")
    suggestion = wording.suggestion if wording else "Correct the value."
    says_nothing_more = kind in _EMPTY or any(is_named_as_secret(str(step)) for step in details["loc"])
    return FieldError(message if says_nothing_more else f"{message}, not {shown(value)}", suggestion)


def unknown_field(name: str, known: list[str]) -> FieldError:
    """Return the fault of a field that is not among the ``known`` ones."""
    if name in OLDER_FIELDS:
        return FieldError(f"'{name}' was removed in goondan.ai/v1", OLDER_FIELDS[name])
    if name in _MOVED_FIELDS:
        return FieldError(f"'{name}' does not belong here", _MOVED_FIELDS[name])
    return FieldError(f"unknown field '{name[:80]}'", hint(name, known))


def _known_fields(model: type[BaseModel], path: FieldPath) -> list[str]:
    """Return the fields that the model at ``path`` has in YAML."""
    for step in path:
        if isinstance(step, int):
            continue
        fields = {field.alias: field.annotation for field in model.model_fields.values()}
        inner = _model_in(fields.get(str(step)))
        if inner is None:
            return []
        model = inner
    return [str(field.alias) for field in model.model_fields.values()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def without(data: JsonObject, paths: Iterable[FieldPath]) -> JsonObject:
    """Return a copy of a resource without the fields at ``paths``."""
    rest = copy.deepcopy(data)
    for path in paths:
        owner: Any = rest
        for step in path[:-1]:
            owner = member(owner, str(step))
        # what is written once may stand in several places, by an alias
        owner.pop(path[-1], None)
    return rest
