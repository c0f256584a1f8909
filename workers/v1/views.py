"""The contexts of the older version: call, Step, Turn and configuration (002 §4.3, §5.3)."""

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

from broker_config import serializer
from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.authoring.v1_api import (
    EffectiveConfig,
    LlmResult,
    Step,
    StepPipelineContext,
    SwarmInstance,
    ToolCallExecContext,
    ToolResult,
    Turn,
    TurnPipelineContext,
    V1CatalogItem,
    V1ToolContext,
)
from goondan_tasks.authoring.v1_api import ToolCall as V1Call
from goondan_tasks.bundle import BoundExtension, BoundTool, Bundle
from goondan_tasks.bundle.resource import Metadata
from goondan_tasks.bundle.resources import AgentResource, ExtensionResource, ExtensionSpec, SwarmResource
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.catalog import CatalogItem
from goondan_tasks.contract.messages import AgentEvent, JsonObject, ToolCall, assistant_message
from goondan_tasks.contract.model_messages import asking_message, llm_messages, tool_message
from goondan_tasks.history import PastCall, TurnHistory
from workers.extensions.api import ExtensionServices
from workers.extensions.services import SwarmBundleService
from workers.tools.dynamic_tools import TurnKey, turn_of
from workers.tools.registry import Registry
from workers.turns.steps import Steps
from workers.v1.chains import V1CallContext
from workers.v1.conversions import Shown, v1_call, v1_result
from workers.v1.event_bus import RunEventBus
from workers.v1.services import ConsoleLogger, ToolAuth, V1OAuth, V1SwarmBundle

_NO_HISTORY = TurnHistory()


class Views:
    """Makes the contexts of older tools and extensions in one revision of the bundle."""

    def __init__(
        self, registry: Registry, swarm: SwarmResource, services: ExtensionServices, steps: Steps | None
    ) -> None:
        self._registry = registry
        self._swarm = swarm
        self._services = services
        #: ``None`` if no call belongs to a Step
        self._steps = steps
        bundle = registry.bundle
        self._config = functools.cache(lambda agent: effective_config(bundle, swarm, bundle.agents[agent]))

    def tool_context(
        self, bound: BoundTool, call: ToolCall, run: ToolContext, around: ToolCallContext | None = None
    ) -> V1ToolContext:
        """Return the context of a tool's handler, made from the one of a current tool, ``run``.

        ``around`` is the context of the functions around the handler. Without older ones among them, Redis is
        read for a call that belongs to a Step, which blocks.

        Raises:
            ToolNotInCatalogError: the call's Step has expired.
            ToolTimeoutError: Redis was away for too long.
        """
        shown = around.shown if isinstance(around, V1CallContext) else self.shown(call)
        services = self._services
        current = {one.name: getattr(run, one.name) for one in fields(run)}
        return V1ToolContext(
            **{**current, "logger": ConsoleLogger(run.logger)},
            instance=self._instance(call),
            swarm=self._swarm,
            agent=self._registry.bundle.agents[call.agent_name],
            turn=shown.turn,
            step=shown.step,
            tool_catalog=shown.tool_catalog,
            swarm_bundle=V1SwarmBundle(SwarmBundleService(services.swarm_bundle_for, lambda: call)),
            oauth=V1OAuth(services.oauth, lambda: call, ToolAuth.of(bound)),
            events=RunEventBus(call.agent_name, bound.name, services.events),
        )

    def of_call(self, call: ToolCall, shown: Shown) -> ToolCallExecContext:
        config = self._config_of(call)
        return ToolCallExecContext(v1_call(call), shown.turn, shown.step, config, shown.tool_catalog)

    def of_step(self, call: ToolCall, *, step_id: str, index: int) -> StepPipelineContext:
        """Return the context of a Step that ``call`` is about to open, without catalog and blocks.

        The history of the Turn is read from Redis, which blocks.

        Raises:
            ToolTimeoutError: Redis was away for too long.
        """
        turn = self._past_turn(call)
        step = Step(id=step_id, index=index, turn_id=call.turn_id)
        return StepPipelineContext(**self._shared(call), turn=turn, step=step, tool_catalog=[])

    def of_turn(self, call: ToolCall, event: AgentEvent) -> TurnPipelineContext:
        """Return the context of the Turn in which an agent handles ``event``, which came as ``call``.

        Blocks and raises as :meth:`of_step`: an answer to a request continues the asking Turn.
        """
        turn = self._past_turn(call)
        turn = replace(turn, messages=[*turn.messages, event_message(event)])
        return TurnPipelineContext(**self._shared(call), turn=turn, event=event)

    def ended_turn(self, call: ToolCall, event: AgentEvent, begun: Turn) -> Turn:
        """Return a Turn with everything since it was ``begun``; blocks and raises as :meth:`of_step`."""
        turn = self._past_turn(call)
        at, question = len(begun.messages) - 1, event_message(event)
        earlier, since = turn.messages[:at], turn.messages[at:]
        return turn if question in since else replace(turn, messages=[*earlier, question, *since])

    def item(self, agent: str, item: CatalogItem) -> V1CatalogItem:
        """Return a tool in the older form, with resource and export unless it is dynamic (002 §10.1)."""
        converted = V1CatalogItem(item.name, item.description, item.parameters, source=item.source)
        bound = self._registry.of_bundle(agent, item.name) if item.source.type == "config" else None
        return converted if bound is None else replace(converted, tool=bound.tool, export=bound.export)

    def items(self, agent: str, turn: TurnKey | None) -> tuple[V1CatalogItem, ...]:
        """Return all tools of an agent in this worker, and those of a Turn."""
        return self._items(agent, self._registry.items(agent, turn))

    def _items(self, agent: str, items: Iterable[CatalogItem]) -> tuple[V1CatalogItem, ...]:
        return tuple(self.item(agent, item) for item in items)

    def shown(self, call: ToolCall) -> Shown:
        """Return what a call's run sees; blocks and raises as :meth:`tool_context`."""
        history, index, items = _NO_HISTORY, 0, self._registry.items(call.agent_name)
        if call.step_id is not None and self._steps is not None:
            kept = self._steps.require(call)
            history, index, items = self._steps.history(call), kept.record.index, kept.catalog.items
        conversation = V1Conversation(history, call)
        step = Step(
            id=call.step_id or call.turn_id,
            index=index,
            turn_id=call.turn_id,
            llm_result=conversation.llm_result(),
            pending_tool_calls=conversation.pending_calls(),
        )
        return Shown(self._turn(call, conversation), step, self._items(call.agent_name, items))

    def _past_turn(self, call: ToolCall) -> Turn:
        history = _NO_HISTORY if self._steps is None else self._steps.history(call)
        return self._turn(call, V1Conversation(history))

    def _turn(self, call: ToolCall, conversation: "V1Conversation") -> Turn:
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

    def _shared(self, call: ToolCall) -> dict[str, Any]:
        return {
            "instance": self._instance(call),
            "swarm": self._swarm,
            "agent": self._registry.bundle.agents[call.agent_name],
            "effective_config": self._config_of(call),
        }

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


def effective_config(bundle: Bundle, swarm: SwarmResource, agent: AgentResource) -> EffectiveConfig:
    """Return the resources of an agent with its overrides applied, without a revision (002 §5.3)."""
    tools = {bound.tool.name: bound.tool for bound in bundle.bound_tools(agent.name).values()}
    extensions = (extension_resource(bundle, bound) for bound in bundle.bound_extensions(agent.name))
    return EffectiveConfig(swarm, agent, tuple(tools.values()), tuple(extensions))


def extension_resource(bundle: Bundle, bound: BoundExtension) -> ExtensionResource:
    """Return an agent's Extension with the agent's config; a built-in one has no labels."""
    declared = bundle.extensions.get(bound.name)
    if declared is None:
        return ExtensionResource.model_construct(
            api_version="agents.example.io/v1alpha1" if bound.is_v1 else "goondan.ai/v1",
            kind="Extension",
            metadata=Metadata(name=bound.name),
            spec=ExtensionSpec.model_construct(entry=str(bound.entry_path), config=bound.config),
        )
    return declared.model_copy(update={"spec": declared.spec.model_copy(update={"config": bound.config})})


@dataclass(frozen=True, slots=True)
class V1Conversation:
    """The history of a Turn as messages (002 §4.4, §6.2, appendix A), and the current call, if any."""

    history: TurnHistory
    current: ToolCall | None = None

    def messages(self) -> list[JsonObject]:
        """Return all messages in order, each call and each answer once.

        A Step may begin with the messages with which the previous Step ended. Models reuse ids, so an id
        identifies a call only within one Step.
        """
        seen: set[str] = set()
        messages: list[JsonObject] = []
        for entry in self.history.entries:
            if entry.message is not None:
                messages += _unseen(llm_messages(entry.message), seen)
                seen = set()
            exchange = list(_exchange([*self._past_calls(entry.call_ids)]))
            messages += exchange
            seen |= {one for message in exchange for one in _ids_of(message)}
        if self.current is not None and not self._has_request(self.current):
            messages += _request_of(self.current)
        return messages

    def _past_calls(self, ids: Iterable[str]) -> Iterator[PastCall]:
        return (self.history.calls[one] for one in ids if one in self.history.calls)

    def _has_request(self, call: ToolCall) -> bool:
        """Return whether the model's request for a call is in the history already."""
        entries = self.history.entries
        return any(
            _is_same_request(past.call, call)
            for entry in entries
            for past in self._past_calls(entry.call_ids)
        )

    def results(self) -> dict[str, ToolResult]:
        """Return the results so far, by call id."""
        past = self.history.calls.values()
        return {one.call.shown_id: v1_result(one.result) for one in past if one.result is not None}

    def llm_result(self) -> LlmResult | None:
        """Return the model's message that requests the current call."""
        messages = [] if self.current is None else [*_request_of(self.current)]
        return LlmResult(messages[-1]) if messages else None

    def pending_calls(self) -> list[V1Call]:
        """Return the calls of the model's message that requests the current call, in call order.

        Calls of other messages in its Step that have no result yet come before them.
        """
        current = self.current
        if current is None:
            return []
        requested = [call for message in _request_of(current) for call in message.get("toolCalls", ())]
        others = [
            v1_call(past.call)
            for past in self.history.calls.values()
            if past.result is None
            and current.step_id is not None
            and past.call.step_id == current.step_id
            and not _is_same_request(past.call, current)
        ]
        return others + [V1Call(**deepcopy(call)) for call in requested]


def event_message(event: AgentEvent) -> JsonObject:
    """Return an event's input as a message to its agent: text, or JSON."""
    content = event.input if isinstance(event.input, str) else serializer.encode(event.input).decode()
    return {"role": "user", "content": content}


def _is_same_request(one: ToolCall, other: ToolCall) -> bool:
    """Return whether two calls are the same, or came in one message of the model."""
    is_same_message = one.message is not None and one.message == other.message
    return identity_of(one) == identity_of(other) or (one.step_id == other.step_id and is_same_message)


def _exchange(calls: Sequence[PastCall]) -> Iterator[JsonObject]:
    """Yield the model's request for calls that came together, and their answers so far."""
    message = next((one.call.message for one in calls if one.call.message is not None), None)
    if message is not None:
        yield from llm_messages(message.data)
    elif calls:
        yield asking_message(
            [
                {"id": one.call.shown_id, "name": one.call.tool_name, "arguments": one.call.args}
                for one in calls
            ]
        )
    for one in calls:
        if one.result is not None:
            yield tool_message(one.call.shown_id, one.call.tool_name, one.result)


def _request_of(call: ToolCall) -> Iterator[JsonObject]:
    """Yield the message that holds a call."""
    message = call.message or assistant_message(
        call.shown_id, call.tool_name, call.args, step_id=call.step_id or call.turn_id, now=""
    )
    yield from llm_messages(message.data)


def _unseen(messages: Sequence[JsonObject], seen: Collection[str]) -> Iterator[JsonObject]:
    """Yield the messages with which the previous Step did not end."""
    for message in messages:
        ids = _ids_of(message)
        if not ids or not ids.issubset(seen):
            yield message


def _ids_of(message: JsonObject) -> set[str]:
    """Return the ids of the calls that a message requests or answers."""
    ids = {f"call {call['id']}" for call in message.get("toolCalls", ())}
    return ids | {f"answer {message['toolCallId']}"} if message["role"] == "tool" else ids
