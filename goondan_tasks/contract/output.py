"""What a handler gives back: its output, a pending output, and its progress."""

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_config import serializer
from goondan_tasks.contract.errors import PayloadTooLargeError, ToolError, ToolOutputError
from goondan_tasks.contract.messages import LONGEST_RUN_SECONDS, WireModel, iso_time
from goondan_tasks.contract.wording import written

_LAZY = (types.GeneratorType, map, filter, zip, enumerate, reversed)

#: in characters
LONGEST_HANDLE = 1_000

#: marks a pending output in the documents' form, a plain object
_MARK = "__async"

#: of a chunk of output that a handler emits, in bytes of its text or JSON
LARGEST_CHUNK = 65_536
#: of all chunks of one run; later ones are left out
MOST_EMITTED_BYTES = 1_048_576

#: a chunk: text, or JSON; ``None`` says that later ones are left out
Piece = str | bytes | None

#: of a progress report, in characters
LONGEST_MESSAGE = 1_000
#: how many reports before the last one are kept
MOST_EARLIER = 9
#: the largest integer that every JSON parser reads exactly
LARGEST_NUMBER = 2**53


class EncodedOutput(NamedTuple):
    """An output as JSON, and as it is read from there."""

    data: bytes
    output: Any


def encoded_output(output: Any, tool_name: str) -> EncodedOutput:
    """Write what a handler returned as JSON, with U+FFFD for each lone surrogate.

    File names that are not UTF-8 and texts that were cut in the middle contain such surrogates.

    Raises:
        ToolOutputError: it has no JSON form.
    """
    try:
        return EncodedOutput(serializer.encode(output, serializer.DEEPEST), output)
    except serializer.LoneSurrogateError:
        data = serializer.encode(output, repairs=True)
        return EncodedOutput(data, serializer.decode(data))
    except serializer.NotJsonError as error:
        raise bad_output(output, error, tool_name) from error


def bad_output(output: Any, error: serializer.NotJsonError, author: str) -> ToolOutputError:
    """Return the error about an output that is not JSON.

    If the output contains unfinished work, the suggestion says how to get its result. Coroutines in it are
    closed, or Python would warn about each on standard error.
    """
    unfinished = [part for part in _parts(output) if _how_to_finish(part.value)]
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
        suggestion=_how_to_finish(first.value),
    )


def _how_to_finish(value: Any) -> str | None:
    """Say how to get the results if ``value`` is unfinished work, such as a coroutine; else ``None``."""
    if inspect.isawaitable(value):
        return "Write `await` where it is made, in an `async def` handler."
    if inspect.isasyncgen(value):
        return "Return a list: [item async for item in …]. To report progress, call ctx.progress."
    if isinstance(value, _LAZY):
        return "Return a list: list(…). To report progress, call ctx.progress."
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
    """Yield a value and everything inside it, in order; each container once, as it may contain itself."""
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
    """The return value of a handler whose output comes later; made by ``ctx.pending``.

    Raises:
        ToolOutputError: the handle is empty or not text, or ``ttl_seconds`` is not a number above 0.
    """

    #: the tool's own name for the work; not necessarily unique
    handle: str
    #: the interim output; any JSON
    output: Any = None
    #: how long the call may wait for its completion
    ttl_seconds: float | None = None
    #: whether the call waits for an approval, and the handler has not run
    is_approval: bool = False

    def __post_init__(self) -> None:
        """Check the fields now, since errors would otherwise appear only when the call expires."""
        handle: Any = self.handle
        if isinstance(handle, str):
            object.__setattr__(self, "handle", serializer.well_formed(handle))
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
    """Return whether a handler's value may be pending, to be decided by :func:`pending_of`."""
    return isinstance(value, Pending) or (isinstance(value, Mapping) and _MARK in value)


def pending_of(value: Any) -> Pending | None:
    """Return a handler's value as a Pending; ``None`` if the value is the result.

    The documents' form ``{"__async": true, "handle": "build-1", …}`` means the same as ``ctx.pending``; the
    other fields are the output.

    Raises:
        ToolOutputError: the value is pending, but has no handle.
    """
    if isinstance(value, Pending):
        return value
    if not isinstance(value, Mapping) or value.get(_MARK) is not True:
        return None
    output = {name: part for name, part in value.items() if name not in {_MARK, "handle"}}
    handle: Any = value.get("handle")
    if type(handle) is int:  # such as the number of a job
        handle = str(handle)
    return Pending(handle, output or None)


class ProgressReport(WireModel):
    """A progress report of a handler."""

    done: int | float
    #: what ``done`` will be at the end, if known
    total: int | float | None = None
    message: str | None = None

    @property
    def text(self) -> str:
        """The numbers and the message: ``3/10 · reading page 3``."""
        numbers = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return numbers if self.message is None else f"{numbers} · {self.message}"


class Progress(ProgressReport):
    """The latest progress report of a handler, and those shortly before it."""

    updated_at: str
    #: up to :data:`MOST_EARLIER` reports before the last one, oldest first, so that polling does not miss a
    #: few reports in quick succession
    earlier: tuple[ProgressReport, ...] = ()

    @classmethod
    def from_redis(cls, kept: bytes) -> "Progress":
        """Read what ``progress.lua`` stores: milliseconds and JSON.

        Raises:
            ValueError: the value is malformed.
        """
        now, _, report = kept.partition(b" ")
        fields = serializer.decode(report)
        if not isinstance(fields, dict):
            raise ValueError(f"not a progress report: {report!r}")
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
    """Write a report together with those before it; each is the JSON that :func:`report_of` writes."""
    joined = b",".join(earlier)
    return b'%b,"earlier":[%b]}' % (report[:-1], joined) if joined else report


def checked_chunk(chunk: Any) -> tuple[str | bytes, int]:
    """Return a chunk of output as text or, any other value, as JSON, and its size in bytes.

    Raises:
        PayloadTooLargeError: it takes more than :data:`LARGEST_CHUNK`.
        ToolOutputError: it is neither text nor JSON.
    """
    try:
        piece, size = sized_piece(chunk)
    except serializer.NotJsonError as error:
        raise ToolOutputError(f"emit: the chunk is neither text nor JSON: {error}.") from error
    if size > LARGEST_CHUNK:
        raise PayloadTooLargeError(
            f"emit: the chunk takes {size} bytes; at most {LARGEST_CHUNK} are allowed.",
            suggestion="Emit it in parts, or write it into a file of the workdir and emit its path.",
        )
    return piece, size


def sized_piece(chunk: Any) -> tuple[str | bytes, int]:
    """Return a chunk as :func:`checked_chunk` does, of any size.

    Raises:
        NotJsonError: it is neither text nor JSON.
    """
    if isinstance(chunk, str):
        return chunk, len(chunk) if chunk.isascii() else len(chunk.encode(errors="replace"))
    piece = serializer.encode(chunk, serializer.DEEPEST, repairs=True)
    return piece, len(piece)


def emit_nowhere(chunk: Any) -> None:
    """Check a chunk of output that nobody follows."""
    checked_chunk(chunk)


def _checked_number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ToolError(f"progress: {name} must be a number, not {type(value).__name__}.")
    if not 0 <= value <= LARGEST_NUMBER:  # also false for NaN
        raise ToolError(f"progress: {name} must be a number from 0 to 2**53.")
    return value


def _checked_message(message: str) -> str:
    if not isinstance(message, str):
        raise ToolError(f"progress: message must be text, not {type(message).__name__}.")
    if len(message) > LONGEST_MESSAGE:
        raise ToolError(
            f"progress: message has {len(message)} characters; at most {LONGEST_MESSAGE} are allowed."
        )
    return serializer.well_formed(message)
