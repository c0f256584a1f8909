"""What the scripts that end runs answer, and what follows from permits that they have released."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from goondan_tasks.errors import ToolCancelledError
from goondan_tasks.ledger.record import Stored
from goondan_tasks.messages import ToolCallResult


@dataclass(frozen=True, slots=True)
class FollowUp:
    """What a script leaves to its caller for calls that wait for limits (``close`` in ``permits.lua``)."""

    #: ms until the wait queues must be checked again; ``None`` if no call waits
    look_in: int | None = None
    #: ids and JSON of the admitted calls whose messages the caller must send
    unsent: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Sequence[Any] | None) -> Self:
        """Read the part of a script's answer; without one, nothing follows."""
        if answer is None:
            return cls()
        look_in, unsent = answer
        calls = {call_id.decode(): call for call_id, call in zip(unsent[::2], unsent[1::2], strict=True)}
        return cls(None if look_in < 0 else look_in, calls)


def nothing_follows(follow_up: FollowUp) -> None:
    """Do nothing: the periodic looks of the workers are enough."""


def stored_many(
    answer: Sequence[Any], *, count: int, follow: Callable[[FollowUp], object] = nothing_follows
) -> list[int]:
    """Read the answer of ``finish.lua`` for ``count`` calls; what follows is given to ``follow``."""
    if len(answer) > count:
        follow(FollowUp.of(answer[count]))
    return list(answer[:count])


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer of ``finish.lua`` for one call, or of ``finish_event.lua``."""

    stored: Stored
    #: ids and JSON of the next event, or of admitted calls, if the caller must send their messages
    unsent: Mapping[str, bytes] = field(default_factory=dict)
    #: ms until the wait queues of limits must be checked again; ``None`` if no call waits
    look_in: int | None = None

    @classmethod
    def of(cls, answer: int | Sequence[Any]) -> Self:
        """Read a script's answer."""
        if isinstance(answer, int):
            return cls(Stored(min(answer, Stored.YES)))
        stored = Stored(min(answer[0], Stored.YES))
        if len(answer) == 3:
            _, call_id, call = answer
            return cls(stored, {call_id.decode(): call})
        follow_up = FollowUp.of(answer[1] if len(answer) == 2 else None)
        return cls(stored, follow_up.unsent, follow_up.look_in)


def kind_of(result: ToolCallResult) -> str:
    """Return the kind of any result but a plain one (``finish_call`` in ``finishing.lua``)."""
    is_cancelled = result.error is not None and result.error.code == ToolCancelledError.code
    return "cancelled" if is_cancelled else ""
