"""A Step on the older version's way: ``step.pre``, ``config``, ``tools``, ``blocks`` and ``post`` (002 §9.3).

What the first four leave is the catalog, and the blocks, that today's step middlewares begin with; ``post``
stands behind these. For a producer's Step that is before the model is called (DESIGN §6).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from goondan_tasks.bundle.catalog import CatalogItem
from goondan_tasks.errors import MiddlewareError
from goondan_tasks.extension_api import StepContext, StepResult
from goondan_tasks.v1_api import StepPipelineContext, ToolCall, V1CatalogItem
from workers.concurrency.beside_loop import beside_loop, is_on_loop
from workers.concurrency.event_loop import move_to_loop
from workers.concurrency.threads import on_new_thread
from workers.turns.mutators import Mutator, mutate
from workers.turns.pipeline import Core
from workers.v1.items import todays_item, v1_item
from workers.v1.results import v1_result


@dataclass(frozen=True, slots=True)
class StepWay:
    """How the functions around one Step are gone through."""

    #: makes what functions of the older version are given, but for catalog and blocks; it may block
    make: Callable[[], StepPipelineContext]
    #: shows them an item of the catalog
    show: Callable[[CatalogItem], V1CatalogItem]
    before: Sequence[Mutator]
    after: Sequence[Mutator]

    def composed(self, chain: Core[StepContext]) -> Core[StepContext]:
        """Stand the functions before and behind ``chain``; without any it stays as it is.

        One that fails keeps the Step from opening, or ends it, with a MiddlewareError that names it.
        """
        return partial(self._go, chain) if self.before or self.after else chain

    async def _go(self, chain: Core[StepContext], context: StepContext) -> Any:
        if any(mutator.is_async for mutator in (*self.before, *self.after)):
            await move_to_loop()  # an open Step stays where it is
        v1 = await beside_loop(self.make, on_new_thread) if is_on_loop() else self.make()
        offered = [(self.show(item), item) for item in context.tool_catalog]
        v1.tool_catalog = [shown for shown, _ in offered]
        v1.blocks, v1.metadata = context.blocks, context.metadata
        known = {id(shown): item for shown, item in offered}
        v1 = await mutate(self.before, v1, accept=partial(_accept, known))
        context.tool_catalog = [known.get(id(shown)) or todays_item(shown) for shown in v1.tool_catalog]
        context.blocks, context.metadata = v1.blocks, v1.metadata
        result = await chain(context)
        if self.after:
            v1.tool_catalog = [self.show(item) for item in context.tool_catalog]
            v1.blocks, v1.metadata = context.blocks, context.metadata
            await mutate(self.after, _ended(v1, result))
        return result


def _accept(known: Collection[int], v1: StepPipelineContext, mutator: Mutator) -> None:
    """Let the next mutator find items of one form, whatever this one has put among them."""
    v1.tool_catalog = [item if id(item) in known else _shown(item, mutator) for item in v1.tool_catalog]
    v1.blocks = list(v1.blocks)


def _shown(given: Any, mutator: Mutator) -> V1CatalogItem:
    try:
        return v1_item(given, mutator.extension)
    except (TypeError, ValueError) as error:
        raise MiddlewareError(
            f"Middleware {mutator.name} left in the catalog what is no tool: {given!r:.200}: {error}."
        ) from error


def _ended(v1: StepPipelineContext, result: Any) -> StepPipelineContext:
    """Return what ``step.post`` sees: the calls that were made in the Step, and their results."""
    if not isinstance(result, StepResult):
        return v1
    calls = [ToolCall(call["id"], call["name"], call["args"]) for call in result.tool_calls]
    results = {one.tool_call_id: v1_result(one) for one in result.tool_results}
    return replace(v1, step=replace(v1.step, pending_tool_calls=calls), tool_results=results)
