"""How far a running handler has come, as it tells with ``ctx.progress``."""

from collections.abc import Iterable

from broker_config import serializer
from goondan_tasks.errors import ToolError
from goondan_tasks.messages import WireModel, iso_time

#: characters
LONGEST_MESSAGE = 1_000
#: reports that are kept of a run beside the last one
MOST_EARLIER = 9
#: what every JSON reader takes for the same number
LARGEST_NUMBER = 2**53


class ProgressReport(WireModel):
    """What a handler has told of its call at one time."""

    done: int | float
    #: what ``done`` will be at the end, if that is known
    total: int | float | None = None
    message: str | None = None


class Progress(ProgressReport):
    """What a handler has told of its call last, and shortly before."""

    updated_at: str
    #: the reports before the last one, oldest first, :data:`MOST_EARLIER` at most: whoever looks now and then
    #: misses none of a few that come close together
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
    """Write as JSON what a handler tells.

    Raises:
        ToolError: a number is none, is negative, or is too large; the message is no text, or too long.
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
