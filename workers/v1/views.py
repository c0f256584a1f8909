"""A call, its Step, its Turn and what they are run with, as the older version shows them (002 §4.3, §5.3)."""

import functools
from collections.abc import Iterable
from dataclasses import replace

from goondan_tasks.bundle import BoundTool, CatalogItem
from goondan_tasks.bundle.resources import SwarmResource
from goondan_tasks.messages import AgentEvent, ToolCall
from goondan_tasks.steps import TurnHistory
from goondan_tasks.tool_api import ToolContext
from goondan_tasks.v1_api import (
    EffectiveConfig,
    Step,
    StepPipelineContext,
    SwarmInstance,
    ToolCallExecContext,
    Turn,
    TurnPipelineContext,
    V1CatalogItem,
    V1ToolContext,
)
from workers.tools.dynamic_tools import TurnKey, turn_of
from workers.tools.registry import Registry
from workers.turns.steps import Steps
from workers.v1.console import ConsoleLogger
from workers.v1.conversation import Conversation, event_message, v1_call
from workers.v1.effective_config import effective_config
from workers.v1.means import V1Means
from workers.v1.shown import Shown

_NO_HISTORY = TurnHistory()


class Views:
    """Makes what tools and extensions of the older version are called with, in one revision of the bundle."""

    def __init__(self, registry: Registry, swarm: SwarmResource, means: V1Means, steps: Steps | None) -> None:
        self._registry = registry
        self._swarm = swarm
        self._means = means
        #: without them no call belongs to a Step
        self._steps = steps
        bundle = registry.bundle
        self._config = functools.cache(lambda agent: effective_config(bundle, swarm, bundle.agents[agent]))

    def tool_context(
        self, bound: BoundTool, call: ToolCall, run: ToolContext, shown: Shown | None = None
    ) -> V1ToolContext:
        """Return what the handler of a tool is called with, given what one of today would be.

        ``shown`` is what the functions around it have seen. If there were none, Redis is asked for a call
        that belongs to a Step, in a few trips; this blocks.

        Raises:
            ToolNotInCatalogError: its Step has expired.
            ToolTimeoutError: Redis was away for too long.
        """
        shown = shown or self.shown(call)
        return V1ToolContext(
            instance=self._instance(call),
            swarm=self._swarm,
            agent=self._registry.bundle.agents[call.agent_name],
            turn=shown.turn,
            step=shown.step,
            tool_catalog=shown.tool_catalog,
            swarm_bundle=self._means.swarm_bundle(call),
            oauth=self._means.oauth(call, bound),
            events=self._means.events(call, bound),
            logger=ConsoleLogger(run.logger),
            _run=run,
        )

    def of_call(self, call: ToolCall, shown: Shown) -> ToolCallExecContext:
        """Return the context of a tool call."""
        config = self._config_of(call)
        return ToolCallExecContext(v1_call(call), shown.turn, shown.step, config, shown.tool_catalog)

    def of_step(self, call: ToolCall, *, step_id: str, index: int) -> StepPipelineContext:
        """Return the context of a Step that ``call`` is about to open; its catalog and blocks are empty.

        Redis is asked what has come of the Turn so far; this blocks.

        Raises:
            ToolTimeoutError: Redis was away for too long.
        """
        return StepPipelineContext(
            instance=self._instance(call),
            swarm=self._swarm,
            agent=self._registry.bundle.agents[call.agent_name],
            turn=self._turn(call, Conversation(self._history(call))),
            step=Step(id=step_id, index=index, turn_id=call.turn_id),
            effective_config=self._config_of(call),
            tool_catalog=[],
        )

    def of_turn(self, call: ToolCall, event: AgentEvent) -> TurnPipelineContext:
        """Return the context of the Turn in which an agent is to handle ``event``, which came as ``call``.

        Redis is asked as for a Step: an answer goes on in the Turn that has asked.
        """
        before = Conversation(self._history(call))
        turn = self._turn(call, before)
        return TurnPipelineContext(
            instance=self._instance(call),
            swarm=self._swarm,
            agent=self._registry.bundle.agents[call.agent_name],
            turn=replace(turn, messages=[*turn.messages, event_message(event)]),
            effective_config=self._config_of(call),
            event=event,
        )

    def ended_turn(self, call: ToolCall, event: AgentEvent, begun: Turn) -> Turn:
        """Return a Turn with what has come of it since it was ``begun``; asks Redis as for a Step."""
        turn = self._turn(call, Conversation(self._history(call)))
        at, said = len(begun.messages) - 1, event_message(event)
        earlier, since = turn.messages[:at], turn.messages[at:]
        return turn if said in since else replace(turn, messages=[*earlier, said, *since])

    def item(self, agent: str, item: CatalogItem) -> V1CatalogItem:
        """Show a tool with its resource and export, or neither if it is dynamic (002 §10.1)."""
        shown = V1CatalogItem(item.name, item.description, item.parameters, source=item.source)
        bound = self._registry.of_bundle(agent, item.name) if item.source.type == "config" else None
        return shown if bound is None else replace(shown, tool=bound.tool, export=bound.export)

    def items(self, agent: str, turn: TurnKey | None) -> tuple[V1CatalogItem, ...]:
        """Show all tools that an agent has in this worker, and in a Turn."""
        return self._items(agent, self._registry.items(agent, turn))

    def _items(self, agent: str, items: Iterable[CatalogItem]) -> tuple[V1CatalogItem, ...]:
        return tuple(self.item(agent, item) for item in items)

    def shown(self, call: ToolCall) -> Shown:
        """Return what a call's run is shown; asks Redis and raises as :meth:`tool_context`."""
        history, index, items = _NO_HISTORY, 0, self._registry.items(call.agent_name)
        if call.step_id is not None and self._steps is not None:
            kept = self._steps.require(call)
            history, index, items = self._steps.history(call), kept.record.index, kept.catalog.items
        conversation = Conversation(history, call)
        step = Step(
            id=call.step_id or call.turn_id,
            index=index,
            turn_id=call.turn_id,
            llm_result=conversation.llm_result(),
            pending_tool_calls=conversation.pending_calls(),
        )
        return Shown(self._turn(call, conversation), step, self._items(call.agent_name, items))

    def _history(self, call: ToolCall) -> TurnHistory:
        return _NO_HISTORY if self._steps is None else self._steps.history(call)

    def _turn(self, call: ToolCall, conversation: Conversation) -> Turn:
        return Turn(
            id=call.turn_id,
            instance_id=self._instance_id(call),
            agent_name=call.agent_name,
            messages=conversation.messages(),
            tool_results=conversation.results(),
            origin=call.origin,
            auth=call.auth,
            metadata={"traceId": call.trace_id, "correlationId": call.correlation_id},
        )

    def _instance(self, call: ToolCall) -> SwarmInstance:
        dynamic = self._registry.dynamic.shown(call.agent_name, turn_of(call))
        return SwarmInstance(
            id=self._instance_id(call),
            key=call.instance_key,
            swarm_name=self._swarm.name,
            dynamic_tools=self._items(call.agent_name, (tool.item for tool in dynamic.values())),
        )

    def _instance_id(self, call: ToolCall) -> str:
        return f"{self._swarm.name}-{call.instance_key}"

    def _config_of(self, call: ToolCall) -> EffectiveConfig:
        config = self._config(call.agent_name)
        return config if call.bundle_ref is None else replace(config, revision=call.bundle_ref)
