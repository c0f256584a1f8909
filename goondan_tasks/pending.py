"""A handler's word that its result comes later (002 §6.3, 003 §8.2)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from goondan_tasks.errors import ToolOutputError
from goondan_tasks.messages import LONGEST_RUN_SECONDS

#: in characters
LONGEST_HANDLE = 1_000

#: what marks the documents' own form of it, a plain object
_MARK = "__async"


@dataclass(frozen=True, slots=True)
class Pending:
    """What a handler returns that has only begun its work; ``ctx.pending`` makes it.

    Raises:
        ToolOutputError: the handle is no text, or empty; or the time is none.
    """

    #: the tool's own name for the work; two calls may well have the same
    handle: str
    #: what the caller is told meanwhile; any JSON
    output: Any = None
    #: how long the call may wait for its completion
    ttl_seconds: float | None = None
    #: nothing has been run: somebody must approve the call first
    is_approval: bool = False

    def __post_init__(self) -> None:
        """Refuse what would only be found out when the call expires."""
        if not _is_handle(self.handle):
            raise ToolOutputError(
                f"A handle is a text of 1 to {LONGEST_HANDLE} characters, not {self.handle!r:.100}."
            )
        if self.ttl_seconds is not None and not _is_time(self.ttl_seconds):
            most = f"{LONGEST_RUN_SECONDS:,} at most"
            raise ToolOutputError(f"ttl_seconds is a number above 0, {most}, not {self.ttl_seconds!r:.100}.")


def may_be_pending(value: Any) -> bool:
    """Say whether :func:`pending_of` may find that a handler's value is not the result."""
    return isinstance(value, Pending) or (isinstance(value, Mapping) and _MARK in value)


def pending_of(value: Any) -> Pending | None:
    """Return what a handler's value says about a later result; ``None`` if it is the result.

    The documents' form ``{"__async": true, "handle": "build-1", …}`` means the same as ``ctx.pending``;
    what else stands in it is the output.

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


def _is_handle(handle: Any) -> bool:
    return isinstance(handle, str) and 0 < len(handle) <= LONGEST_HANDLE


def _is_time(seconds: Any) -> bool:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return is_number and 0 < seconds <= LONGEST_RUN_SECONDS
