"""What makes the contexts that functions of the older version's extensions are called with."""

from collections.abc import Sequence
from typing import Protocol

from goondan_tasks.bundle.catalog import CatalogItem
from goondan_tasks.messages import AgentEvent, ToolCall
from goondan_tasks.v1_api import (
    StepPipelineContext,
    ToolCallExecContext,
    Turn,
    TurnPipelineContext,
    V1CatalogItem,
)
from workers.tools.dynamic_tools import TurnKey
from workers.v1.shown import Shown


class V1Contexts(Protocol):
    """Makes contexts; its methods may block, for Redis is asked what has come of the Turn so far."""

    def shown(self, call: ToolCall) -> Shown:
        """Return what a tool call's run is shown."""

    def of_call(self, call: ToolCall, shown: Shown) -> ToolCallExecContext:
        """Return the context of a tool call; asks nobody."""

    def of_step(self, call: ToolCall, *, step_id: str, index: int) -> StepPipelineContext:
        """Return the context of a Step that ``call`` is about to open; its catalog and blocks are empty."""

    def of_turn(self, call: ToolCall, event: AgentEvent) -> TurnPipelineContext:
        """Return the context of the Turn in which an agent is to handle ``event``, which came as ``call``."""

    def ended_turn(self, call: ToolCall, event: AgentEvent, begun: Turn) -> Turn:
        """Return a Turn with what has come of it since it was ``begun``."""

    def item(self, agent: str, item: CatalogItem) -> V1CatalogItem:
        """Return an item of an agent's catalog with the resource that declares it."""

    def items(self, agent: str, turn: TurnKey | None) -> Sequence[V1CatalogItem]:
        """Return all tools that an agent has in this worker, and in a Turn."""
