"""Asks models through tool calls: each Model is a system tool in the agent's own queue.

So the ledger keeps an answer before its tool calls are submitted, under an identity made of the Turn, the
Step and the digest of the request. If the worker dies, the run that replaces its run gets the same answers:
it asks what the first run asked, even if its own request would differ because blocks, tools or earlier
messages have changed meanwhile. Requests are also limited, retried, cancelled, traced and counted as tool
calls are. Because a request may be long, it is stored under a key of its own until the call has ended, and
not in the call's arguments.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import structlog
from pydantic import ValidationError
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.scripts import Script, ScriptCall
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle.findings import ConfigCode
from goondan_tasks.bundle.resources import ModelResource
from goondan_tasks.contract.calls import identity_of
from goondan_tasks.contract.errors import ConfigError, ModelError, ModelRateLimitError, ModelUnavailableError
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallError
from goondan_tasks.contract.names import SYSTEM_TOOL, call_identity, is_name_part
from goondan_tasks.contract.table_rows import naming, only_advice
from goondan_tasks.contract.wording import hint
from goondan_tasks.ledger.limiter import token_limit
from workers.agents.call_services import AgentTools
from workers.agents.handoffs import answer_to
from workers.instances.outputs import read_part
from workers.thinking.model_request import ModelAnswer, ModelRequest
from workers.thinking.providers import ModelProvider
from workers.thinking.telemetry import described
from workers.thinking.turn_stream import TurnStream
from workers.tools.registered_tool import RegisteredTool
from workers.tools.system_tools import system_tool
from workers.turns.steps import patiently

logger = structlog.get_logger(__name__)

#: retries of a request after a temporary error of the provider, and the first pause, in seconds
RETRIES = 4
BACKOFF_SECONDS = 1.0

#: how often a request is started, if its workers die
MOST_ATTEMPTS = 100

#: the slots in which tokens are counted, as ``permits.lua`` reads them, and how long one counts, in seconds
SLOT_SECONDS, COUNTED_SECONDS = 10, 60

#: errors after which the next Model is asked
FALL_BACK_ON = {
    "E_MODEL_RATE_LIMIT",
    "E_MODEL_UNAVAILABLE",
    "E_MODEL_QUOTA",
    "E_MODEL_NOT_FOUND",
    "E_LIMIT",
    "E_TOOL_TIMEOUT",
    "E_TOOL_EXPIRED",
}

#: OpenTelemetry's names of providers, where they differ from ours, and of kinds of tokens


def tool_part(model: str) -> str:
    """Return the export name of a Model's tool; a hash if the Model's name is not valid in one."""
    name = f"model-{model}"
    return name if is_name_part(name) else f"model-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


#: the requests of this worker's Turns that have no answer yet, by their keys, and whether a client follows
#: the Turn, once Redis has the request: the worker that has put it there does not read it
OpenRequests = dict[str, tuple[ModelRequest, Future[bool]]]


def ask_model_script() -> Script:
    """Return the script that stores a request."""
    return Script.read(files("goondan_tasks.history") / "scripts", "ask_model")


@dataclass(frozen=True, slots=True)
class ModelTool:
    """Asks one Model on behalf of any agent."""

    provider: ModelProvider
    redis: Redis
    keys: Keys
    open_requests: OpenRequests = field(default_factory=dict)

    async def __call__(self, ctx: ToolContext, input: JsonObject) -> ModelAnswer:
        """Send the request that is stored for this call; raises as :meth:`ModelProvider.ask`."""
        call_id = call_identity(ctx.agent_name, ctx.instance_key, ctx.turn_id, ctx.tool_call_id)
        key, followed = self.keys.model_request(call_id), self.keys.turn_stream(input["event"])
        known = self.open_requests.get(key)
        if known is None:
            request, is_followed = await asyncio.to_thread(partial(self._read, key, followed))
        else:
            request, is_followed = known[0], await answer_to(known[1])
        stream = TurnStream(self.redis, self.keys, input["event"], is_followed)
        with described(ctx, self.provider.resource.spec) as asked:
            answer = asked.answer = await self._ask(request, stream, input["step"])
        await self._note_tokens(answer)
        return answer

    async def _ask(self, request: ModelRequest, stream: TurnStream, step: int) -> ModelAnswer:
        if not await stream.is_followed():
            return await self.provider.ask(request)
        async with stream.gathering(step) as deltas:
            return await self.provider.ask(request, deltas.add)

    def _read(self, key: str, stream: str) -> tuple[ModelRequest, bool]:
        """Return the stored request, and whether the Turn has a stream.

        Raises:
            ModelError: it has expired.
        """

        def read() -> list[Any]:
            with naming(key), self.redis.pipeline(transaction=False) as pipe:
                pipe.get(key)
                pipe.exists(stream)
                return pipe.execute()

        stored, is_followed = patiently(read)
        if stored is None:
            raise ModelError("The request to the model has expired: ask again.")
        return ModelRequest.from_json(stored), bool(is_followed)

    async def _note_tokens(self, answer: ModelAnswer) -> None:
        if self.provider.resource.spec.tokens_per_minute is not None:
            used = answer.usage["input"] + answer.usage["output"]
            await asyncio.to_thread(patiently, partial(self._add_tokens, used))

    def _add_tokens(self, used: int) -> None:
        key, slot = self.keys.tokens(self.provider.resource.name), int(self.redis.time()[0]) // SLOT_SECONDS
        with only_advice(key), self.redis.pipeline() as pipe:
            pipe.hincrby(key, str(slot), used)
            pipe.hdel(key, *(str(old) for old in range(slot - 24, slot - COUNTED_SECONDS // SLOT_SECONDS)))
            pipe.expire(key, 2 * COUNTED_SECONDS)
            pipe.execute()


def model_tool(
    provider: ModelProvider, redis: Redis, keys: Keys, open_requests: OpenRequests
) -> RegisteredTool:
    """Return the system tool that asks a Model."""
    model, spec = provider.resource, provider.resource.spec
    limits: JsonObject = {"maxConcurrency": spec.max_concurrency, "rateLimit": spec.rate_limit}
    tool = system_tool(
        tool_part(model.name),
        ModelTool(provider, redis, keys, open_requests).__call__,
        description=f"Ask the Model {model.name}.",
        properties={
            "request": {"type": "string"},
            "event": {"type": "string"},
            "step": {"type": "integer", "minimum": 0},
        },
        required=["request", "event", "step"],
        timeout_seconds=spec.timeout_seconds + 10,  # longer than the request's own limit
        only_waits=True,
        maxAttempts=MOST_ATTEMPTS,
        retry={
            "max": RETRIES,
            "backoffSeconds": BACKOFF_SECONDS,
            "codes": [ModelRateLimitError.code, ModelUnavailableError.code],
        },
        **{name: value for name, value in limits.items() if value is not None},
    )
    most = spec.tokens_per_minute
    return tool if most is None else replace(tool, tokens=token_limit(model.name, most))


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is kept what was asked: a field of a hash, and the hash's lifetime in seconds."""

    turn_id: str
    key: str
    field: str
    ttl: int
    #: whether an earlier run of the Turn may have asked something in this place
    is_repeated: bool


@dataclass(slots=True)
class AskedRequests:
    """The requests of one of a Turn's thinkings, in their order, in which another run repeats them."""

    turn_id: str
    key: str
    #: distinguishes the thinkings of a Turn
    name: str
    ttl: int
    is_repeated: bool
    _count: int = 0

    def next_place(self, model: str) -> Place:
        self._count += 1
        field = f"{self.name}.{self._count}.{model}"
        return Place(self.turn_id, self.key, field, self.ttl, self.is_repeated)


@dataclass(slots=True)
class Models:
    """Asks the Models of a bundle, in one run of a Turn."""

    tools: AgentTools
    redis: Redis
    keys: Keys
    #: how long a call may wait in its queue, in seconds
    queue_timeout_seconds: float
    resources: Mapping[str, ModelResource]
    workdir: Path
    #: saves the conversation before each request; may block
    write: Callable[[], None]
    open_requests: OpenRequests
    script: Script
    #: set for the requests of the Turn's own Steps; the others are repeated only if they are equal
    asked: AskedRequests | None = None
    #: the keys of requests that were answered or cancelled
    _done: list[str] = field(default_factory=list)

    async def ask_first(
        self, models: Sequence[str], request: ModelRequest, *, step: int, event_id: str
    ) -> tuple[ModelAnswer, str]:
        """Ask the first of ``models``, and the next one while one cannot answer now; see :meth:`ask`.

        Raises:
            ModelError: none of them answered.
            ConfigError: there is no such Model.
        """
        for model, following in zip(models, (*models[1:], None), strict=True):
            try:
                return await self.ask(model, request, step=step, event_id=event_id)
            except ModelCallError as failed:
                error = failed.error
                if following is None or error.code not in FALL_BACK_ON:
                    raise ModelError(error.message, code=error.code, suggestion=error.suggestion) from failed
                names = {"agent": self.tools.asker.name, "model": model, "next": following}
                logger.warning("model.fell_back", **names, code=error.code, reason=error.message)
        raise AssertionError("there is at least one Model")

    async def ask(
        self, model: str, request: ModelRequest, *, step: int, event_id: str
    ) -> tuple[ModelAnswer, str]:
        """Ask a Model through a call; return the answer, and the digest of the request that it answers.

        The same request in the same Step is sent only once. What an earlier run of the Turn asked instead of
        this request is not sent again either: its answer is awaited.

        Raises:
            ModelCallError: the call failed.
            ConfigError: there is no such Model.
        """
        if model not in self.resources:
            raise ConfigError(
                f"The bundle has no Model '{model}'.",
                code=ConfigCode.REF_NOT_FOUND,
                suggestion=hint(model, self.resources, "Declare it, or name another one."),
            )
        place = None if self.asked is None else self.asked.next_place(model)
        earlier = None
        if place is not None and place.is_repeated:
            earlier = await asyncio.to_thread(patiently, partial(self._earlier, model, place))
        step, digest = earlier or (step, request.digest)
        args = {"request": digest, "event": event_id, "step": step}
        call = self.tools.new_call(f"{SYSTEM_TOOL}__{tool_part(model)}", args)
        call = call.model_copy(update={"tool_call_id": _call_name(model, step, digest)})
        key = self.keys.model_request(identity_of(call))
        # expires only if this run dies and no other takes its place
        ttl = round(2 * self.queue_timeout_seconds + self.resources[model].spec.timeout_seconds)
        script_call = self._put(
            key, b"" if earlier else request.json, ttl, place, f"{step} {digest}", event_id
        )
        await asyncio.to_thread(self.write)
        # it runs before the call, in the same packet
        put = self.tools.handoffs.post(script_call, is_awaited=False)
        if earlier is None:
            self.open_requests[key] = request, put
        try:
            return await self._answer(model, call, key, put), digest
        finally:
            self.open_requests.pop(key, None)

    async def _answer(self, model: str, call: ToolCall, key: str, put: Future[bool]) -> ModelAnswer:
        try:
            [result] = await self.tools.results([call])
            await answer_to(put)
        except asyncio.CancelledError:
            cancellation = self.tools.cancellation
            if cancellation.is_set() and not cancellation.is_taken_over:
                self._done.append(key)
            raise
        self._done.append(key)
        if result.error is not None:
            raise ModelCallError(result.error)
        output = result.output
        if result.meta.output_file is not None:
            output = await asyncio.to_thread(self._stored, result.meta.output_file)
        try:
            return ModelAnswer.from_wire(output)
        except ValidationError as error:
            raise ModelError(f"The answer of Model {model!r} cannot be read: {error}"[:500]) from error

    async def forget(self) -> None:
        """Remove the requests that were answered or cancelled."""
        if self._done:
            await asyncio.to_thread(patiently, partial(self.redis.unlink, *self._done))

    def _earlier(self, model: str, place: Place) -> tuple[int, str] | None:
        """Return the Step and digest of what an earlier run asked here, if its answer can be awaited."""
        with naming(place.key):
            kept = cast("bytes | None", self.redis.hget(place.key, place.field))
        if kept is None:
            return None
        step, digest = kept.decode().split()
        asker, name = self.tools.asker, _call_name(model, int(step), digest)
        call_id = call_identity(asker.name, asker.instance_key, place.turn_id, name)
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.hget(self.keys.call(call_id), "status")
            pipe.exists(self.keys.model_request(call_id))
            status, is_stored = pipe.execute()
        has_ended = status in (b"done", b"dead")
        return (int(step), digest) if has_ended or (status and is_stored) else None

    def _put(
        self, key: str, request: bytes, ttl: int, place: Place | None, asked: str, event_id: str
    ) -> ScriptCall[bool]:
        """Return what stores a request, or keeps it if it is empty, and stores in its place what is asked.

        Its answer is whether there is the stream of the Turn's events.
        """
        done, self._done = self._done, []
        places, name, lives = (key, "", 0) if place is None else (place.key, place.field, place.ttl)
        keys = [key, self.keys.turn_stream(event_id), places, *done]
        return ScriptCall(self.script, keys, [ttl, request, name, asked, lives], bool)

    def _stored(self, path: str) -> Any:
        """Read an answer that was too large for the call's result."""
        data, size = read_part(self.workdir, path, offset=0, limit=2**31)
        return serializer.decode(data[:size])


def _call_name(model: str, step: int, digest: str) -> str:
    """Return the id of a call within its Turn."""
    return f"{tool_part(model)}-{step}-{digest}"


class ModelCallError(Exception):
    """The call that asks a model failed."""

    def __init__(self, error: ToolCallError) -> None:
        super().__init__(error.message)
        self.error = error
