"""The Tool Catalog: the tools that an agent may call, in the forms that providers of models expect (003 §11).

OpenAI and Anthropic require ``type: object`` and refuse ``anyOf``, ``oneOf``, ``allOf``, ``not``, ``enum``
and ``$ref`` at the top of a tool's schema. A schema is rewritten as one plain object if possible; any other
is wrapped, unchanged, in the property ``arguments``. Both forms accept exactly the arguments of the original,
but for the names of properties that providers refuse; :func:`original_arguments` converts them back.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, overload
from urllib.parse import unquote

from pydantic import ValidationError

from broker_config import serializer
from goondan_tasks.contract.messages import JsonObject, WireModel, faults_of
from goondan_tasks.contract.model_arguments import (
    DATA,
    MAPS,
    with_original_names,
    with_provider_names,
    without_nulls,
)
from goondan_tasks.contract.schema import REFERENCES, nodes_of, pointed
from goondan_tasks.contract.wording import require_fields

WRAPPER = "arguments"

_REFUSED = frozenset({"anyOf", "oneOf", "allOf", "not", "enum", "const", *REFERENCES})
_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset({
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$comment", "$schema"),
})  # fmt: skip
#: keywords that name a schema, so that a copy of it would be ambiguous
_IDENTITIES = ("$id", "$anchor", "$dynamicAnchor")
#: keywords that schemas may have and still be merged into one
_MERGEABLE = frozenset({"type", "properties", "required"})


def provider_schema(parameters: JsonObject | None) -> JsonObject:
    """Return an equivalent of ``parameters`` that providers accept.

    :func:`original_arguments` converts its arguments back.
    """
    plain = _plain(parameters or {})
    if plain is not None:
        return with_provider_names({"type": "object", "properties": {}, **plain})
    return with_provider_names(_wrapped(parameters or {}))


def original_arguments(parameters: JsonObject | None, args: Any) -> Any:
    """Convert a model's arguments for :func:`provider_schema` to arguments of ``parameters``.

    A model may have left out the property ``arguments``, and may have written null for optional properties.
    """
    if not isinstance(args, dict) or not args or not parameters:
        return args
    given = with_original_names(parameters, _unwrapped(parameters, args))
    return without_nulls(parameters, given)


def _unwrapped(parameters: JsonObject, args: JsonObject) -> JsonObject:
    if len(args) != 1 or _plain(parameters) is not None:
        return args
    [(name, inner)] = args.items()
    return inner if name == _wrapper_name(parameters) and isinstance(inner, dict) else args


def _plain(schema: JsonObject) -> JsonObject | None:
    """Return the schema as one object without refused keywords; ``None`` if that would change it."""
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
    """Return the schemas that a node combines by ``$ref`` and ``allOf``; ``None`` if they are unclear."""
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
    """Merge schemas that must all hold, if joining their properties is enough; otherwise ``None``."""
    notes: JsonObject = {}
    for part in parts:
        notes = {**{key: value for key, value in part.items() if key in _NOTES}, **notes}
    rules = [{key: value for key, value in part.items() if key not in _NOTES} for part in parts]
    rules = [rule for rule in rules if rule]
    # a type is a name or a list of names
    if not all(rule.get("type", "object") == "object" or "object" in [*rule["type"]] for rule in rules):
        return None
    if len(rules) == 1:
        return {**notes, **rules[0]}
    if not all(rule.keys() <= _MERGEABLE for rule in rules):
        return None
    properties: JsonObject = {}
    for name, schema in itertools.chain.from_iterable(rule.get("properties", {}).items() for rule in rules):
        other = properties.get(name, schema)
        is_same = json.dumps(other) == json.dumps(schema)  # in Python 1 == True
        properties[name] = schema if is_same else {"allOf": [other, schema]}
    required = dict.fromkeys(itertools.chain.from_iterable(rule.get("required", ()) for rule in rules))
    return {**notes, "properties": properties, **({"required": list(required)} if required else {})}


def _wrapped(schema: JsonObject) -> JsonObject:
    """Return an object whose only property is the schema; definitions stay where references point."""
    name = _wrapper_name(schema)

    def move(reference: str) -> str:
        document, _, pointer = reference.partition("#")
        is_pointer = not pointer or pointer.startswith("/")
        stays = document or not is_pointer or _is_definition(pointer)
        return reference if stays else f"#/properties/{name}{pointer}"

    described = {"description": schema["description"]} if "description" in schema else {}
    hoisted: JsonObject = {}
    inner = schema
    if "$id" not in schema:  # with one, references are relative to it
        moved = _with_references(schema, move)
        hoisted = {key: moved[key] for key in ("$schema", *_DEFINITIONS) if key in moved}
        inner = {key: part for key, part in moved.items() if key not in hoisted}
    if "type" not in inner and not _refers_to_root(schema, deeper_only=False):
        inner = {"type": "object", **inner}  # changes nothing: arguments are an object
    return {
        "type": "object",
        **described,
        "properties": {name: inner},
        "required": [name],
        "additionalProperties": False,
        **hoisted,
    }


def _wrapper_name(schema: JsonObject) -> str:
    """Return a name for wrapped arguments that no property of the schema has."""
    taken = {name for node in nodes_of(schema) for name in node}
    return next(name for n in itertools.count() if (name := WRAPPER + "_" * n) not in taken)


def _is_definition(pointer: str) -> bool:
    return unquote(pointer).startswith(tuple(f"/{name}/" for name in _DEFINITIONS))


def _refers_to_root(schema: JsonObject, *, deeper_only: bool) -> bool:
    """Return whether a reference points to a part of the schema that a rewrite would change.

    With ``deeper_only`` a reference to the root itself does not count, because the root stays equivalent.
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
    """Return a schema with changed references, except those under an ``$id``, which are relative to it."""
    if isinstance(schema, list):
        return [_with_references(part, change) for part in schema]
    if not isinstance(schema, dict) or "$id" in schema:
        return schema
    return {key: _with_changed(key, part, change) for key, part in schema.items()}


def _with_changed(key: str, part: Any, change: Callable[[str], str]) -> Any:
    if key in DATA:
        return part
    if key in REFERENCES and isinstance(part, str):
        return change(part)
    if key in MAPS and isinstance(part, dict):
        return {name: _with_references(inner, change) for name, inner in part.items()}
    return _with_references(part, change)


#: the names of tools that OpenAI and Anthropic accept
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_LENGTH = 8


class McpSource(WireModel):
    """The MCP server that a tool comes from."""

    extension_name: str
    server_name: str | None = None


class ToolSource(WireModel):
    """Where a tool comes from: a Tool resource, an Extension, or an MCP server."""

    type: Literal["config", "extension", "mcp"]
    name: str
    mcp: McpSource | None = None


class CatalogItem(WireModel):
    """One tool as the model sees it (003 §11.1, ToolCatalogItem)."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    source: ToolSource


def catalog_item(item: CatalogItem | Mapping[str, Any], extension: str) -> CatalogItem:
    """Return an extension's description of a tool as a catalog item.

    Raises:
        ValueError: it is not valid.
        TypeError: it is neither an item nor a dict.
    """
    if isinstance(item, CatalogItem):
        return item
    if not isinstance(item, Mapping):
        raise TypeError(f"a tool is described by a dict or a CatalogItem, not {type(item).__name__}")
    require_fields(item, CatalogItem.model_fields, "a tool's item")
    source = item.get("source") or ToolSource(type="extension", name=extension)
    try:
        return CatalogItem.from_wire({**item, "source": source})
    except ValidationError as error:
        raise ValueError(f"the item {item.get('name')!r} is not valid: {faults_of(error)}") from error


@dataclass(frozen=True)
class ToolCatalog(Sequence[CatalogItem]):
    """The tools of one Step; of two with the same name, the last.

    The order is stable, so that providers can cache the prompt.
    """

    items: tuple[CatalogItem, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self._by_name.values()))

    @cached_property
    def _by_name(self) -> dict[str, CatalogItem]:
        return {item.name: item for item in self.items}

    @cached_property
    def json(self) -> bytes:
        """The catalog in the specification's own form (003 §11.2), as JSON."""
        return serializer.encode(self.to_wire())

    @cached_property
    def _original(self) -> dict[str, str]:
        """Full names by provider name; a forbidden name is shortened and gets a digest."""
        mapping = {name: name for name in self._by_name if _PROVIDER_NAME.fullmatch(name)}
        for name in [name for name in self._by_name if name not in mapping]:
            digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()
            plain = _FORBIDDEN.sub("_", name)
            lengths = itertools.count(_DIGEST_LENGTH)
            shortened = (f"{plain[: 63 - length]}-{digest[:length]}" for length in lengths)
            next(short for short in shortened if mapping.setdefault(short, name) == name)
        return mapping

    @cached_property
    def _provided(self) -> dict[str, str]:
        return {name: short for short, name in self._original.items()}

    @overload
    def __getitem__(self, index: int) -> CatalogItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CatalogItem]: ...
    def __getitem__(self, index: int | slice) -> CatalogItem | Sequence[CatalogItem]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    def item(self, name: str) -> CatalogItem | None:
        return self._by_name.get(name)

    def provider_name(self, name: str) -> str:
        """Return a tool's name for providers; one that they forbid is shortened (DESIGN §6)."""
        return self._provided.get(name, name)

    def original_name(self, provider_name: str) -> str:
        """Return the full name for a provider's name; an unknown one is returned as it is."""
        return self._original.get(provider_name, provider_name)

    def original_args(self, provider_name: str, args: Any) -> Any:
        """Convert the arguments of a model's call to those that the tool takes.

        They differ if the tool's schema had to be wrapped in the property ``arguments``.
        """
        item = self._by_name.get(self.original_name(provider_name))
        return args if item is None else original_arguments(item.parameters, args)

    def to_wire(self) -> list[JsonObject]:
        """Return the catalog in the specification's own form (003 §11.2)."""
        return [item.to_wire() for item in self.items]

    def to_openai(self) -> list[JsonObject]:
        """Return ``tools`` for OpenAI's chat completions; :meth:`original_args` converts arguments back."""
        functions = (self._described(one, parameters=provider_schema(one.parameters)) for one in self.items)
        return [{"type": "function", "function": function} for function in functions]

    def to_anthropic(self) -> list[JsonObject]:
        """Return ``tools`` for Anthropic's messages; :meth:`original_args` converts arguments back."""
        return [self._described(item, input_schema=provider_schema(item.parameters)) for item in self.items]

    def to_mcp(self) -> list[JsonObject]:
        """Return ``tools`` for an MCP ``tools/list`` result; MCP takes full names and any object schema."""
        empty: JsonObject = {"type": "object", "properties": {}}
        return [
            {**self._described(item, inputSchema={**empty, **(item.parameters or {})}), "name": item.name}
            for item in self.items
        ]

    def _described(self, item: CatalogItem, **schema: JsonObject) -> JsonObject:
        described: JsonObject = {"name": self.provider_name(item.name)}
        if item.description is not None:
            described["description"] = item.description
        return {**described, **schema}
