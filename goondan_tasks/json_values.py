"""Values as JSON has them: what is none, and how values and their places are written in messages."""

import functools
import json
import math
import re
from collections.abc import Iterator, Sized
from typing import Any

from goondan_tasks.messages import JsonObject

FieldPath = tuple[str | int, ...]

#: levels of nesting that arguments may have; the schema checker recurses on the C stack
MAX_DEPTH = 128
#: Python refuses to write larger integers (``sys.get_int_max_str_digits``), the checker misreads them
MAX_INTEGER_BITS = 14_000

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def json_faults(args: JsonObject) -> Iterator[str]:
    """Yield what is not JSON, or deeper than :data:`MAX_DEPTH`, without recursion."""
    pending: list[tuple[Any, Any, int]] = [(args, None, 0)]
    for value, link, depth in pending:
        if depth == MAX_DEPTH:
            yield f"{written(_unlinked(link)[:8])}…: nested deeper than {MAX_DEPTH} levels"
            continue
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(value, dict) and (fault := _key_fault(key)):
                yield f"{written(_unlinked(link))}: {fault}"
            elif isinstance(item, dict | list | tuple):
                pending.append((item, (link, key), depth + 1))
            elif fault := _scalar_fault(item):
                yield f"{written(_unlinked((link, key)))}: {fault}"


def _key_fault(key: Any) -> str | None:
    return _scalar_fault(key) if isinstance(key, str) else f"the key {key!r:.80} is not a string"


def _scalar_fault(value: Any) -> str | None:
    if isinstance(value, str):
        return (
            None if value.isascii() or _is_unicode(value) else "contains a lone surrogate, which is not text"
        )
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if value.bit_length() <= MAX_INTEGER_BITS else "the number has too many digits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is not JSON"
    return f"a value of type {type(value).__name__} is not JSON"


def _is_unicode(text: str) -> bool:
    return _SURROGATE.search(text) is None


def _unlinked(link: Any) -> FieldPath:
    """Return the path that a chain of ``(parent, key)`` pairs stands for."""
    steps: list[str | int] = []
    while link is not None:
        link, key = link
        steps.append(key)
    return tuple(reversed(steps))


def written(path: FieldPath, root: str = "args") -> str:
    """Write a path as a programmer would: ``args.items[2].count``."""
    return (root + "".join(_step(part) for part in path)).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
        return f".{part}"
    return f"[{json.dumps(part)}]"


def shown(value: Any) -> str:
    """Show a value in a message: scalars as JSON, shortened; of arrays and objects the size alone."""
    if isinstance(value, dict):
        return f"an object of {_count(value, 'field')}"
    if isinstance(value, list | tuple):
        return f"an array of {_count(value, 'item')}"
    if isinstance(value, str | int | float | None):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 80 else text[:79] + "…"
    return f"a value of type {type(value).__name__}"


def _count(container: Sized, word: str) -> str:
    return f"{len(container)} {word}{'' if len(container) == 1 else 's'}"


def member(node: Any, step: str) -> Any:
    """Return what stands under a key or an index of ``node``, or ``None``."""
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    return None


def pointed(schema: JsonObject, pointer: str) -> Any:
    """Return what a JSON Pointer (RFC 6901), with or without its ``#``, leads to, or ``None``."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return functools.reduce(member, steps, schema)
