"""What a handler gives back: its output, that the output comes later, and how far it has come."""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_config import serializer
from goondan_tasks.errors import ToolError, ToolOutputError
from goondan_tasks.messages import LONGEST_RUN_SECONDS, WireModel, iso_time
from goondan_tasks.wording import written

_LAZY = (types.GeneratorType, map, filter, zip, enumerate, reversed)


#: characters of a handle
LONGEST_HANDLE = 1_000

#: marks the documents' own form of it, a plain object
_MARK = "__async"

#: characters of a progress message
LONGEST_MESSAGE = 1_000
#: reports that are kept of a run beside the last one
MOST_EARLIER = 9
#: the largest integer that every JSON reader reads exactly
LARGEST_NUMBER = 2**53


def encoded_output(output: Any, tool_name: str) -> bytes:
    """Write what a handler returned as JSON.

    Raises:
        ToolOutputError: it has no JSON form.
    """
    try:
        return serializer.encode(output, serializer.DEEPEST)
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


@dataclass(frozen=True, slots=True)
class Pending:
    """What a handler returns that has only begun its work; ``ctx.pending`` makes it.

    Raises:
        ToolOutputError: the handle is not text, or is empty; or the time is not a number above 0.
    """

    #: the tool's own name for the work; two calls may well have the same
    handle: str
    #: the interim output; any JSON
    output: Any = None
    #: how long the call may wait for its completion
    ttl_seconds: float | None = None
    #: the handler was not run: the call must be approved first
    is_approval: bool = False

    def __post_init__(self) -> None:
        """Check the fields now: a mistake would otherwise show only when the call expires."""
        handle: Any = self.handle
        seconds: Any = self.ttl_seconds
        if not isinstance(handle, str) or not 0 < len(handle) <= LONGEST_HANDLE:
            raise ToolOutputError(
                f"A handle is a text of 1 to {LONGEST_HANDLE} characters, not {self.handle!r:.100}."
            )
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds <= LONGEST_RUN_SECONDS):
            most = f"{LONGEST_RUN_SECONDS:,} at most"
            raise ToolOutputError(f"ttl_seconds is a number above 0, {most}, not {self.ttl_seconds!r:.100}.")


def may_be_pending(value: Any) -> bool:
    """Return whether :func:`pending_of` may find that a handler's value is not the result."""
    return isinstance(value, Pending) or (isinstance(value, Mapping) and _MARK in value)


def pending_of(value: Any) -> Pending | None:
    """Return a handler's value as pending; ``None`` if the value is the result.

    The documents' form ``{"__async": true, "handle": "build-1", …}`` means the same as ``ctx.pending``;
    its other fields are the output.

    Raises:
        ToolOutputError: it says so, but has no handle.
    """
    if isinstance(value, Pending):
        return value
    if not isinstance(value, Mapping) or value.get(_MARK) is not True:
        return None
    output = {name: part for name, part in value.items() if name not in {_MARK, "handle"}}
    handle: Any = value.get("handle")
    if type(handle) is int:  # a job's number is taken as it is written
        handle = str(handle)
    return Pending(handle, output or None)


class ProgressReport(WireModel):
    """One progress report of a handler."""

    done: int | float
    #: what ``done`` will be at the end, if that is known
    total: int | float | None = None
    message: str | None = None


class Progress(ProgressReport):
    """The latest progress report of a handler, and those shortly before."""

    updated_at: str
    #: the reports before the last one, oldest first, :data:`MOST_EARLIER` at most, so that a poll misses
    #: none of a few reports in quick succession
    earlier: tuple[ProgressReport, ...] = ()

    @classmethod
    def from_redis(cls, kept: bytes) -> "Progress":
        """Read what ``progress.lua`` keeps: milliseconds and JSON.

        Raises:
            ValueError: it cannot be read.
        """
        now, _, report = kept.partition(b" ")
        fields = serializer.decode(report)
        if not isinstance(fields, dict):
            raise ValueError(f"no progress: {report!r}")
        return cls.from_wire({**fields, "updatedAt": iso_time(int(now))})


def report_of(done: float, total: float | None = None, message: str | None = None) -> bytes:
    """Write a progress report as JSON.

    Raises:
        ToolError: a number is invalid, negative, or too large; the message is not text, or too long.
    """
    report: dict[str, object] = {"done": _checked_number("done", done)}
    if total is not None:
        report["total"] = _checked_number("total", total)
    if message is not None:
        report["message"] = _checked_message(message)
    return serializer.encode(report)


def with_earlier(report: bytes, earlier: Iterable[bytes]) -> bytes:
    """Write a report together with those before it; all are JSON as :func:`report_of` writes it."""
    joined = b",".join(earlier)
    return b'%b,"earlier":[%b]}' % (report[:-1], joined) if joined else report


def _checked_number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolError(f"progress: {name} must be a number, not {type(value).__name__}.")
    if not 0 <= value <= LARGEST_NUMBER:  # NaN is not either
        raise ToolError(f"progress: {name} must be a number from 0 to 2**53.")
    return value


def _checked_message(message: str) -> str:
    if not isinstance(message, str):
        raise ToolError(f"progress: message must be a text, not {type(message).__name__}.")
    if len(message) > LONGEST_MESSAGE:
        raise ToolError(
            f"progress: message has {len(message)} characters; at most {LONGEST_MESSAGE} are allowed."
        )
    try:
        message.encode()
    except UnicodeEncodeError as error:
        raise ToolError(f"progress: message cannot be written as UTF-8: {error}.") from error
    return message
