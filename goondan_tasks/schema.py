"""The check of a tool call's arguments against the ``parameters`` of its export (003 §4.1, DESIGN §6).

Any JSON Schema 2020-12 is accepted, checked by ``jsonschema-rs``. A bool is no number, NaN and
Infinity are no JSON, and a remote ``$ref`` is never fetched. Schemas may come from strangers (an MCP
server), so neither compiling nor checking may take long: see ``schema_references``.
"""

import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonschema_rs import Draft202012Validator, ValidationError, Validator, ValidatorMap, validator_map_for

from goondan_tasks.json_values import Path, json_faults, shown, written
from goondan_tasks.messages import JsonObject
from goondan_tasks.schema_references import References, guarded_reference, member, pointed
from goondan_tasks.spelling import closest

__all__ = ["ArgumentSchema", "SchemaError", "compile_schema"]

#: faults that are told at once; a model cannot use more, and a list may have a million wrong items
MAX_FAULTS = 50
MAX_SCHEMA_CHARACTERS = 262_144

# stands in the checker's messages where the value is; a character that nobody types
_VALUE = "\ue000"
_TYPES = "array, boolean, integer, null, number, object and string"


class SchemaError(ValueError):
    """The parameters are not a JSON Schema 2020-12; ``path`` leads to the place inside them."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


def compile_schema(parameters: JsonObject | None) -> "ArgumentSchema":
    """Prepare the check of arguments against ``parameters``; ``None`` accepts any object.

    Raises:
        SchemaError: it is not a valid schema, refers to another document, or is too large.
    """
    schema = {} if parameters is None else parameters
    if not isinstance(schema, dict):
        raise SchemaError(f"the parameters must be an object, not {shown(schema)}")
    _refuse_oversize(schema)
    try:
        references = References(schema)
        validator = Draft202012Validator(schema, mask=_VALUE, offline=True)
        if not references.recurring:
            return ArgumentSchema(schema, validator, {"#": validator})
        parts = validator_map_for(references.guarded(), mask=_VALUE, offline=True)
    except ValidationError as error:
        raise SchemaError(_why_invalid(error, schema), tuple(error.instance_path)) from error
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return ArgumentSchema(schema, validator, parts)


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """A compiled schema; one object may be used from many threads at once."""

    schema: JsonObject
    _validator: Validator = field(repr=False)
    #: what explains a fault: the validator of the whole ("#"), or of each part of a recursive schema
    _parts: Mapping[str, Validator] | ValidatorMap = field(repr=False)

    def faults(self, args: Any) -> list[str]:
        """Return every fault of ``args``, each with its path, in words for a model; empty if valid."""
        if not isinstance(args, dict):
            return [f"the arguments must be an object, not {shown(args)}"]
        faults = _first(json_faults(args))
        if faults or self._validator.is_valid(args):
            return faults
        return _first(self._schema_faults(args)) or ["the arguments do not match the tool's parameters"]

    def _schema_faults(self, args: JsonObject) -> Iterator[str]:
        """Follow one guarded reference at a time: a recursive schema costs no more than its faults."""
        places: list[tuple[str, Path]] = [("#", ())]
        for pointer, path in places:
            validator = self._parts.get(pointer)
            for error in validator.iter_errors(_value_at(args, path)) if validator else ():
                place = (*path, *error.instance_path)
                target = guarded_reference(error)
                if target is None:
                    known = self._known_properties(pointer, error.schema_path)
                    yield from _explain(error, args, place, known)
                elif (target, place) not in places:
                    places.append((target, place))

    def _known_properties(self, pointer: str, keyword_path: Sequence[str | int]) -> list[str]:
        """Return the properties declared beside the keyword that refused one."""
        # the checker counts from the part it checked, or from the root once it followed a reference
        for start in (pointed(self.schema, pointer), self.schema):
            beside = functools.reduce(member, map(str, keyword_path[:-1]), start)
            properties = member(beside, "properties")
            if isinstance(properties, dict):
                return list(properties)
        return []


def _explain(error: ValidationError, args: JsonObject, path: Path, known: list[str]) -> Iterator[str]:
    keyword = error.kind.name
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        yield from (_at(path) + _unknown(name, known) for name in error.kind.value)
    elif keyword == "required":
        yield _at(path) + f"'{error.kind.value}' is required"
    elif keyword in ("anyOf", "oneOf") and (forms := _forms(error)):
        yield f"{written(path)}: {shown(_value_at(args, path))} matches none of the allowed forms: {forms}"
    else:
        yield f"{written(path)}: {error.message.replace(_VALUE, shown(_value_at(args, path)))}"


def _forms(error: ValidationError) -> str:
    """Tell why each alternative does not fit: the first fault of each."""
    branches: list[list[ValidationError]] = getattr(error.kind, "context", [])
    firsts = [branch[0] for branch in branches if branch]
    depth = len(error.instance_path)
    return "; ".join(f"({number}) {_form(first, depth)}" for number, first in enumerate(firsts, 1))


def _form(error: ValidationError, depth: int) -> str:
    if target := guarded_reference(error):
        return f"does not match {target}"
    place = written(tuple(error.instance_path[depth:])).removeprefix("args").removeprefix(".")
    return f"{place} {error.message.replace(_VALUE, '').strip()}".strip()


def _unknown(name: str, known: Iterable[str]) -> str:
    meant = closest(name, known)
    return f"unknown argument '{name}'" + (f"; did you mean '{meant}'?" if meant else "")


def _first(faults: Iterator[str]) -> list[str]:
    told = list(itertools.islice(faults, MAX_FAULTS))
    return [*told, "and more"] if next(faults, None) is not None else told


def _value_at(args: Any, path: Path) -> Any:
    for step in path:
        args = args[step]
    return args


def _at(path: Path) -> str:
    return f"{written(path)}: " if path else ""


def _why_invalid(error: ValidationError, schema: JsonObject) -> str:
    """Say in one line why a schema is not valid."""
    if error.kind.name == "$ref":
        cause = error.message.partition(" is not present")[0]
        return f"{cause[:300]}: only references inside the schema (#/…) are followed"
    value = shown(functools.reduce(member, map(str, error.instance_path), schema))
    if error.instance_path[-1:] == ["type"]:
        return f"{value} is no type; the types are {_TYPES}"
    return error.message.replace(_VALUE, value)


def _refuse_oversize(schema: JsonObject) -> None:
    """Refuse what is no JSON or too large, before anything looks at it closely.

    Raises:
        SchemaError: the schema is no JSON, or longer than :data:`MAX_SCHEMA_CHARACTERS`.
    """
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the parameters are not JSON: {error}") from error
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise SchemaError(f"the parameters are longer than {MAX_SCHEMA_CHARACTERS} characters")
