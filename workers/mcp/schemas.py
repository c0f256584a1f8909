"""Parameters of MCP tools that are written in an older draft of JSON Schema.

Arguments are checked by draft 2020-12. Servers write draft-07 as well, which means the same but for tuples
(json-schema.org, "Understanding JSON Schema", release notes of 2020-12) and, before draft-06, limits.
"""

import contextlib
from typing import Any

from goondan_tasks.messages import JsonObject
from goondan_tasks.schema import SchemaError, compile_schema

#: what holds values, not schemas
_DATA = frozenset({"const", "default", "enum", "examples"})
_LIMITS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def checkable(schema: JsonObject) -> JsonObject:
    """Return the schema as it is if arguments can be checked by it, else in the current draft.

    For one that has no meaning in either any object will do: the server checks its arguments too.
    """
    for candidate in (schema, in_current_draft(schema)):
        with contextlib.suppress(SchemaError):
            compile_schema(candidate)
            return candidate
    return {"type": "object"}


def in_current_draft(schema: Any) -> Any:
    """Return the same schema as draft 2020-12 writes it."""
    if isinstance(schema, list):
        return [in_current_draft(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    current = {key: part if key in _DATA else in_current_draft(part) for key, part in schema.items()}
    if isinstance(schema.get("items"), list):
        current["prefixItems"] = current.pop("items")
        if "additionalItems" in current:
            current["items"] = current.pop("additionalItems")
    for limit, exclusive in _LIMITS:
        if isinstance(schema.get(exclusive), bool):
            del current[exclusive]
            if schema[exclusive] and limit in current:
                current[exclusive] = current.pop(limit)
    return current
