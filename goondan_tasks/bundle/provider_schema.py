"""Tool parameters in the form that model providers accept.

OpenAI and Anthropic require ``type: object`` and refuse ``anyOf``, ``oneOf``, ``allOf``, ``not``, ``enum``
and ``$ref`` at the top of a tool's schema. A schema that can be written as one plain object is; any other
is shown unchanged below one property, ``arguments``. Both accept exactly the arguments of the original, and
:func:`original_arguments` removes the property again.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from goondan_tasks.messages import JsonObject
from goondan_tasks.schema_references import KEYWORDS as REFERENCES
from goondan_tasks.schema_references import pointed

WRAPPER = "arguments"

_REFUSED = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const", *REFERENCES})
_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
    }
)
#: name a schema, so that a copy of it would be ambiguous
_IDENTITIES = ("$id", "$anchor", "$dynamicAnchor")
#: what two schemas may both say and still be written as one
_MERGEABLE = frozenset({"type", "properties", "required"})
#: hold values, not schemas
_DATA = frozenset({"const", "default", "enum", "examples"})
#: hold schemas by names that mean nothing else
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS})


def provider_schema(parameters: JsonObject | None) -> JsonObject:
    """Return parameters as a schema that providers accept, valid for the same arguments.

    Arguments for it are turned back by :func:`original_arguments`.
    """
    plain = _plain(parameters or {})
    if plain is not None:
        return {"type": "object", "properties": {}, **plain}
    return _wrapped(parameters or {})


def original_arguments(parameters: JsonObject | None, args: Any) -> Any:
    """Return what a model has answered to :func:`provider_schema` as arguments of ``parameters``.

    A model that has left the property ``arguments`` out is understood too.
    """
    if not (isinstance(args, dict) and len(args) == 1) or _plain(parameters or {}) is not None:
        return args
    [(name, inner)] = args.items()
    return inner if name == _wrapper_name(parameters or {}) and isinstance(inner, dict) else args


def _plain(schema: JsonObject) -> JsonObject | None:
    """Return the schema as one object without a refused keyword, or ``None`` if that would change it."""
    is_object = schema.get("type") == "object"
    if is_object and not _REFUSED & schema.keys():
        return schema
    if any(name in schema for name in _IDENTITIES) or _refers_to_root(schema, deeper_only=is_object):
        return None
    parts = _parts(schema, schema, ())
    merged = None if parts is None else _merged(parts)
    if merged is None or _REFUSED & merged.keys():
        return None
    definitions = {name: schema[name] for name in _DEFINITIONS if name in schema}
    return {**merged, "type": "object", **definitions}


def _parts(node: Any, root: JsonObject, seen: tuple[str, ...]) -> list[JsonObject] | None:
    """Return the schemas that all have to hold, without ``$ref`` and ``allOf``; ``None`` if unclear."""
    if node is True:
        return []
    if not isinstance(node, dict) or (seen and any(name in node for name in _IDENTITIES)):
        return None
    own = {key: part for key, part in node.items() if key not in ("$ref", "allOf", *_DEFINITIONS)}
    parts: list[JsonObject] = [own] if own else []
    reference = node.get("$ref")
    members = [(item, (*seen, "")) for item in node.get("allOf", ())]
    if reference is not None:
        if reference in seen or not reference.startswith("#/"):
            return None
        members.append((pointed(root, unquote(reference)), (*seen, reference)))
    for member, path in members:
        inner = _parts(member, root, path)
        if inner is None:
            return None
        parts += inner
    return parts


def _merged(parts: list[JsonObject]) -> JsonObject | None:
    """Write schemas that all have to hold as one, if that is no more than joining their properties."""
    notes: JsonObject = {}
    for part in parts:
        notes = {**{key: value for key, value in part.items() if key in _NOTES}, **notes}
    rules = [{key: value for key, value in part.items() if key not in _NOTES} for part in parts]
    rules = [rule for rule in rules if rule]
    if not all(map(_allows_objects, rules)):
        return None
    if len(rules) == 1:
        return {**notes, **rules[0]}
    if not all(rule.keys() <= _MERGEABLE for rule in rules):
        return None
    properties: JsonObject = {}
    for name, schema in itertools.chain.from_iterable(rule.get("properties", {}).items() for rule in rules):
        other = properties.get(name, schema)
        is_same = json.dumps(other) == json.dumps(schema)  # to Python 1 and true are the same
        properties[name] = schema if is_same else {"allOf": [other, schema]}
    required = dict.fromkeys(itertools.chain.from_iterable(rule.get("required", ()) for rule in rules))
    return {**notes, "properties": properties, **({"required": list(required)} if required else {})}


def _allows_objects(schema: JsonObject) -> bool:
    types = schema.get("type", "object")
    return "object" in ([types] if isinstance(types, str) else types)


def _wrapped(schema: JsonObject) -> JsonObject:
    """Return an object whose one property is the schema; definitions stay where references point."""
    name = _wrapper_name(schema)
    described = {"description": schema["description"]} if "description" in schema else {}
    hoisted: JsonObject = {}
    inner = schema
    if "$id" not in schema:  # else its references are its own
        moved = _with_references(schema, lambda reference: _moved(reference, f"#/properties/{name}"))
        hoisted = {key: moved[key] for key in ("$schema", *_DEFINITIONS) if key in moved}
        inner = {key: part for key, part in moved.items() if key not in hoisted}
    if "type" not in inner and not _refers_to_root(schema, deeper_only=False):
        inner = {"type": "object", **inner}  # says nothing new: arguments are an object
    return {
        "type": "object",
        **described,
        "properties": {name: inner},
        "required": [name],
        "additionalProperties": False,
        **hoisted,
    }


def _wrapper_name(schema: JsonObject) -> str:
    """Return a name that no property of the schema has: it tells a wrapped answer from a plain one."""
    taken: set[str] = set()
    pending: list[Any] = [schema]
    for node in pending:
        taken |= node.keys() if isinstance(node, dict) else set()
        pending.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
    return next(name for n in itertools.count() if (name := WRAPPER + "_" * n) not in taken)


def _moved(reference: str, place: str) -> str:
    """Return a reference as it is written once the root stands at ``place``."""
    document, _, pointer = reference.partition("#")
    if document or (pointer and not pointer.startswith("/")) or _is_definition(pointer):
        return reference
    return place + pointer


def _is_definition(pointer: str) -> bool:
    return unquote(pointer).startswith(tuple(f"/{name}/" for name in _DEFINITIONS))


def _refers_to_root(schema: JsonObject, *, deeper_only: bool) -> bool:
    """Say whether a reference leads to what a change of the root would change.

    ``deeper_only``: the root itself stays equivalent, so only what leads into it, not to it, counts.
    """
    found: list[str] = []

    def note(reference: str) -> str:
        document, _, pointer = reference.partition("#")
        is_inside = pointer.startswith("/") and not _is_definition(pointer)
        if not document and (is_inside or (not pointer and not deeper_only)):
            found.append(reference)
        return reference

    _with_references(schema, note)
    return bool(found)


def _with_references(schema: Any, change: Callable[[str], str]) -> Any:
    """Return a schema with its references changed; those below an ``$id`` are relative to that, and stay."""
    if isinstance(schema, list):
        return [_with_references(part, change) for part in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    return {key: _with_changed(key, part, change) for key, part in schema.items()}


def _with_changed(key: str, part: Any, change: Callable[[str], str]) -> Any:
    if key in _DATA:
        return part
    if key in REFERENCES and isinstance(part, str):
        return change(part)
    if key in _MAPS and isinstance(part, dict):
        return {name: _with_references(inner, change) for name, inner in part.items()}
    return _with_references(part, change)
