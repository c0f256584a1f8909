"""What the functions in the pipelines of the older version are called with (002 §5.3, §9.3)."""

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.bundle.resources import AgentResource, SwarmResource
from goondan_tasks.messages import AgentEvent, JsonObject
from goondan_tasks.v1_api.records import (
    EffectiveConfig,
    Step,
    SwarmInstance,
    ToolCall,
    ToolResult,
    Turn,
    V1CatalogItem,
)


@dataclass(slots=True)
class ToolCallExecContext:
    """One tool call on its way: the same object for ``toolCall.pre``, ``exec`` and ``post`` (002 §5.3)."""

    #: change its ``arguments``, or replace it: the handler gets what is left, once that was checked
    tool_call: ToolCall
    turn: Turn
    step: Step
    effective_config: EffectiveConfig
    #: the catalog of the Step
    tool_catalog: Sequence[V1CatalogItem]
    #: there after the handler; what ``toolCall.post`` leaves here is the result
    tool_result: ToolResult | None = None
    #: for the functions among themselves
    metadata: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class StepPipelineContext:
    """One Step, for ``step.pre``, ``step.config``, ``step.tools``, ``step.blocks`` and ``step.post``."""

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    turn: Turn
    step: Step
    effective_config: EffectiveConfig
    #: what the model is shown and may call; change it or replace it; items may be dicts of their fields
    tool_catalog: MutableSequence[Any]
    #: what the model is told besides its messages: ``{type, data?, items?, priority?}``
    blocks: list[JsonObject] = field(default_factory=list)
    #: what came of the Step's tool calls, by their ids, for ``step.post``
    tool_results: Mapping[str, ToolResult] = field(default_factory=dict)
    metadata: JsonObject = field(default_factory=dict)


@dataclass(slots=True)
class TurnPipelineContext:
    """One Turn, for ``turn.pre`` and ``turn.post``."""

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    #: its last message says what the event does; for ``turn.post``, with all that has come of it
    turn: Turn
    effective_config: EffectiveConfig
    #: what the agent is to deal with
    event: AgentEvent
    #: what the agent has answered, for ``turn.post``
    result: Any = None
    metadata: JsonObject = field(default_factory=dict)
