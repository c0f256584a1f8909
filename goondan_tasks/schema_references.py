"""The references of a JSON Schema, bounded before the checker follows them.

Schemas may come from strangers (an MCP server), so neither compiling nor checking may take long,
whatever they say.
"""

import functools
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from jsonschema_rs import ValidationError

from goondan_tasks.messages import JsonObject

#: levels that a schema may have with its references followed; the checker recurses on the C stack
MAX_DEPTH = 128
#: subschemas that a schema may have once its references are written out
MAX_SUBSCHEMAS = 100_000
KEYWORDS = ("$ref", "$dynamicRef")


class SchemaReferenceError(ValueError):
    """A schema's references lead too deep or to too many places."""


class References:
    """The references of a schema, looked at before the checker follows them.

    Two kinds of schema would let the checker run for hours. One doubles with each reference
    (``a: allOf [b, b]``, ``b: allOf [c, c]``, …): it is refused by its size when written out. The
    other is recursive and lists alternatives: the checker decides it fast, but explains every
    alternative of every level. So in the copy that explains faults each recurring reference stands
    as ``not not $ref``, which is decided and not explained, and ``ArgumentSchema`` follows it.
    """

    def __init__(self, schema: JsonObject) -> None:
        """Measure the schema.

        Raises:
            SchemaReferenceError: it is too deep or too large with its references followed.
        """
        #: the references, as written, that lead back into a schema they stand in
        self.recurring: set[str] = set()
        self._schema = schema
        self._resources = [schema, *(node for node in _nodes(schema) if "$id" in node)]
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()
        if self._size(schema, 0) > MAX_SUBSCHEMAS:
            raise SchemaReferenceError(
                "the references multiply: written out, the schema is too large to check"
            )

    def guarded(self) -> JsonObject:
        """Return the schema with every recurring reference behind ``not not``."""
        guarded: JsonObject = self._guard(self._schema)
        return guarded

    def _guard(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._guard(item) for item in node]
        if not isinstance(node, dict):
            return node
        copy = {key: self._guard(item) for key, item in node.items()}
        for keyword in KEYWORDS:
            if isinstance(node.get(keyword), str) and node[keyword] in self.recurring:
                guard = {"not": {"not": {keyword: copy.pop(keyword)}}}
                copy["allOf"] = [*copy.get("allOf", ()), guard]
        return copy

    def _size(self, node: Any, depth: int) -> int:
        """Count the subschemas under ``node`` with its references written out, each cycle once."""
        if isinstance(node, list):
            return sum(self._size(item, depth) for item in node)
        if not isinstance(node, dict):
            return 0
        if id(node) not in self._sizes:
            if depth > MAX_DEPTH:
                raise SchemaReferenceError(f"the schema is nested deeper than {MAX_DEPTH} levels")
            self._open.add(id(node))
            size = sum(self._size(item, depth + 1) for item in (*node.values(), *self._targets(node)))
            self._open.discard(id(node))
            self._sizes[id(node)] = 1 + size
        return self._sizes[id(node)]

    def _targets(self, node: JsonObject) -> Iterator[JsonObject]:
        for keyword in KEYWORDS:
            reference = node.get(keyword)
            for target in self._resolve(reference) if isinstance(reference, str) else ():
                if id(target) in self._open:
                    self.recurring.add(str(reference))
                else:
                    yield target

    def _resolve(self, reference: str) -> Iterator[JsonObject]:
        """Yield every subschema that a reference may mean; more than one only with embedded ``$id``."""
        fragment = unquote(reference.partition("#")[2])
        if fragment and not fragment.startswith("/"):
            yield from (node for node in _nodes(self._schema) if fragment in _anchors(node))
            return
        targets = (pointed(resource, fragment) for resource in self._resources)
        yield from (target for target in targets if isinstance(target, dict))


def _nodes(schema: JsonObject) -> Iterator[JsonObject]:
    pending: list[Any] = [schema]
    for node in pending:
        if isinstance(node, dict):
            yield node
        pending.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())


def _anchors(node: JsonObject) -> tuple[Any, Any]:
    return node.get("$anchor"), node.get("$dynamicAnchor")


def pointed(schema: JsonObject, pointer: str) -> Any:
    """Return what a JSON Pointer (RFC 6901), with or without its ``#``, leads to, or ``None``."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return functools.reduce(member, steps, schema)


def member(node: Any, step: str) -> Any:
    """Return what stands under a key or an index of ``node``, or ``None``."""
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    return None


def guarded_reference(error: ValidationError) -> str | None:
    """Return the reference whose guard failed, if that is the error."""
    inner = (
        error.kind.value.get("not")
        if error.kind.name == "not" and isinstance(error.kind.value, dict)
        else None
    )
    if not isinstance(inner, dict) or len(inner) != 1:
        return None
    return next((str(inner[keyword]) for keyword in KEYWORDS if keyword in inner), None)
