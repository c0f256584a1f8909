"""What the scripts that end runs take and answer."""

from collections.abc import Sequence

from goondan_tasks.contract.errors import ToolCancelledError
from goondan_tasks.contract.messages import ToolCallError
from goondan_tasks.ledger.record import Stored


def stored_of(answer: int | Sequence[int]) -> Stored:
    """Read the answer of ``finish.lua`` for one call, or of ``finish_event.lua``."""
    moment = answer if isinstance(answer, int) else answer[0]
    return Stored(min(moment, Stored.YES))


def kind_of(error: ToolCallError | None) -> str:
    """Return the kind of any result but a plain one, by its error (``finish_call`` in ``finishing.lua``)."""
    is_cancelled = error is not None and error.code == ToolCancelledError.code
    return "cancelled" if is_cancelled else ""
