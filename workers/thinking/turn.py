"""The Turn of an agent that thinks: history and input, then Steps until the model stops.

A Step asks the model and runs the tool calls of its answer through the agent's queue. The ledger keeps the
answers of models and tools. If the worker dies, the run that replaces its run gets the same answers in the
same order, and continues where the first one stopped. Sources: 001 §12.1, 003 §1.2; DESIGN §6.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.scripts import Script
from goondan_tasks.authoring.agent_api import AgentContext
from goondan_tasks.authoring.extension_api import AgentStep
from goondan_tasks.authoring.handoff import compile_output_schema
from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.resources import AgentResource, BudgetPolicy, ModelConfiguration
from goondan_tasks.client.turn_events import TokensUsed
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import (
    HandoffError,
    ModelAnswerError,
    ModelContextLengthError,
    ModelError,
    ModelRefusedError,
    StepLimitError,
)
from goondan_tasks.contract.messages import (
    AgentEvent,
    JsonObject,
    Message,
    ToolCallResult,
    iso_time,
    wall_clock,
)
from goondan_tasks.contract.model_messages import StepCallResult
from goondan_tasks.contract.on_error import OnError
from goondan_tasks.contract.schema import ArgumentSchema
from goondan_tasks.history import StepCall
from workers.agents.call_services import AgentTools
from workers.agents.entry_steps import AsyncEntryStep
from workers.thinking.images import needs_files, seen_message, with_newest_images
from workers.thinking.model_calls import AskedRequests, Models, OpenRequests
from workers.thinking.model_providers import ModelProviders
from workers.thinking.model_request import ModelAnswer, ModelRequest
from workers.thinking.providers import ModelProvider
from workers.thinking.shortening import exchange, shorten, withdraw
from workers.thinking.turn_stream import StepStream, TurnStream
from workers.turns.turn_state import TurnState

logger = structlog.get_logger(__name__)

#: how often a model is asked again after an answer that cannot be used
MOST_CORRECTIONS = 2

#: how many tool calls an answer may have
MOST_CALLS = 256

#: errors that say that the model does not take the request, and will not take it later
REFUSALS = ("E_MODEL", "E_MODEL_CONTEXT_LENGTH", "E_MODEL_REFUSED")

#: those that may be due to what tools have returned
CONTENT_REFUSALS = ("E_MODEL", "E_MODEL_REFUSED")

#: how a part of a message begins that names its type, or has none to name
_URLS = ("http://", "https://", "data:")

#: keys, ids and paths that stand in a prompt as they are
_ORDINARY = re.compile(r"[\w.:@/#+=~-]{1,512}")
_NAME = re.compile(r"\{\{\s*([A-Za-z]\w*)\s*\}\}")
_FENCED = re.compile(r"```(?:json)?[^\S\n]*\n(.*)\n[^\S\n]*```", re.DOTALL)


@dataclass(frozen=True)
class Thinking:
    """Runs the Turns of one revision's agents that think."""

    bundle: Bundle
    providers: ModelProviders
    budget: BudgetPolicy
    redis: Redis
    keys: Keys
    #: how long a call may wait in its queue, in seconds
    queue_timeout_seconds: float
    #: how long the ledger keeps the answers of models, in seconds
    result_ttl_seconds: int
    open_requests: OpenRequests
    ask_model: Script

    @cached_property
    def _prompts(self) -> Mapping[str, str]:
        return {name: _prompt_of(agent, self.bundle.root) for name, agent in self.bundle.agents.items()}

    def prompt(self, agent: str, names: Mapping[str, str]) -> str:
        """Return the Agent's system prompt with its placeholders filled in; unknown ones stay."""
        return _NAME.sub(
            lambda match: _quoted(names[match[1]]) if match[1] in names else match[0], self._prompts[agent]
        )

    def model(self, agent: str) -> JsonObject | None:
        """Return the Agent's model as its code sees it, without the API key."""
        configuration = self.bundle.agents[agent].spec.configuration
        model = None if configuration is None else self.bundle.models.get(configuration.model_ref.name)
        if model is None or configuration is None:
            return None
        spec = model.spec
        params = {**spec.options, **configuration.params}
        return {
            "name": model.name,
            "provider": spec.provider,
            "model": spec.model,
            "baseUrl": spec.base_url,
            "params": params,
        }

    async def think(
        self,
        ctx: AgentContext,
        messages: Sequence[JsonObject | Message] | None,
        *,
        run: Run,
        tools: AgentTools,
        state: TurnState,
    ) -> Any:
        """Think for one Turn; see :meth:`AgentContext.think`."""
        agent = self.bundle.agents[ctx.agent_name]
        configuration = agent.spec.configuration
        if configuration is None or not tools.is_async:
            raise HandoffError(
                "Only an Agent with a modelConfig thinks.",
                suggestion="Add `modelConfig: {modelRef: Model/NAME}`; `handle` must be `async`.",
            )
        schema = agent.spec.output_schema
        if messages is None and ctx.event.output_schema is not None:
            schema = ctx.event.output_schema
        answers = None if schema is None else compile_output_schema(schema)
        if messages is None:
            conversation, added = state.conversation or Conversation(), [_user_message(ctx.event)]
        else:
            conversation, added = Conversation(), [*map(_message, messages)]
        if added:  # marks the Turn's own input for extensions, which must keep it
            metadata = {**added[-1].metadata, "turnId": ctx.turn_id}
            added[-1] = added[-1].model_copy(update={"metadata": metadata})
        begin = len(conversation.events)
        for message in added:
            conversation.append(message)
        inputs = [event.message.id for event in conversation.events[begin:] if event.message is not None]
        models = self._models(tools, ctx.workdir, conversation)
        models.asked = self._asked(run, state, added)
        stream = TurnStream(self.redis, self.keys, run.id)
        provider = self.providers.by_model[configuration.model_ref.name]
        turn = _ThinkingTurn(
            ctx, answers, configuration, self.budget, run.id, models, stream, conversation, state, provider
        )
        try:
            return await turn.run()
        except ModelError as error:
            if error.code in REFUSALS and not turn.has_answered:  # the input would spoil the next Turns
                _take_back(conversation, inputs)
            raise
        finally:
            conversation.tokens = state.tokens
            await asyncio.to_thread(conversation.end)
            await models.forget()

    async def ask(
        self,
        workdir: Path,
        tools: AgentTools,
        state: TurnState,
        index: int,
        messages: Sequence[JsonObject | Message],
        *,
        instructions: str,
        model_ref: str | None,
    ) -> str:
        """Ask a model for a step middleware; see :meth:`StepContext.ask_model`."""
        configuration = self.bundle.agents[tools.asker.name].spec.configuration
        assert configuration is not None  # noqa: S101 - only agents with one get this method
        names, params = configuration.models, configuration.params
        if model_ref is not None:
            names, params = (model_ref.removeprefix("Model/"),), {}
        data = tuple(_message(message).data for message in messages)
        models = self._models(tools, workdir, state.conversation or Conversation())
        # without an event, no client sees it: it is not part of the Turn's answer
        answer, _ = await models.ask_first(
            names, ModelRequest(instructions, data, params=params), step=index, event_id=""
        )
        state.usage.update(answer.usage)
        await models.forget()
        if not answer.text.strip():
            raise ModelAnswerError(f"Model {names[0]!r} gave no text to a middleware's request.")
        return answer.text

    def _asked(self, run: Run, state: TurnState, added: Sequence[Message]) -> AskedRequests:
        digest = ModelRequest("", tuple(message.data for message in added)).digest
        state.thinkings[digest] += 1
        return AskedRequests(
            run.call.turn_id,
            self.keys.asked_models(f"{run.id}.{run.retries}"),  # a retry repeats nothing
            f"{digest}.{state.thinkings[digest]}",
            self.result_ttl_seconds,
            is_repeated=run.attempt > 1,
        )

    def _models(self, tools: AgentTools, workdir: Path, conversation: Conversation) -> Models:
        return Models(
            tools,
            self.redis,
            self.keys,
            self.queue_timeout_seconds,
            self.bundle.models,
            workdir,
            conversation.write,
            self.open_requests,
            self.ask_model,
        )


def _quoted(name: str) -> str:
    """Return a name for a prompt; one with spaces or line ends, which may say anything, in quotes."""
    return name if _ORDINARY.fullmatch(name) else json.dumps(name)


def _prompt_of(agent: AgentResource, root: Path) -> str:
    for prompts in (agent.spec.prompts, agent.spec.prompt):
        if prompts is not None:
            if prompts.system_ref is not None:
                return (root / prompts.system_ref).read_text("utf-8-sig").strip()
            return prompts.system or prompts.system_prompt or ""
    return ""


@dataclass(slots=True)
class _ThinkingTurn:
    ctx: AgentContext
    #: the schema of the answer; ``None``: the answer is text
    answers: ArgumentSchema | None
    configuration: ModelConfiguration
    budget: BudgetPolicy
    event_id: str
    models: Models
    stream: TurnStream
    conversation: Conversation
    state: TurnState
    provider: ModelProvider
    #: the number of consecutive Steps with tool calls that were not JSON, or cut
    malformed: int = 0
    #: set if the conversation was too long in the last Step: its error, and the number of events then
    too_long: tuple[ModelError, int] | None = None
    #: the messages before they were shortened, until the model accepts the conversation
    unshortened: list[Message] = field(default_factory=list)
    #: whether the model has answered in this Turn
    has_answered: bool = False

    async def run(self) -> Any:
        """Run Steps until the Turn ends; return the answer."""
        answer, reason = ModelAnswer(content=(), usage={}), None
        while reason is None:
            try:
                step = self.ctx._step(None, conversation=self.conversation)
                async with step:
                    answer = await self._answer(step)
                    if answer.has_calls:
                        await self._run_calls(step, answer)
            except StepLimitError:
                reason = "max_steps"
            except ModelError as error:
                self._expect_shorter(error)
            else:
                reason = self._reason(step, answer)
        self.state.finish_reason = reason
        return self._value(answer)

    def _reason(self, step: AgentStep, answer: ModelAnswer) -> str | None:
        """Return why the Turn ends after a Step; ``None`` if it continues."""
        if not step.should_continue:
            return "length" if answer.finish_reason == "length" else "text_response"
        budget, used = self.budget, self.state.tokens
        per_turn, per_instance = budget.tokens_per_turn, budget.tokens_per_instance
        is_over = (per_turn is not None and used >= per_turn) or (
            per_instance is not None and self.conversation.tokens_before + used >= per_instance
        )
        return "budget" if is_over else None

    def _expect_shorter(self, error: ModelError) -> None:
        """Let step middlewares shorten a conversation that is too long, once; raise other errors."""
        if error.code != ModelContextLengthError.code or self.too_long is not None:
            raise error
        self.too_long = error, len(self.conversation.events)
        self.conversation.is_too_long = True

    async def _answer(self, step: AgentStep) -> ModelAnswer:
        """Ask the model until its answer is usable, and append that to the conversation."""
        if self.too_long is not None and len(self.conversation.events) == self.too_long[1]:
            self._shorten_after(self.too_long[0])
        try:
            answer = await self._usable_answer(step)
        except ModelError as error:
            withdrawn = (
                withdraw(self.conversation, self.ctx.turn_id) if error.code in CONTENT_REFUSALS else []
            )
            if not withdrawn:
                raise
            logger.warning("model.outputs_withdrawn", agent=self.ctx.agent_name, reason=error.message)
            with OnError(lambda _: exchange(self.conversation, [(new, old) for old, new in withdrawn])):
                answer = await self._usable_answer(step)
        message = Message(
            id=f"msg-{step.id}",
            data=_with_names(answer.message, step.catalog.original_name),
            metadata={"model": answer.model, "usage": answer.usage, "turnId": self.ctx.turn_id},
            created_at=iso_time(wall_clock()),
            source={"type": "assistant", "stepId": step.id},
        )
        self.conversation.append(message)
        self.has_answered = True
        return answer

    async def _usable_answer(self, step: AgentStep) -> ModelAnswer:
        """Ask the model until its answer is usable."""
        corrections: list[JsonObject] = []
        while True:
            answer = await self._ask_shortened(step, corrections)
            self.too_long, self.conversation.is_too_long, self.unshortened = None, False, []
            fault = self._fault(answer)
            if not fault:
                return answer
            if len(corrections) >= 2 * MOST_CORRECTIONS:
                quote = f" It said: {answer.text[:500]}" if answer.text else ""
                raise ModelAnswerError(f"The model's answer cannot be used: {fault[:500]}{quote}")
            logger.info("model.corrected", agent=self.ctx.agent_name, step=step.index, fault=fault)
            corrections += [answer.message, {"role": "user", "content": fault}]

    async def _ask_shortened(self, step: AgentStep, corrections: Sequence[JsonObject]) -> ModelAnswer:
        """Ask the model; after a Step for middlewares, shorten until the model accepts the conversation."""
        while True:
            try:
                return await self._ask(self._request(step, corrections), step.index)
            except ModelError as error:
                if error.code != ModelContextLengthError.code or self.too_long is None:
                    raise
                self._shorten_after(error)

    def _shorten_after(self, error: ModelError) -> None:
        """Shorten the conversation that a model has refused as too long; raise the error if it cannot be."""
        self.unshortened = self.unshortened or self.conversation.next_messages
        if not shorten(self.conversation, self.ctx.turn_id):
            # the prompt, the tools or the input are too long: what was cut must not be lost for that
            self.conversation.restore(self.unshortened)
            raise error

    def _fault(self, answer: ModelAnswer) -> str:
        """Return the message that tells the model why its answer is unusable, or an empty string.

        Raises:
            ModelRefusedError: a filter refused to answer.
            ModelAnswerError: the answer has too many calls to be sent back.
        """
        calls = sum(part.get("type") == "tool-call" for part in answer.content)
        if calls > MOST_CALLS:
            raise ModelAnswerError(f"The model's answer has {calls} tool calls: more than {MOST_CALLS}.")
        if calls:
            return ""
        if answer.finish_reason == "content_filter":
            raise ModelRefusedError(f"The model refused to answer. {answer.text}"[:1_000].strip())
        if not answer.text.strip():
            is_cut = answer.finish_reason == "length"
            what = "cut at maxTokens before it had a text" if is_cut else "empty"
            return f"Your answer was {what}. Answer the last message, or call a tool."
        if self.answers is None:
            return ""
        try:
            value = _json_of(answer.text)
        except serializer.NotJsonError as error:
            what = "was cut at maxTokens" if answer.finish_reason == "length" else f"is not JSON: {error}"
            return f"Your answer {what}. Answer again, with JSON alone that fits the schema."
        faults = self.answers.faults_of_any(value)
        return f"Your answer does not fit the schema: {'; '.join(faults)}. Answer again." if faults else ""

    async def _ask(self, request: ModelRequest, index: int) -> ModelAnswer:
        models = self.configuration.models
        answer, digest = await self.models.ask_first(models, request, step=index, event_id=self.event_id)
        self.state.usage.update(answer.usage)
        self.conversation.tokens = self.state.tokens
        await self.stream.tell(TokensUsed(step=index, usage=answer.usage, request_id=digest))
        return answer

    def _request(self, step: AgentStep, corrections: Sequence[JsonObject]) -> ModelRequest:
        catalog, schema = step.catalog, None if self.answers is None else self.answers.schema
        instructions = [self.ctx.prompt, *map(_block_text, step.blocks)]
        if schema is not None:
            text = serializer.encode(schema).decode()
            instructions.append(f"Answer with JSON alone that fits this JSON Schema:\n{text}")
        history = [
            _with_names(message.data, catalog.provider_name) for message in self.conversation.next_messages
        ]
        return ModelRequest(
            instructions="\n\n".join(filter(None, instructions)),
            messages=(*with_newest_images(history), *(one for one in corrections if one["content"])),
            tools=tuple(catalog.to_openai()),
            params=self.configuration.params,
            output_schema=schema,
        )

    async def _run_calls(self, step: AsyncEntryStep, answer: ModelAnswer) -> None:
        """Run the tool calls of an answer, and append their results to the conversation."""
        calls = [part for part in answer.content if part.get("type") == "tool-call"]
        faults = [one["fault"] for one in calls if "fault" in one]
        self.malformed = self.malformed + 1 if faults else 0
        if self.malformed > MOST_CORRECTIONS:
            told = "The model's tool calls cannot be used, even after the model was told so"
            raise ModelAnswerError(f"{told}: {faults[0]}")
        reply = self.conversation.next_messages[-1]
        watch = _RunningCalls(StepStream(self.stream, step.index))
        # what has ended is told to the model even if the Turn is cancelled: it must not be done again
        with OnError(lambda _: self._keep(self._seen(watch.ended()))):
            results: list[StepCallResult] = await step.run(reply, watch=watch)
            if any(map(needs_files, results)):
                messages = await asyncio.to_thread(self._seen, results)
            else:
                messages = self._seen(results)
        self._keep(messages)

    def _seen(self, results: Iterable[StepCallResult]) -> list[Message]:
        takes_images, place = self.provider.takes_images, (self.ctx.turn_id, self.ctx.workdir)
        return [seen_message(result, *place, takes_images=takes_images) for result in results]

    def _keep(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.conversation.append(message)

    def _value(self, answer: ModelAnswer) -> Any:
        if self.answers is None:
            return answer.text
        # a Turn that ended before its answer has no value
        return None if answer.has_calls or not answer.text else _json_of(answer.text)


@dataclass(slots=True)
class _RunningCalls:
    """The calls of a Step while they run, and the results that have arrived."""

    stream: StepStream
    #: in their order, by their identities
    calls: dict[str, StepCall] = field(default_factory=dict)
    results: dict[str, ToolCallResult] = field(default_factory=dict)

    async def called(self, calls: Sequence[tuple[str, StepCall]]) -> None:
        self.calls.update(calls)
        await self.stream.called(calls)

    async def answered(self, result: ToolCallResult) -> None:
        self.results[result.meta.id] = result
        await self.stream.answered(result)

    def ended(self) -> list[StepCallResult]:
        """Return the results that have arrived, in the order of the calls."""
        return [
            call.answered(self.results[name]) for name, call in self.calls.items() if name in self.results
        ]


def _take_back(conversation: Conversation, inputs: Sequence[str]) -> None:
    """Remove the messages with these ids."""
    kept = {message.id for message in conversation.next_messages}
    for name in inputs:
        if name in kept:
            conversation.emit({"type": "remove", "targetId": name})


def _json_of(text: str) -> Any:
    """Decode an answer, which may be in a fenced code block."""
    fenced = _FENCED.fullmatch(text.strip())
    return serializer.decode(fenced[1] if fenced else text)


def _with_names(data: JsonObject, name_of: Callable[[str], str]) -> JsonObject:
    """Return a message in which ``name_of`` has replaced the names of tools."""
    content = data.get("content")
    if not isinstance(content, list):
        return data
    parts = [
        {**part, "toolName": name_of(part["toolName"])} if "toolName" in part else part for part in content
    ]
    return {**data, "content": parts}


def _block_text(block: JsonObject) -> str:
    name = block.get("type", "block")
    return f"<{name}>\n{serializer.encode(block).decode()}\n</{name}>"


def _user_message(event: AgentEvent) -> Message:
    """Return an event as a user's message: text or parts as they are, anything else as JSON with its type.

    The event's metadata stands beside; it cannot replace the type, the sender and the input.
    """
    content: Any = event.input
    is_text = isinstance(content, str) and bool(content)
    is_parts = isinstance(content, list) and bool(content) and all(map(_is_part, content))
    if not (is_parts or (is_text and not event.type.endswith(("response", ".completed")))):
        ours = {"event": event.type, "from": event.source.name, "input": content}
        others = {name: one for name, one in event.metadata.items() if name not in ours}
        fields = {name: one for name, one in (ours | others).items() if one is not None}
        content = serializer.encode(fields).decode()
    return Message(
        id=f"msg-{event.id}",
        data={"role": "user", "content": content},
        metadata={"eventType": event.type},
        created_at=event.created_at,
        source={"type": "user"},
    )


def _is_part(part: Any) -> bool:
    """Return whether an item is a part of a message, as :class:`ModelProvider` sends it."""
    if not isinstance(part, Mapping):
        return False
    if part.get("type") == "text":
        return isinstance(part.get("text"), str)
    source = part.get("image") or part.get("data") or part.get("url")
    if part.get("type") not in ("image", "file") or not isinstance(source, str):
        return False
    return source.startswith(_URLS) or isinstance(part.get("mediaType"), str)


def _message(given: JsonObject | Message) -> Message:
    if isinstance(given, Message):
        return given
    if isinstance(given.get("data"), Mapping):
        return Message.from_wire(given)
    digest = ModelRequest("", (given,)).digest
    source = {"type": "assistant", "stepId": ""} if given.get("role") == "assistant" else {"type": "user"}
    return Message(id=f"msg-{digest}", data=dict(given), created_at=iso_time(wall_clock()), source=source)
