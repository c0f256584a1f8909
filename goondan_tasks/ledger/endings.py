"""What the scripts that end runs answer, and what follows from permits that they have released."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.messages import ToolCallError
from goondan_tasks.ledger.record import Stored

#: takes ms until the wait queues of limits must be checked again; ``None`` if no call waits
Follow = Callable[[int | None], object]


def next_look(answer: int | None) -> int | None:
    """Read what ``close`` in ``permits.lua`` has answered; without an answer, nothing follows."""
    return None if answer is None or answer < 0 else answer


def nothing_follows(look_in: int | None) -> None:
    """Do nothing: the periodic looks of the workers are enough."""


def stored_many(answer: Sequence[Any], *, count: int, follow: Follow = nothing_follows) -> list[int]:
    """Read the answer of ``finish.lua`` for ``count`` calls; what follows is given to ``follow``."""
    if len(answer) > count:
        follow(next_look(answer[count]))
    return list(answer[:count])


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer of ``finish.lua`` for one call, or of ``finish_event.lua``."""

    stored: Stored
    #: ms until the wait queues of limits must be checked again; ``None`` if no call waits
    look_in: int | None = None

    @classmethod
    def of(cls, answer: int | Sequence[int]) -> Self:
        """Read a script's answer."""
        moment, *after = [answer] if isinstance(answer, int) else answer
        return cls(Stored(min(moment, Stored.YES)), next_look(after[0] if after else None))


def kind_of(error: ToolCallError | None) -> str:
    """Return the kind of any result but a plain one, by its error (``finish_call`` in ``finishing.lua``)."""
    is_cancelled = error is not None and error.code == ToolCancelledError.code
    return "cancelled" if is_cancelled else ""
