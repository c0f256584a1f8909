"""Built-in tool ``text-transform``: simple text operations; positions and lengths count characters."""

import json
from collections.abc import Callable

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError, ToolHandler

#: replacing and joining can make a text far longer than the input
MAX_CHARACTERS = 10_000_000

TRIMS: dict[str, Callable[[str], str]] = {"start": str.lstrip, "end": str.rstrip, "both": str.strip}
CASES: dict[str, Callable[[str], str]] = {"upper": str.upper, "lower": str.lower}


def replace(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Replace the first occurrence, or all."""
    text, search, replacement = input["text"], input["search"], input.get("replacement", "")
    occurrences = text.count(search)
    replacements = occurrences if input.get("all", False) else min(occurrences, 1)
    _check_length(len(text) + replacements * (len(replacement) - len(search)))
    result = text.replace(search, replacement, replacements)
    return {"original": text, "result": result, "replacements": replacements}


def slice_text(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Cut out a part."""
    text = input["text"]
    start, end = int(input.get("start", 0)), int(input.get("end", len(text)))
    result = text[start:end]
    return {"original": text, "result": result, "start": start, "end": end, "length": len(result)}


def split(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Split into parts, and keep the first ``maxParts``."""
    text, delimiter = input["text"], input.get("delimiter", "\n")
    parts = text.split(delimiter) if delimiter else list(text)
    if "maxParts" in input:
        parts = parts[: int(input["maxParts"])]
    return {"delimiter": delimiter, "count": len(parts), "parts": parts}


def join(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Join parts; numbers and booleans are written as JSON has them."""
    delimiter = input.get("delimiter", "\n")
    parts = [part if isinstance(part, str) else json.dumps(part) for part in input["parts"]]
    _check_length(sum(map(len, parts)) + len(parts) * len(delimiter))
    return {"delimiter": delimiter, "count": len(parts), "result": delimiter.join(parts)}


def trim(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Remove white space at the ends."""
    mode = input.get("mode", "both")
    result = TRIMS[mode](input["text"])
    return {"original": input["text"], "result": result, "mode": mode, "trimmedLength": len(result)}


def case(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Change the case."""
    return {"original": input["text"], "result": CASES[input["to"]](input["text"]), "to": input["to"]}


def _check_length(characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise ToolError(
            f"The result would have {characters} characters; the limit is {MAX_CHARACTERS}.",
            suggestion="Work on a smaller text, or on a file with bash.",
        )


handlers: dict[str, ToolHandler] = {
    "replace": replace,
    "slice": slice_text,
    "split": split,
    "join": join,
    "trim": trim,
    "case": case,
}
