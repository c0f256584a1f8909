"""Calls, results, Turns, Steps and catalogs in the words of the older version (002 §4.4, §5.2, §6.1, §10)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from goondan_tasks.bundle.catalog import ToolSource
from goondan_tasks.bundle.resources import (
    AgentResource,
    ExtensionResource,
    SwarmResource,
    ToolExport,
    ToolResource,
)
from goondan_tasks.messages import JsonObject


@dataclass(slots=True)
class ToolCall:
    """One call that the model asks for (002 §5.2)."""

    id: str
    name: str
    arguments: JsonObject


@dataclass(slots=True)
class ToolError:
    """Why a call failed (002 §6.1); ``message`` is as long as ``errorMessageLimit`` allows."""

    message: str
    name: str | None = None
    code: str | None = None


@dataclass(slots=True)
class ToolResult:
    """What came of a call (002 §6.1)."""

    status: Literal["ok", "error", "pending"]
    output: Any = None
    #: of a call that is pending
    handle: str | None = None
    error: ToolError | None = None


@dataclass(frozen=True, slots=True)
class LlmResult:
    """What the model said: its message, in the form of :attr:`Turn.messages`."""

    message: JsonObject


@dataclass(frozen=True, slots=True)
class Turn:
    """One event and what has come of it so far (002 §4.4).

    It is as it was when its reader began: the messages and results that are kept of the Turn, and of a long
    one the latest of them. A call that belongs to no Step has the messages of the call itself.
    """

    id: str
    instance_id: str
    agent_name: str
    #: ``{role: system|user, content}``, ``{role: assistant, content?, toolCalls?: [{id, name, arguments}]}``
    #: and ``{role: tool, toolCallId, toolName, output}`` (002, appendix A)
    messages: Sequence[JsonObject] = ()
    #: by the calls' ids
    tool_results: Mapping[str, ToolResult] = field(default_factory=dict)
    #: where the event came from: ``{connector?, channel?, threadTs?, …}``
    origin: JsonObject | None = None
    #: whom it acts for: ``{actor, subjects: {global?, user?}}``
    auth: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the model and its tool calls (002 §4.4).

    A call that belongs to no Step has one of its own, whose id is the Turn's.
    """

    id: str
    #: counted from 0
    index: int
    turn_id: str
    #: ``None`` before the model was called
    llm_result: LlmResult | None = None
    #: the calls of that message
    pending_tool_calls: Sequence[ToolCall] = ()


@dataclass(frozen=True, slots=True)
class V1CatalogItem:
    """One tool as the model sees it, and where it comes from (002 §10.1)."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    #: the resource and the export that declare it; ``None`` for a dynamic tool
    tool: ToolResource | None = None
    export: ToolExport | None = None
    source: ToolSource | None = None


@dataclass(frozen=True, slots=True)
class SwarmInstance:
    """The conversation or job that the agents of a Swarm share."""

    id: str
    #: the ``instanceKey``
    key: str
    swarm_name: str
    #: those that extensions have registered for this agent
    dynamic_tools: Sequence[V1CatalogItem] = ()


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """The resources that a Step is run with (002 §5.3)."""

    swarm: SwarmResource
    agent: AgentResource
    #: those of the agent, its overrides applied, in declared order
    tools: Sequence[ToolResource] = ()
    extensions: Sequence[ExtensionResource] = ()
    #: the bundle's ref, such as ``git:<sha>``, if the call names one
    revision: str | None = None
