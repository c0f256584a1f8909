"""The faults that pydantic finds in a resource, said in the words of its YAML."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from goondan_tasks.bundle.findings import FieldError, Level
from goondan_tasks.bundle.resources import API_VERSION, Resource
from goondan_tasks.json_values import Path, shown
from goondan_tasks.messages import JsonObject
from goondan_tasks.redaction import is_named_as_secret
from goondan_tasks.schema_references import member
from goondan_tasks.spelling import hint

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

    path: Path
    error: FieldError
    #: a warning if the resource can be used without the field
    level: Level = "error"


def field_faults(error: ValidationError, model: type[Resource], data: Any) -> Iterator[FieldFault]:
    """Yield a fault for each error that ``model`` found in ``data``."""
    for details in error.errors(include_url=False):
        path: Path = details["loc"]
        value = data
        for step in path:
            value = member(value, str(step))
        # pydantic counts only the valid items; each other one has an error of its own
        if details["type"] == "too_short" and value:
            continue
        is_older = details["type"] == "extra_forbidden" and path[0] == "spec" and path[-1] in OLDER_FIELDS
        level: Level = "warning" if is_older else "error"
        yield FieldFault(path, _field_error(details, model, value), level)


def _field_error(details: ErrorDetails, model: type[Resource], value: Any) -> FieldError:
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
        return FieldError(f"'{name}' was removed in {API_VERSION}", OLDER_FIELDS[name])
    if name in _MOVED_FIELDS:
        return FieldError(f"'{name}' does not belong here", _MOVED_FIELDS[name])
    return FieldError(f"unknown field '{name[:80]}'", hint(name, known))


def _known_fields(model: type[BaseModel], path: Path) -> list[str]:
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


def without(data: JsonObject, paths: Iterable[Path]) -> JsonObject:
    """Return a copy of a resource without the fields at ``paths``."""
    rest = copy.deepcopy(data)
    for path in paths:
        owner: Any = rest
        for step in path[:-1]:
            owner = member(owner, str(step))
        # what is written once may stand in several places, by an alias
        owner.pop(path[-1], None)
    return rest
