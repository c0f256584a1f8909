"""Writes clients/typescript/src/types.ts from the OpenAPI document.

``python -m tests.docs.typescript_types`` writes the file again; a test compares both.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import cast

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.api import operations_of
from goondan_web.doors.api.openapi import document
from goondan_web.doors.api.runs import Waits
from tests.docs.pages import ROOT

FILE = ROOT / "clients" / "typescript" / "src" / "types.ts"
LINE_LENGTH = 110

_HEAD = """\
// Made from the OpenAPI document by `python -m tests.docs.typescript_types`. Changes are lost.

/** A part of a list. `nextCursor` leads to the next one, and is null in the last one. */
export interface Page<Item> {
  items: Item[];
  nextCursor?: string | null;
}
"""
_REF = "#/components/schemas/"
_PAGE = re.compile(r"Page_(\w+)_")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def written() -> str:
    """Return the file as it should be."""
    client = cast(AsyncClient, None)  # nothing is asked
    described = document(operations_of(client, Waits(client)))
    schemas = described["components"]["schemas"]
    for name, schema in schemas.items():
        if _PAGE.fullmatch(name) and set(schema["properties"]) != {"items", "nextCursor"}:
            raise ValueError(f"{name} is not a Page")
    types = [_declared(name, schema) for name, schema in schemas.items() if not _PAGE.fullmatch(name)]
    return "\n".join([_HEAD, *types, _events(described["paths"])])


def _declared(name: str, schema: JsonObject) -> str:
    about = _comment(schema.get("description"))
    if "properties" not in schema:
        return f"{about}export type {name} = {_type(schema)};\n"
    required = schema.get("required", ())
    fields = [
        _comment(field.get("description"), "  ")
        + f"  {_key(key)}{'' if key in required else '?'}: {_type(field)};\n"
        for key, field in schema["properties"].items()
    ]
    return f"{about}export interface {name} {{\n{''.join(fields)}}}\n"


def _events(paths: Mapping[str, JsonObject]) -> str:
    """Return the type of an event of a stream: one of those that the document lists."""
    [listed] = {
        tuple(_type(item) for item in answer["x-items"])
        for path in paths.values()
        for operation in path.values()
        for answer in operation["responses"].values()
        if "x-items" in answer
    }
    lines = "".join(f"\n  | {name}" for name in listed)
    return f"/** An event of a stream; `end` is the last one. */\nexport type TurnEvent ={lines};\n"


def _type(schema: JsonObject) -> str:
    """Return the type of what a schema allows.

    Raises:
        ValueError: this module does not know what the schema says.
    """
    kinds = [key for key in ("$ref", "anyOf", "enum", "const", "type") if key in schema]
    match kinds[:1]:
        case []:
            return "unknown"
        case ["$ref"]:
            name = schema["$ref"].removeprefix(_REF)
            item = _PAGE.fullmatch(name)
            return f"Page<{item[1]}>" if item else name
        case ["anyOf"]:
            return " | ".join(map(_type, schema["anyOf"]))
        case ["enum"]:
            return " | ".join(map(json.dumps, schema["enum"]))
        case ["const"]:
            return json.dumps(schema["const"])
    return _typed(schema)


def _typed(schema: JsonObject) -> str:
    kind = schema["type"]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "array" and "prefixItems" not in schema:
        item = _type(schema.get("items", {}))
        return f"({item})[]" if " | " in item else f"{item}[]"
    if kind == "object" and "properties" not in schema:
        values = schema.get("additionalProperties", True)
        return f"Record<string, {_type(values) if isinstance(values, dict) else 'unknown'}>"
    raise ValueError(f"no type for {schema}")


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)


def _comment(text: str | None, indent: str = "") -> str:
    if text is None:
        return ""
    lines = list(_wrapped(text.replace("``", "`"), LINE_LENGTH - len(indent)))
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    return "".join(f"{indent}{line}\n" for line in ("/**", *(f" * {line}".rstrip() for line in lines), " */"))


def _wrapped(text: str, length: int) -> Iterator[str]:
    for line in text.splitlines():
        yield from textwrap.wrap(line, length - len("/**  */")) or [""]


if __name__ == "__main__":
    FILE.write_text(written(), "utf-8")
