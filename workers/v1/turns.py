"""The Turn of an agent's entry on the older version's way: between ``turn.pre`` and ``turn.post``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from goondan_tasks.extension_api import TurnContext
from goondan_tasks.v1_api import TurnPipelineContext
from workers.beside_loop import RunOnThread, beside_loop, is_on_loop
from workers.cancellation import Cancellation
from workers.mutators import Mutator, mutate
from workers.pipeline import Core


@dataclass(frozen=True, slots=True)
class TurnWay:
    """How the functions around one Turn are gone through."""

    #: makes what functions of the older version are given; it may block
    make: Callable[[], TurnPipelineContext]
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
        v1 = await beside_loop(self.make, on_thread) if is_on_loop() else self.make()
        v1.metadata = context.metadata
        v1 = await through(self.pre, v1)
        context.metadata = v1.metadata
        v1.result = await turn(context)
        return (await through(self.post, v1)).result
