"""Checking a tool call's arguments against the ``parameters`` of its export (003 §4.1, DESIGN §6).

Any JSON Schema 2020-12 is accepted and checked by ``jsonschema-rs``. A bool is not a number, NaN and
Infinity are not JSON, and a remote ``$ref`` is never fetched. Schemas may come from untrusted sources (MCP
servers), so neither compiling nor checking may take long: references are bounded before the checker follows
them, the checks of arguments before they begin, and their faults before they are explained. Nothing else runs
in the process during a check.
"""

import functools
import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from jsonschema_rs import (
    Draft202012Validator,
    FancyRegexOptions,
    ValidationError,
    Validator,
    ValidatorMap,
    validator_map_for,
)

from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import FieldPath, closest, member, shown, written

#: the depth of arguments, and of a schema with its references followed: the checker recurses on the C stack
MAX_DEPTH = 128
#: Python refuses to write larger integers (``sys.get_int_max_str_digits``), and the checker misreads them
MAX_INTEGER_BITS = 14_000
#: of a schema with its references expanded
MAX_SUBSCHEMAS = 100_000
#: how many faults are reported at once: a list may have a million wrong items
MAX_FAULTS = 50
#: of one fault, which may quote the schema and the names of properties
MAX_FAULT_CHARACTERS = 1_000
MAX_SCHEMA_CHARACTERS = 262_144
#: the limit for the values of arguments times the checks of each; one check takes 10 to 20 ns
MAX_CHECKS = 50_000_000
#: the limit for embedded schemas with an ``$id``: each may be what a reference means
MAX_RESOURCES = 200
#: the limit for the checks of one value
MAX_CHECKS_OF_A_VALUE = 100_000
REFERENCES = ("$ref", "$dynamicRef")

#: schemas with at most so many checks of one value need no measure of the arguments
_LIGHT_CHECKS = 64
#: The checker explains all faults of a value at once, and copies the value and the keyword of each. Larger
#: arguments are narrowed down before.
_EXPLAINED_VALUES = 500
_EXPLAINED_CHECKS = 50_000
#: how far large arguments are followed to their faults; each level checks all values below it again
_LEVELS = 8
#: how often a pattern with look-around may backtrack for one text (50 ns each time), and if there are many
_BACKTRACKS = FancyRegexOptions(backtrack_limit=50_000)
_FEW_BACKTRACKS = FancyRegexOptions(backtrack_limit=1_000)
_MANY_TEXTS = 500
#: what look-around and references to groups begin with
_BACKTRACKING = re.compile(r"\(\?[=!<>]|\\[1-9k]")

# the keywords that apply schemas to the value itself, and to the values in it
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", *REFERENCES)
_EACH = ("properties", "prefixItems")
_ALL = ("patternProperties", "additionalProperties", "propertyNames", "items", "contains")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
#: the costs of keywords, in checks, as measured
_UNIQUE_CHECKS, _PATTERN_CHECKS, _CONTAINER_CHECKS = 16, 8, 10
#: each level of ``unevaluated…`` evaluates the schemas below it again
_UNEVALUATED_TIMES = 3

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


class SchemaTooLargeError(SchemaError):
    """Compiling the schema, or checking arguments against it, could take too long."""


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
        size = _Measure(schema)
        validator = _compiled(schema, _BACKTRACKS)
        strict = _compiled(schema, _FEW_BACKTRACKS) if size.backtracks else validator
        parts = _compiled_parts(schema, size.recursive, _BACKTRACKS) if size.recursive else {"#": validator}
    except ValidationError as error:
        raise SchemaError(_why_invalid(error, schema), tuple(error.instance_path)) from error
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(str(error)) from error
    return ArgumentSchema(schema, validator, strict, parts, size)


def _compiled(schema: JsonObject, patterns: FancyRegexOptions) -> Validator:
    return Draft202012Validator(schema, mask=_VALUE, offline=True, pattern_options=patterns)


def _compiled_parts(schema: JsonObject, recursive: set[str], patterns: FancyRegexOptions) -> ValidatorMap:
    guarded = _guarded(schema, recursive)
    return validator_map_for(guarded, mask=_VALUE, offline=True, pattern_options=patterns)


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """A compiled schema; thread-safe."""

    schema: JsonObject
    _validator: Validator = field(repr=False)
    #: checks arguments with many texts: its patterns backtrack less
    _strict: Validator = field(repr=False)
    #: validators that explain faults: of the whole schema ("#"), or of each part of a recursive one
    _parts: Mapping[str, Validator] | ValidatorMap = field(repr=False)
    _size: "_Measure" = field(repr=False)

    def faults(self, args: Any) -> list[str]:
        """Return the faults of ``args``, each with its path, worded for a model; empty if valid."""
        if not isinstance(args, dict):
            return [f"the arguments must be an object, not {shown(args)}"]
        return self.faults_of_any(args)

    def faults_of_any(self, args: Any) -> list[str]:
        """Return the faults of a value that need not be an object, as :meth:`faults` does."""
        if faults := _first(json_faults(args)):
            return faults
        validator = self._validator
        if self._size.checks > _LIGHT_CHECKS or self._size.backtracks:
            values, texts = _size_of(args)
            if values * self._size.checks > MAX_CHECKS:
                return [
                    f"the arguments are too large for their schema, with {values} values and up to "
                    f"{self._size.checks} checks of each: send less in one call"
                ]
            validator = self._strict if texts > _MANY_TEXTS else validator
        if validator.is_valid(args):
            return []
        return _first(self._explained(args)) or ["the arguments do not match the tool's parameters"]

    def _explained(self, args: Any) -> Iterator[str]:
        if self._is_explicable(args):
            return self._schema_faults(args, "#", ())
        parts = _compiled_parts(self.schema, self._size.recursive, _FEW_BACKTRACKS)
        return replace(self, _parts=parts)._narrowed(args, "#", (), _LEVELS)

    def _is_explicable(self, value: Any) -> bool:
        """Return whether the checker may explain all faults of a value at once."""
        values, _ = _size_of(value)
        return values <= _EXPLAINED_VALUES and values * self._size.checks <= _EXPLAINED_CHECKS

    def _schema_faults(self, args: Any, pointer: str, path: FieldPath) -> Iterator[str]:
        """Follow one guarded reference at a time: the cost of a recursive schema is that of its faults."""
        # a dict keeps their order
        places = {(pointer, path): None}
        pending = list(places)
        for part, at in pending:
            validator = self._parts.get(part)
            for error in validator.iter_errors(_value_at(args, at)) if validator else ():
                place = (*at, *error.instance_path)
                target = _guarded_reference(error)
                if target is None:
                    known = self._known_properties(part, error.schema_path)
                    yield from _explain(error, args, place, known)
                elif (target, place) not in places:
                    places[target, place] = None
                    pending.append((target, place))

    def _narrowed(self, args: Any, pointer: str, path: FieldPath, levels: int) -> Iterator[str]:
        """Yield the faults of the parts of a large value, part by part, each as soon as it is found.

        A part that is large itself is narrowed down again; where nothing is left to follow, the fault has a
        place and no reason.
        """
        value, node = _value_at(args, path), pointed(self.schema, pointer)
        is_explained = False
        for part, step in _applied(node, pointer, value) if levels else ():
            inner, place = _value_at(value, step), (*path, *step)
            validator = self._parts.get(part)
            if validator is None or validator.is_valid(inner):
                continue
            is_explained = True
            explain = self._schema_faults if step and self._is_explicable(inner) else None
            yield from (
                explain(args, part, place) if explain else self._narrowed(args, part, place, levels - 1)
            )
        for error in _own_errors(node, value):
            is_explained = True
            yield from _explain(error, args, path, list(member(node, "properties") or ()))
        if not is_explained:
            yield f"{written(path)}: {shown(value)} does not match the schema, and is too large to say where"

    def _known_properties(self, pointer: str, keyword_path: Sequence[str | int]) -> list[str]:
        """Return the properties declared beside the keyword that refused one."""
        # the path begins at the checked part, or at the root after a reference
        for start in (pointed(self.schema, pointer), self.schema):
            beside = functools.reduce(member, map(str, keyword_path[:-1]), start)
            properties = member(beside, "properties")
            if isinstance(properties, dict):
                return list(properties)
        return []


def _applied(node: Any, pointer: str, value: Any) -> Iterator[tuple[str, FieldPath]]:
    """Yield the parts of a schema that a value must match, each with the step to the value in it.

    Only references, ``allOf``, ``properties``, ``additionalProperties`` and ``items`` are followed.
    """
    reference = member(node, "$ref")
    if isinstance(reference, str):
        yield reference, ()
    for index, _ in enumerate(member(node, "allOf") or ()):
        yield f"{pointer}/allOf/{index}", ()
    if isinstance(value, dict):
        known = member(node, "properties") or {}
        others = isinstance(member(node, "additionalProperties"), dict)
        others = others and "patternProperties" not in node
        for name in value:
            if name in known:
                yield f"{pointer}/properties/{name.replace('~', '~0').replace('/', '~1')}", (name,)
            elif others:
                yield f"{pointer}/additionalProperties", (name,)
    elif isinstance(value, list | tuple):
        first = len(member(node, "prefixItems") or ())
        for index in range(first, len(value) if isinstance(member(node, "items"), dict) else 0):
            yield f"{pointer}/items", (index,)


#: the keywords for a value itself that are explained at little cost
_OWN = frozenset(
    (
        *("type", "enum", "const", "required", "pattern", "minLength", "maxLength", "minItems", "maxItems"),
        *("minProperties", "maxProperties", "uniqueItems", "dependentRequired"),
    )
)


def _own_errors(node: Any, value: Any) -> Iterator[ValidationError]:
    """Return the errors of a value itself, without those of the values in it."""
    own: JsonObject = (
        {key: part for key, part in node.items() if key in _OWN} if isinstance(node, dict) else {}
    )
    if member(node, "additionalProperties") is False:
        for keyword in ("properties", "patternProperties"):
            own[keyword] = dict.fromkeys(member(node, keyword) or (), True)
        own["additionalProperties"] = False
    return _compiled(own, _FEW_BACKTRACKS).iter_errors(value)


def _size_of(value: Any) -> tuple[int, int]:
    """Return the number of values in ``value``, long texts counting as several, and that of its texts."""
    pending, values, texts = [value], 0, 0
    for item in pending:
        values += 1
        if isinstance(item, str):
            texts += 1
            values += len(item) // 64
        elif isinstance(item, dict):
            pending.extend(item.values())
            texts += len(item)
            values += sum(map(len, item)) // 64
        elif isinstance(item, list | tuple):
            pending.extend(item)
    return values, texts


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
    reported = [_shortened(fault) for fault in itertools.islice(faults, MAX_FAULTS)]
    return [*reported, "and more"] if next(faults, None) is not None else reported


def _shortened(fault: str) -> str:
    return fault if len(fault) <= MAX_FAULT_CHARACTERS else f"{fault[: MAX_FAULT_CHARACTERS - 1]}…"


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
        raise SchemaTooLargeError(f"the parameters are longer than {MAX_SCHEMA_CHARACTERS} characters")


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
        #: whether a pattern may backtrack
        self.backtracks = False
        self._schema = schema
        self._resources = [schema, *(node for node in nodes_of(schema) if "$id" in node)]
        if len(self._resources) > MAX_RESOURCES:
            raise SchemaTooLargeError(f"more than {MAX_RESOURCES} embedded schemas have an $id")
        self._anchors: dict[Any, list[JsonObject]] = {}
        for node in nodes_of(schema):
            for anchor in {str(node.get("$anchor")), str(node.get("$dynamicAnchor"))}:
                self._anchors.setdefault(anchor, []).append(node)
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()
        if self._size(schema, 0) > MAX_SUBSCHEMAS:
            raise SchemaTooLargeError(
                "the references multiply: written out, the schema is too large to check"
            )
        self._costs: dict[int, tuple[int, int]] = {}
        #: how many checks one value may need, at most
        self.checks = max(self._cost(schema))
        if self.recursive:  # the checker checks a value against each part once
            self.checks = max(self.checks, sum(map(self._own_cost, nodes_of(schema))))
        if self.checks > MAX_CHECKS_OF_A_VALUE:
            raise SchemaTooLargeError(
                f"the schema checks one value up to {self.checks} times: the limit is {MAX_CHECKS_OF_A_VALUE}"
            )

    def _size(self, node: Any, depth: int) -> int:
        """Count the subschemas in ``node`` with its references expanded, each cycle once."""
        if isinstance(node, list):
            return sum(self._size(item, depth) for item in node)
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._sizes:
            if depth > MAX_DEPTH:
                raise SchemaTooLargeError(f"the schema is nested deeper than {MAX_DEPTH} levels")
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
            yield from self._anchors.get(fragment, ())
            return
        targets = (pointed(resource, fragment) for resource in self._resources)
        yield from (target for target in targets if isinstance(target, dict))

    def _cost(self, node: Any) -> tuple[int, int]:
        """Return upper bounds for the checks of a value, and for those of any one value in it.

        Several parts may apply to one value: those of ``allOf``, for example, and ``items`` of each of them.
        """
        if not isinstance(node, dict) or id(node) in self._open:
            return 1, 0
        if id(node) not in self._costs:
            self._open.add(id(node))
            times = _UNEVALUATED_TIMES if any(keyword in node for keyword in _UNEVALUATED) else 1
            in_place = [self._cost(part) for keyword in _IN_PLACE for part in self._parts(node, keyword)]
            here = self._own_cost(node) + times * sum(here for here, _ in in_place)
            below = times * sum(below for _, below in in_place)
            for keyword in (*_EACH, *_ALL, *_UNEVALUATED):
                costs = [max(self._cost(part)) for part in self._parts(node, keyword)]
                below += max(costs, default=0) if keyword in _EACH else sum(costs)
            self._open.discard(id(node))
            self._costs[id(node)] = here, below
        return self._costs[id(node)]

    def _parts(self, node: JsonObject, keyword: str) -> Iterator[Any]:
        """Yield the schemas in a keyword."""
        value = node.get(keyword)
        if keyword in REFERENCES:
            yield from self._resolve(value) if isinstance(value, str) else ()
        elif isinstance(value, list):
            yield from value
        elif isinstance(value, dict) and keyword in ("properties", "patternProperties", "dependentSchemas"):
            yield from value.values()
        elif isinstance(value, dict):
            yield value

    def _own_cost(self, node: JsonObject) -> int:
        """Count the checks of a node's keywords, without the schemas in them."""
        cost = len(node)
        for keyword in ("properties", "required"):
            cost += len(_collection(node, keyword)) // 4
        for keyword in ("enum", "const", "dependentRequired"):
            cost += _cost_of_values(node.get(keyword))
        if node.get("uniqueItems"):
            cost += _UNIQUE_CHECKS
        for pattern in (node.get("pattern"), *_collection(node, "patternProperties")):
            if isinstance(pattern, str):
                cost += _PATTERN_CHECKS
                self.backtracks = self.backtracks or _BACKTRACKING.search(pattern) is not None
        return cost


def _collection(node: JsonObject, keyword: str) -> Collection[Any]:
    """Return a keyword's list or object; what only looks like a schema may hold anything there."""
    value = node.get(keyword)
    return value if isinstance(value, list | dict) else ()


def _cost_of_values(value: Any) -> int:
    """Return the checks of a comparison: scalars are looked up, containers compared one by one."""
    pending, cost = [value], 0
    for part in pending:
        if isinstance(part, dict | list):
            inner = list(part.values()) if isinstance(part, dict) else part
            cost += _CONTAINER_CHECKS + len(inner) // 8
            pending.extend(item for item in inner if isinstance(item, dict | list))
    return cost


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


def json_faults(args: Any) -> Iterator[str]:
    """Yield parts that are not JSON, or deeper than :data:`MAX_DEPTH`; without recursion."""
    if not isinstance(args, dict | list | tuple):
        if fault := _scalar_fault(args):
            yield fault
        return
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


def pointed(schema: JsonObject, pointer: str) -> Any:
    """Return the target of a JSON Pointer (RFC 6901), with or without ``#``, or ``None``."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return functools.reduce(member, steps, schema)
