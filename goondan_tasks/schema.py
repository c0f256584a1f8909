"""Checking a tool call's arguments against the ``parameters`` of its export (003 §4.1, DESIGN §6).

Any JSON Schema 2020-12 is accepted and checked by ``jsonschema-rs``. A bool is not a number, NaN and
Infinity are not JSON, and a remote ``$ref`` is never fetched. Schemas may come from untrusted sources (MCP
servers), so neither compiling nor checking may take long: references are bounded before the checker follows
them.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from jsonschema_rs import Draft202012Validator, ValidationError, Validator, ValidatorMap, validator_map_for

from goondan_tasks.messages import JsonObject
from goondan_tasks.wording import FieldPath, closest, shown, written

#: the depth of arguments, and of a schema with its references followed: the checker recurses on the C stack
MAX_DEPTH = 128
#: Python refuses to write larger integers (``sys.get_int_max_str_digits``), and the checker misreads them
MAX_INTEGER_BITS = 14_000
#: of a schema with its references expanded
MAX_SUBSCHEMAS = 100_000
#: how many faults are reported at once: a list may have a million wrong items
MAX_FAULTS = 50
MAX_SCHEMA_CHARACTERS = 262_144
REFERENCES = ("$ref", "$dynamicRef")

# a private-use character in place of the value in the checker's messages
_VALUE = "\ue000"
_TYPES = "array, boolean, integer, null, number, object and string"

_SURROGATE = re.compile("[\ud800-\udfff]")


class SchemaError(ValueError):
    """The parameters are not a JSON Schema 2020-12; ``path`` is the place of the error."""

    def __init__(self, message: str, path: FieldPath = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


def compile_schema(parameters: JsonObject | None) -> "ArgumentSchema":
    """Compile ``parameters`` to a checker of arguments; ``None`` accepts any object.

    Raises:
        SchemaError: the schema is not valid, refers to another document, or is too large.
    """
    schema = {} if parameters is None else parameters
    if not isinstance(schema, dict):
        raise SchemaError(f"the parameters must be an object, not {shown(schema)}")
    _refuse_oversize(schema)
    try:
        recursive = _Measure(schema).recursive
        validator = Draft202012Validator(schema, mask=_VALUE, offline=True)
        if not recursive:
            return ArgumentSchema(schema, validator, {"#": validator})
        parts = validator_map_for(_guarded(schema, recursive), mask=_VALUE, offline=True)
    except ValidationError as error:
        raise SchemaError(_why_invalid(error, schema), tuple(error.instance_path)) from error
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return ArgumentSchema(schema, validator, parts)


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """A compiled schema; thread-safe."""

    schema: JsonObject
    _validator: Validator = field(repr=False)
    #: validators that explain faults: of the whole schema ("#"), or of each part of a recursive one
    _parts: Mapping[str, Validator] | ValidatorMap = field(repr=False)

    def faults(self, args: Any) -> list[str]:
        """Return the faults of ``args``, each with its path, worded for a model; empty if valid."""
        if not isinstance(args, dict):
            return [f"the arguments must be an object, not {shown(args)}"]
        faults = _first(json_faults(args))
        if faults or self._validator.is_valid(args):
            return faults
        return _first(self._schema_faults(args)) or ["the arguments do not match the tool's parameters"]

    def _schema_faults(self, args: JsonObject) -> Iterator[str]:
        """Follow one guarded reference at a time: the cost of a recursive schema is that of its faults."""
        places: list[tuple[str, FieldPath]] = [("#", ())]
        for pointer, path in places:
            validator = self._parts.get(pointer)
            for error in validator.iter_errors(_value_at(args, path)) if validator else ():
                place = (*path, *error.instance_path)
                target = _guarded_reference(error)
                if target is None:
                    known = self._known_properties(pointer, error.schema_path)
                    yield from _explain(error, args, place, known)
                elif (target, place) not in places:
                    places.append((target, place))

    def _known_properties(self, pointer: str, keyword_path: Sequence[str | int]) -> list[str]:
        """Return the properties declared beside the keyword that refused one."""
        # the path begins at the checked part, or at the root after a reference
        for start in (pointed(self.schema, pointer), self.schema):
            beside = functools.reduce(member, map(str, keyword_path[:-1]), start)
            properties = member(beside, "properties")
            if isinstance(properties, dict):
                return list(properties)
        return []


def _explain(error: ValidationError, args: JsonObject, path: FieldPath, known: list[str]) -> Iterator[str]:
    keyword, at = error.kind.name, f"{written(path)}: " if path else ""
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        for name in error.kind.value:
            meant = closest(name, known)
            yield f"{at}unknown argument '{name}'" + (f"; did you mean '{meant}'?" if meant else "")
    elif keyword == "required":
        yield f"{at}'{error.kind.value}' is required"
    elif keyword in ("anyOf", "oneOf") and (forms := _forms(error)):
        yield f"{written(path)}: {shown(_value_at(args, path))} matches none of the allowed forms: {forms}"
    else:
        yield f"{written(path)}: {error.message.replace(_VALUE, shown(_value_at(args, path)))}"


def _forms(error: ValidationError) -> str:
    """Return the first fault of each alternative."""
    branches: list[list[ValidationError]] = getattr(error.kind, "context", [])
    firsts = [branch[0] for branch in branches if branch]
    depth = len(error.instance_path)
    return "; ".join(f"({number}) {_form(first, depth)}" for number, first in enumerate(firsts, 1))


def _form(error: ValidationError, depth: int) -> str:
    if target := _guarded_reference(error):
        return f"does not match {target}"
    place = written(tuple(error.instance_path[depth:])).removeprefix("args").removeprefix(".")
    return f"{place} {error.message.replace(_VALUE, '').strip()}".strip()


def _first(faults: Iterator[str]) -> list[str]:
    reported = list(itertools.islice(faults, MAX_FAULTS))
    return [*reported, "and more"] if next(faults, None) is not None else reported


def _value_at(args: Any, path: FieldPath) -> Any:
    return functools.reduce(lambda value, step: value[step], path, args)


def _why_invalid(error: ValidationError, schema: JsonObject) -> str:
    """Say in one line why a schema is not valid."""
    if error.kind.name == "$ref":
        cause = error.message.partition(" is not present")[0]
        return f"{cause[:300]}: only references inside the schema (#/…) are followed"
    value = shown(functools.reduce(member, map(str, error.instance_path), schema))
    if error.instance_path[-1:] == ["type"]:
        return f"{value} is not a type; the types are {_TYPES}"
    return error.message.replace(_VALUE, value)


def _refuse_oversize(schema: JsonObject) -> None:
    """Refuse schemas that are not JSON or too large, before anything else reads them."""
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"the parameters are not JSON: {error}") from error
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise SchemaError(f"the parameters are longer than {MAX_SCHEMA_CHARACTERS} characters")


class _Measure:
    """The size of a schema with its references expanded, and its recursive references.

    Two kinds of schema would keep the checker busy for hours. One doubles with each reference
    (``a: allOf [b, b]``, ``b: allOf [c, c]``, …); it is refused because of its expanded size. The other is
    recursive and has alternatives: the checker validates it fast, but explains every alternative of every
    level. So the copy that explains faults has ``not not $ref`` for each recursive reference, which the
    checker does not explain, and :class:`ArgumentSchema` follows the reference itself.
    """

    def __init__(self, schema: JsonObject) -> None:
        """Measure the schema.

        Raises:
            SchemaError: the schema is too deep or too large with its references expanded.
        """
        #: the references, as written, that point to a schema containing them
        self.recursive: set[str] = set()
        self._schema = schema
        self._resources = [schema, *(node for node in nodes_of(schema) if "$id" in node)]
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()
        if self._size(schema, 0) > MAX_SUBSCHEMAS:
            raise SchemaError("the references multiply: written out, the schema is too large to check")

    def _size(self, node: Any, depth: int) -> int:
        """Count the subschemas in ``node`` with its references expanded, each cycle once."""
        if isinstance(node, list):
            return sum(self._size(item, depth) for item in node)
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._sizes:
            if depth > MAX_DEPTH:
                raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
            self._open.add(id(node))
            size = sum(self._size(item, depth + 1) for item in (*node.values(), *self._targets(node)))
            self._open.discard(id(node))
            self._sizes[id(node)] = 1 + size
        return self._sizes[id(node)]

    def _targets(self, node: JsonObject) -> Iterator[JsonObject]:
        for keyword in REFERENCES:
            reference = node.get(keyword)
            for target in self._resolve(reference) if isinstance(reference, str) else ():
                if id(target) in self._open:
                    self.recursive.add(str(reference))
                else:
                    yield target

    def _resolve(self, reference: str) -> Iterator[JsonObject]:
        """Yield each possible target of a reference; there are several only with an embedded ``$id``."""
        fragment = unquote(reference.partition("#")[2])
        if fragment and not fragment.startswith("/"):
            for node in nodes_of(self._schema):
                if fragment in (node.get("$anchor"), node.get("$dynamicAnchor")):
                    yield node
            return
        targets = (pointed(resource, fragment) for resource in self._resources)
        yield from (target for target in targets if isinstance(target, dict))


def nodes_of(schema: JsonObject) -> Iterator[JsonObject]:
    """Yield every object inside a schema, itself included."""
    pending: list[Any] = [schema]
    for node in pending:
        if isinstance(node, dict):
            yield node
        pending.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())


def _guarded(node: Any, recursive: set[str]) -> Any:
    """Return a copy of a schema with ``not not`` before every recursive reference."""
    if isinstance(node, list):
        return [_guarded(item, recursive) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {key: _guarded(item, recursive) for key, item in node.items()}
    for keyword in REFERENCES:
        if isinstance(node.get(keyword), str) and node[keyword] in recursive:
            guard = {"not": {"not": {keyword: copy.pop(keyword)}}}
            copy["allOf"] = [*copy.get("allOf", ()), guard]
    return copy


def _guarded_reference(error: ValidationError) -> str | None:
    """Return the reference behind the ``not not`` that failed, if that is the error."""
    inner = member(error.kind.value, "not") if error.kind.name == "not" else None
    if not isinstance(inner, dict) or len(inner) != 1:
        return None
    return next((str(inner[keyword]) for keyword in REFERENCES if keyword in inner), None)


def json_faults(args: JsonObject) -> Iterator[str]:
    """Yield parts that are not JSON, or deeper than :data:`MAX_DEPTH`; without recursion."""
    pending: list[tuple[Any, Any, int]] = [(args, None, 0)]
    for value, link, depth in pending:
        if depth == MAX_DEPTH:
            yield f"{written(_unlinked(link)[:8])}…: nested deeper than {MAX_DEPTH} levels"
            continue
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            fault = None
            if isinstance(value, dict):
                fault = _scalar_fault(key) if isinstance(key, str) else f"the key {key!r:.80} is not a string"
            if fault:
                yield f"{written(_unlinked(link))}: {fault}"
            elif isinstance(item, dict | list | tuple):
                pending.append((item, (link, key), depth + 1))
            elif fault := _scalar_fault(item):
                yield f"{written(_unlinked((link, key)))}: {fault}"


def _scalar_fault(value: Any) -> str | None:
    if isinstance(value, str):
        is_text = value.isascii() or _SURROGATE.search(value) is None
        return None if is_text else "contains a lone surrogate, which is not text"
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= MAX_INTEGER_BITS else "the number has too many digits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is not JSON"
    return f"a value of type {type(value).__name__} is not JSON"


def _unlinked(link: Any) -> FieldPath:
    """Return the path of a chain of ``(parent, key)`` pairs."""
    steps: list[str | int] = []
    while link is not None:
        link, key = link
        steps.append(key)
    return tuple(reversed(steps))


def member(node: Any, step: str) -> Any:
    """Return the value of a key or an index in ``node``, or ``None``."""
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    return None


def pointed(schema: JsonObject, pointer: str) -> Any:
    """Return the target of a JSON Pointer (RFC 6901), with or without ``#``, or ``None``."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return functools.reduce(member, steps, schema)
