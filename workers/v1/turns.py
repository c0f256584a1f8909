"""The Turn of an agent's entry on the older version's way: between ``turn.pre`` and ``turn.post``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from goondan_tasks.extension_api import TurnContext
from goondan_tasks.messages import ToolCall
from workers.cancellation import Cancellation
from workers.concurrency.beside_loop import RunOnThread, beside_loop, is_on_loop
from workers.turns.mutators import Mutator, mutate
from workers.turns.pipeline import Core
from workers.v1.pipeline_contexts import V1Contexts

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TurnWay:
    """How the functions around one Turn are gone through."""

    call: ToolCall
    #: makes what functions of the older version are given
    contexts: V1Contexts
    pre: Sequence[Mutator]
    post: Sequence[Mutator]

    def composed(
        self, turn: Core[TurnContext], cancellation: Cancellation, on_thread: RunOnThread
    ) -> Core[TurnContext]:
        """Stand the functions before and behind ``turn``; what ``turn.post`` leaves is the answer.

        One that fails ends the Turn with a MiddlewareError that names it.
        """
        return partial(self._go, turn, cancellation, on_thread)

    async def _go(
        self,
        turn: Core[TurnContext],
        cancellation: Cancellation,
        on_thread: RunOnThread,
        context: TurnContext,
    ) -> Any:
        through = partial(mutate, cancellation=cancellation, on_thread=on_thread)
        begin = partial(self.contexts.of_turn, self.call, context.event)
        v1 = await _unblocking(begin, on_thread)
        begun, v1.metadata = v1.turn, context.metadata
        v1 = await through(self.pre, v1)
        context.metadata = v1.metadata
        v1.result = await turn(context)
        if self.post:
            look = partial(self.contexts.ended_turn, self.call, context.event, begun)
            v1.turn, v1.metadata = await _unblocking(look, on_thread), context.metadata
        return (await through(self.post, v1)).result


async def _unblocking(function: Callable[[], T], on_thread: RunOnThread) -> T:
    """Return what a function returns that may block; it must not keep the event loop."""
    return await beside_loop(function, on_thread) if is_on_loop() else function()
