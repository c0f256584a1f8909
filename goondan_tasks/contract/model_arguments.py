"""The names of properties that providers accept, and what models write for properties that they leave out.

Anthropic refuses names of properties outside ``[A-Za-z0-9_.-]{1,64}``, and with one of them the request.
So a model sees such a property under another name, as it sees tools. Models also write ``null`` for optional
properties that they leave out.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schema import REFERENCES, SchemaError, compile_schema, pointed

#: keywords that hold values, not schemas
DATA = frozenset({"const", "default", "enum", "examples"})
#: keywords that hold schemas by name
MAPS = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"}
)
#: of these, the ones whose names are those of properties
_BY_PROPERTY = frozenset({"properties", "dependentSchemas", "dependencies", "dependentRequired"})

_PROVIDER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]")
_DIGEST_LENGTH = 8
_MAPPED_NAME = re.compile(rf"[A-Za-z0-9_.-]*-[0-9a-f]{{{_DIGEST_LENGTH},}}")


def with_provider_names(schema: JsonObject) -> JsonObject:
    """Return a schema whose properties have names that providers accept."""
    names = _provider_names(schema)
    renamed: JsonObject = _renamed(schema, names) if names else schema
    return renamed


def with_original_names(schema: JsonObject, args: Any) -> Any:
    """Return arguments for :func:`with_provider_names` as arguments of the schema itself."""
    if not any(_MAPPED_NAME.fullmatch(name) for name in _keys(args)):  # the schema need not be searched
        return args
    originals = {short: name for name, short in _provider_names(schema).items()}
    return _with_keys(args, originals) if originals else args


def without_nulls(schema: JsonObject, args: Any) -> Any:
    """Return arguments without the nulls of optional properties whose schemas do not accept null."""
    return _without_nulls(schema, args, schema) if _has_null(args) else args


def _provider_names(schema: JsonObject) -> dict[str, str]:
    """Return the mapped names by the original ones; a mapped name depends only on its original."""
    found = {name for node in _schemas(schema) for name in _properties(node)}
    names: dict[str, str] = {}
    for name in sorted(name for name in found if not _PROVIDER_NAME.fullmatch(name)):
        digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()
        plain = _FORBIDDEN.sub("_", name)
        shortened = (f"{plain[: 63 - n]}-{digest[:n]}" for n in itertools.count(_DIGEST_LENGTH))
        names[name] = next(short for short in shortened if short not in found)
    return names


def _properties(node: JsonObject) -> Mapping[str, Any]:
    properties = node.get("properties")
    return properties if isinstance(properties, dict) else {}


def _schemas(schema: Any) -> Iterator[JsonObject]:
    """Yield every schema in a schema, itself included, but no values and no maps of schemas."""
    pending: list[Any] = [schema]
    for node in pending:
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict):
            yield node
            for key, part in node.items():
                if key in MAPS and isinstance(part, dict):
                    pending.extend(part.values())
                elif key not in DATA:
                    pending.append(part)


def _renamed(schema: Any, names: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_renamed(part, names) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _renamed_keyword(key, part, names) for key, part in schema.items()}


def _renamed_keyword(key: str, part: Any, names: Mapping[str, str]) -> Any:
    if key in DATA:
        return part
    if key == "required" and isinstance(part, list):
        return [names.get(name, name) if isinstance(name, str) else name for name in part]
    if key == "dependentRequired" and isinstance(part, dict):
        return {names.get(one, one): _renamed_keyword("required", more, names) for one, more in part.items()}
    if key in MAPS and isinstance(part, dict):
        known = names if key in _BY_PROPERTY else {}
        return {known.get(name, name): _renamed(inner, names) for name, inner in part.items()}
    if key in REFERENCES and isinstance(part, str) and part.startswith("#/"):
        return "/".join(_renamed_steps(part.split("/"), names))
    return _renamed(part, names)


def _renamed_steps(steps: list[str], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the steps of a reference, in which a property's name follows the keyword."""
    yield steps[0]
    for before, step in itertools.pairwise(steps):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        yield names[name] if before in _BY_PROPERTY and name in names else step


def _keys(value: Any) -> Iterator[str]:
    pending = [value]
    for one in pending:
        if isinstance(one, dict):
            yield from one
        pending.extend(one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())


def _with_keys(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_keys(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    return {names.get(name, name): _with_keys(item, names) for name, item in value.items()}


def _has_null(value: Any) -> bool:
    pending = [value]
    for one in pending:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        if None in inner:
            return True
        pending.extend(inner)
    return False


def _without_nulls(node: Any, value: Any, root: JsonObject) -> Any:
    known = list(_joined(node, root))
    if isinstance(value, list):
        items = next((one["items"] for one in known if isinstance(one.get("items"), dict)), None)
        return value if items is None else [_without_nulls(items, item, root) for item in value]
    if not isinstance(value, dict):
        return value
    properties = {name: one for schema in known for name, one in _properties(schema).items()}
    required = [name for schema in known for name in _list(schema.get("required"))]
    return {
        name: _without_nulls(properties.get(name), item, root)
        for name, item in value.items()
        if item is not None
        or name in required
        or name not in properties
        or _accepts_null(properties[name], root)
    }


def _joined(node: Any, root: JsonObject) -> Iterator[JsonObject]:
    """Yield the schemas that a node combines by references and ``allOf``; others are left alone."""
    pending, seen = [node], set()
    for one in pending:
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        reference = one.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            pending.append(pointed(root, unquote(reference)))
        pending.extend(_list(one.get("allOf")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _accepts_null(schema: Any, root: JsonObject) -> bool:
    definitions: JsonObject = {name: root[name] for name in ("$defs", "definitions") if name in root}
    try:
        return not compile_schema({"properties": {"x": schema}, **definitions}).faults({"x": None})
    except SchemaError:  # it refers to another part of the schema
        return True
