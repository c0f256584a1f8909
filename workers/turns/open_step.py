"""One Step, from its middlewares' first lines to their last: its catalog and blocks are fixed in between."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pydantic import ValidationError

from broker_config import serializer
from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog
from goondan_tasks.errors import MiddlewareError
from goondan_tasks.extension_api import StepContext
from goondan_tasks.messages import JsonObject
from goondan_tasks.redaction import KNOWN_SECRETS
from goondan_tasks.steps import StepRecord, digest_of_catalog
from workers.tools.turn_tools import TurnTools
from workers.turns.held_onion import CoreOutcome, HeldOnion
from workers.turns.pipeline import Layer, compose
from workers.v1.steps import StepWay


class OpenStep:
    """A Step on its way: entered once, then left once; each as blocking code or as ``async`` code."""

    def __init__(
        self,
        context: StepContext,
        tools: TurnTools,
        *,
        layers: Sequence[Layer],
        onion: HeldOnion,
        v1_way: StepWay | None = None,
    ) -> None:
        #: what the middlewares begin with
        self._offered = tuple(tools.items())
        context.tool_catalog = list(self._offered)
        self.context = context
        self.tools = tools
        #: what the model may call
        self.catalog = ToolCatalog(())
        self.catalog_json = b""
        #: what the model is told besides, the highest priority first
        self.blocks: tuple[JsonObject, ...] = ()
        #: whether middlewares of it may still run
        self.is_open = True
        self._onion = onion
        chain = compose(layers, self._core)
        self._chain = v1_way.composed(chain) if v1_way else chain

    async def _core(self, context: StepContext) -> Any:
        if not isinstance(context.tool_catalog, Iterable):
            raise MiddlewareError(f"The catalog of the Step is a list, not {context.tool_catalog!r:.200}.")
        known = {id(item) for item in self._offered}
        items = (item if id(item) in known else _item(item) for item in context.tool_catalog)
        self.catalog = ToolCatalog(tuple(items))
        self.blocks = _blocks(context.blocks)
        return await self._onion.pause()

    def enter(self) -> None:
        """Run the middlewares up to the core; this blocks.

        Raises:
            MiddlewareError: one failed, took too long, did not call ``next()``, or left no proper catalog.
            GoondanError: one raised it.
        """
        with self._closed_by_error():
            self._onion.enter(self._run())

    def leave(self, outcome: CoreOutcome) -> Any:
        """Run the rest of the middlewares, and return what they make of ``outcome``; this blocks.

        Raises as :meth:`enter`; an error that no middleware catches comes out again.
        """
        try:
            return self._onion.leave(outcome)
        finally:
            self.is_open = False

    async def enter_async(self) -> None:
        """See :meth:`enter`."""
        with self._closed_by_error():
            await self._onion.enter_async(self._run())

    async def leave_async(self, outcome: CoreOutcome) -> Any:
        """See :meth:`leave`."""
        try:
            return await self._onion.leave_async(outcome)
        finally:
            self.is_open = False

    def break_off(self) -> None:
        """End it without an outcome."""
        self.is_open = False
        self._onion.break_off()

    @contextmanager
    def _closed_by_error(self) -> Iterator[None]:
        with ExitStack() as undo:
            undo.callback(setattr, self, "is_open", False)
            yield
            undo.pop_all()

    async def _run(self) -> Any:
        return await self._chain(self.context)

    def record(self, bundle_ref: str | None = None) -> StepRecord:
        """Return what is fixed, in a Step of that revision of the bundle."""
        context = self.context
        self.catalog_json = serializer.encode(self.catalog.to_wire())
        return StepRecord(
            id=context.step_id,
            agent_name=context.agent_name,
            instance_key=context.instance_key,
            turn_id=context.turn_id,
            trace_id=context.trace_id,
            index=context.step_index,
            catalog=digest_of_catalog(self.catalog_json),
            blocks=self.blocks,
            origins=self.tools.origins(),
            bundle_ref=bundle_ref,
        )


def _item(item: Any) -> CatalogItem:
    """Return what a middleware has added to the catalog, fit for a model: without secrets."""
    try:
        wire = item.to_wire() if isinstance(item, CatalogItem) else item
        return CatalogItem.model_validate(KNOWN_SECRETS.hidden_in_answer(wire))
    except ValidationError as error:
        raise MiddlewareError(f"The catalog of the Step holds what is no tool: {item!r:.200}.") from error


def _blocks(blocks: Any) -> tuple[JsonObject, ...]:
    if not isinstance(blocks, list | tuple):
        raise MiddlewareError(f"The blocks of the Step are a list, not {blocks!r:.200}.")
    try:
        serializer.encode(blocks)
    except serializer.NotJsonError as error:
        raise MiddlewareError(f"The blocks of the Step are not valid JSON: {error}.") from error
    wrong = [block for block in blocks if not isinstance(block, Mapping)]
    if wrong:
        raise MiddlewareError(f"A block of the Step is an object, not {wrong[0]!r:.200}.")
    return tuple(sorted(KNOWN_SECRETS.hidden_in_answer(blocks), key=_priority, reverse=True))


def _priority(block: Mapping[str, Any]) -> float:
    priority = block.get("priority")
    return priority if isinstance(priority, int | float) else 0
