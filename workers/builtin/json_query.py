"""Built-in tool ``json-query``: queries a JSON text."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError, ToolHandler

#: one step of a path: ``.name`` (``name`` at the start), ``[0]``, ``["any key"]``, ``['any key']``
_STEP = re.compile(r"""\.?(?:([^.\[\]]+)|\[(\d+)\]|\["([^"]*)"\]|\['([^']*)'\])""")
_LONGEST_INDEX = 15

TYPES: dict[type, str] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
    type(None): "null",
}


def query(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Return the value at a path."""
    path = input.get("path", ".")
    found, value = _look_up(_parse(input["data"]), path)
    return {"path": path, "found": found, "value": value}


def pick(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Keep some keys of an object."""
    data = _parse(input["data"])
    if not isinstance(data, dict):
        raise ToolError("Input data must be a JSON object for pick operation")
    return {"keys": input["keys"], "result": {key: data[key] for key in input["keys"] if key in data}}


def count(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Count the members of the value at a path."""
    path = input.get("path", ".")
    found, value = _look_up(_parse(input["data"]), path)
    if not found:
        raise ToolError(f"There is no value at path {path!r}.")
    return {"path": path, "count": _size(value), "type": TYPES[type(value)]}


def flatten(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Flatten an array."""
    data, depth = _parse(input["data"]), int(input.get("depth", 1))
    if not isinstance(data, list):
        raise ToolError("Input data must be a JSON array for flatten operation")
    result = list(_flat(data, depth))
    return {"depth": depth, "count": len(result), "result": result}


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except ValueError as error:
        raise ToolError(f"Failed to parse input as JSON: {error}") from error
    except RecursionError as error:
        raise ToolError("Failed to parse input as JSON: it is nested too deeply") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _look_up(value: Any, path: str) -> tuple[bool, Any]:
    """Follow ``path`` into ``value``; return whether there is a value, and the value."""
    for step in list(_steps(path)):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _is_index(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return False, None
    return True, value


def _steps(path: str) -> Iterator[str]:
    position = len(path) if path == "." else 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ToolError(
                f"Invalid path at position {position}: {path!r}",
                suggestion='Write steps as .name, [0] or ["any key"].',
            )
        yield match[match.lastindex or 0]
        position = match.end()


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdecimal() and len(step) <= _LONGEST_INDEX


def _size(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    return 0 if value is None else 1


def _flat(items: list[Any], depth: int) -> Iterator[Any]:
    # not recursive: JSON may be nested deeper than Python's call stack
    stack = [iter(items)]
    while stack:
        for item in stack[-1]:
            if isinstance(item, list) and len(stack) <= depth:
                stack.append(iter(item))
                break
            yield item
        else:
            stack.pop()


handlers: dict[str, ToolHandler] = {"query": query, "pick": pick, "count": count, "flatten": flatten}
