"""What the scripts that end runs take and answer."""

from collections.abc import Sequence
from typing import Any

from broker_config.scripts import Script, ScriptCall
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


def finish_step(
    script: Script, finish: ScriptCall[list[int]], keeping: ScriptCall[Any]
) -> ScriptCall[list[int]]:
    """Store the result of a call that has opened a Step, and the Step, both or neither (``finish_step.lua``).

    ``finish`` would store only the result, ``keeping`` keep only the Step.
    """

    def stored(answer: Any) -> list[int]:
        [word, fault] = answer
        keeping.parse([None, fault])
        return [word]

    keys, arguments = [*finish.keys, *keeping.keys], [*finish.arguments, *keeping.arguments]
    return ScriptCall(script, keys, arguments, stored)
