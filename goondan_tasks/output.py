"""What a handler, or an agent, may return."""

import inspect
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from broker_config import serializer
from goondan_tasks.errors import ToolOutputError
from goondan_tasks.json_values import written

_LAZY = (types.GeneratorType, map, filter, zip, enumerate, reversed)


def encoded_output(output: Any, tool_name: str) -> bytes:
    """Write what a handler returned as JSON.

    Raises:
        ToolOutputError: it has no JSON form.
    """
    try:
        return serializer.encode(output)
    except serializer.NotJsonError as error:
        raise bad_output(output, error, tool_name) from error


def bad_output(output: Any, error: serializer.NotJsonError, author: str) -> ToolOutputError:
    """Return the error of a value without a JSON form; of one with unfinished work in it, it says what to do.

    Coroutines in it are closed: Python would warn of each on standard error when it is collected.
    """
    unfinished = [part for part in _parts(output) if _what_to_do(part.value)]
    for part in unfinished:
        if inspect.iscoroutine(part.value) and inspect.getcoroutinestate(part.value) == inspect.CORO_CREATED:
            part.value.close()
    if not unfinished:
        return ToolOutputError(f"{author} returned a value that is not JSON: {error}.")
    first = unfinished[0]
    kind = type(first.value).__name__.replace("_", " ")
    named = getattr(first.value, "__name__", None)
    what = f"{kind} {named!r}" if isinstance(named, str) else kind
    return ToolOutputError(
        f"{author} returned a value that is not JSON: {first.place} is unfinished work ({what}).",
        suggestion=_what_to_do(first.value),
    )


def _what_to_do(value: Any) -> str | None:
    """Say how work is finished that a value only stands for; ``None`` if it does not."""
    if inspect.isawaitable(value):
        return "Write `await` where it is made, in an `async def` handler."
    if inspect.isasyncgen(value):
        return "Return a list: [item async for item in …]. For news on the way there is ctx.progress."
    if isinstance(value, _LAZY):
        return "Return a list: list(…). For news on the way there is ctx.progress."
    return None


class _Part(NamedTuple):
    """A value somewhere in an output."""

    value: Any
    step: str | int = ""
    inside: "_Part | None" = None

    @property
    def place(self) -> str:
        path: list[str | int] = []
        part = self
        while part.inside is not None:
            path.append(part.step)
            part = part.inside
        return written(tuple(reversed(path)), "output")


def _parts(output: Any) -> Iterator[_Part]:
    """Yield a value and all that is in it, in order; each container once, for they may hold themselves."""
    waiting = [_Part(output)]
    seen: set[int] = set()
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part.value, dict | list | tuple | set | frozenset) and id(part.value) not in seen:
            seen.add(id(part.value))
            inner = part.value.items() if isinstance(part.value, dict) else enumerate(part.value)
            waiting += reversed([_Part(value, step, part) for step, value in inner])
