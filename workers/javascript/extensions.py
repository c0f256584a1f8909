"""Extensions in TypeScript or JavaScript: their functions run in a host and are called from here.

All extensions of a bundle share one host for each runtime. For each function that an extension registers, the
worker registers one that invokes it by key. Functions in the host ask for ``next()``, state, events and so on
over the connection. When the host has ended, the next function that is called first starts it again, and its
extension registers again.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from goondan_tasks.authoring.entry import IMPORT_HINT, EntryError
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle import BoundExtension
from goondan_tasks.contract.errors import (
    ExtensionInitError,
    MiddlewareError,
    ToolError,
    ToolNotFoundError,
    ToolOutcomeUnknownError,
)
from goondan_tasks.contract.failure import DescribedError, describe, named_error
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.output import Pending
from goondan_tasks.machine.javascript import INSTALL, find_runtime, missing_runtime
from goondan_tasks.machine.process import own_environment
from workers.javascript.host import Asked, AskedOf, Host, HostCall, HostEndedError, HostKind, OnEvent
from workers.javascript.middleware_context import answer_of, data_of, state_of, take_over, told
from workers.javascript.tools import MOST_RUNS, HostedTools, asked_of, on_event, order_of
from workers.javascript.v1_context import plain
from workers.outcome import awaited_outcome
from workers.processes import frames

logger = structlog.get_logger(__name__)

#: the limit of a ``register`` after a restart; the loader limits the first one
REGISTER_SECONDS = 60.0

#: a registration: its kind, the name of the function, and further details
_Details = tuple[Any, ...]


class ThrownError(ToolError):
    """An error that an extension threw; its class has the error's name."""


def thrown(error: JsonObject) -> ThrownError:
    """Return an error that JavaScript threw as an exception of the same name."""
    texts = {name: value for name, value in error.items() if isinstance(value, str)}
    kind = type(texts.get("name", "Error").replace("\0", ""), (ThrownError,), {})
    raised: ThrownError = kind(
        texts.get("message", ""), code=texts.get("code"), suggestion=texts.get("suggestion")
    )
    raised.help_url = texts.get("helpUrl")
    if "stack" in texts:
        raised.add_note(texts["stack"])
    return raised


def register_of(
    tools: HostedTools, extension: BoundExtension
) -> Callable[[Any, JsonObject], Awaitable[None]]:
    """Return a ``register(api, config)`` like that of a Python file.

    It raises an EntryError if the file cannot be used, and a ThrownError if its ``register`` throws.

    Raises:
        EntryError: there is neither Node nor Bun.
    """
    runtime = find_runtime(tools.runtime, preferred="node" if extension.is_v1 else "bun")
    if runtime is None:
        raise EntryError(extension.entry_path, missing_runtime(tools.runtime), INSTALL)
    environment = tuple(sorted(own_environment().items()))
    most = tools.max_message_bytes
    kind = HostKind(tools.root, runtime, environment, whose="extension", max_message_bytes=most)
    return HostedExtension(extension, tools, kind).register


@dataclass(eq=False)
class _Start:
    """One start of an extension: its host, and the order "register" there, which stays open."""

    host: Host
    call: HostCall
    #: the functions that ``register`` registered, by key
    functions: dict[str, _Details]


@dataclass(eq=False)
class HostedExtension:
    """One extension of one agent in its host."""

    bound: BoundExtension
    tools: HostedTools
    kind: HostKind
    api: Any = None
    config: JsonObject = field(default_factory=dict)
    #: how often it was started
    epoch: int = 0
    _start: _Start | None = None
    #: the functions that can be called now, by key
    _functions: dict[str, _Details] = field(default_factory=dict)
    _ends: dict[str, Callable[[], None]] = field(default_factory=dict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def register(self, api: Any, config: JsonObject) -> None:
        """Start the extension in its host.

        Raises:
            EntryError: the file cannot be used.
            ThrownError: ``register`` threw an error.
            HostEndedError: the host ended.
        """
        self.api, self.config = api, config
        await self._ready()

    async def _ready(self) -> _Start:
        """Return the start in a running host; start the extension again if its host has ended."""
        if self._start is not None and self._start.host.is_open:
            return self._start
        async with self._lock:
            if self._start is None:
                self._start = await self._started()
            elif not self._start.host.is_open:
                await self._restart(self._start)
            return self._start

    async def _restart(self, before: _Start) -> None:
        names = {"extension": self.bound.name, "agent": self.api.agent_name}
        try:
            async with asyncio.timeout(REGISTER_SECONDS):
                self._start = await self._started()
        except (EntryError, ThrownError, HostEndedError, TimeoutError) as error:
            raise ExtensionInitError(
                f"Extension '{self.bound.name}' of agent '{self.api.agent_name}' cannot be started again "
                f"after its process has ended: {named_error(error)}"
            ) from error
        reason = str(before.call.outcome.exception()) if before.call.outcome.done() else None
        logger.warning("extension.started_again", **names, reason=reason)
        now = self._start.functions
        for key in [key for key in self._ends if key not in now]:
            self._ends.pop(key)()
        if now != before.functions:
            lost = [_shown(one) for key, one in before.functions.items() if now.get(key) != one]
            new = [_shown(one) for key, one in now.items() if before.functions.get(key) != one]
            logger.warning("extension.registered_differently", **names, lost=lost, new=new)

    async def _started(self) -> _Start:
        host = await self.tools.hosts.shared(self.kind, self.tools.help_url)
        self.epoch += 1
        known, self._functions = self._functions if self._start is None else self._start.functions, {}
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        order = {
            "does": "register",
            "entry": str(self.bound.entry_path),
            "epoch": self.epoch,
            "isV1": self.bound.is_v1,
            "agentName": self.api.agent_name,
            "extension": plain(self.api.extension),
            "config": self.config,
        }
        asked: Asked = {**self._asked(known), **_ends_of_register(self.bound.entry_path, ended)}
        # an empty context: the extension's background work belongs to no call
        call = contextvars.Context().run(host.begin, order, self._on_event, lambda: asked)
        try:
            either: set[asyncio.Future[Any]] = {ended, call.outcome}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await host.abort(call, {"code": "E_EXT_INIT", "message": "register took too long."})
            host.forget(call)
            raise
        call.outcome.add_done_callback(_retrieve)
        if not ended.done():
            _, message = call.outcome.result()
            raise (
                thrown(message["error"])
                if "error" in message
                else HostEndedError("The extension ended.", has_begun=True, was_alone=False)
            )
        ended.result()
        return _Start(host, call, dict(self._functions))

    def _on_event(self, kind: str, message: JsonObject) -> None:
        if kind == "log":
            frames.log_line(self.api.logger, message.get("level"), message.get("event"))
        elif kind == "dropped":
            frames.log_dropped(self.api.logger, message["lines"])

    # what its functions may ask for

    def _asked(self, known: Mapping[str, _Details] | None = None) -> Asked:
        """Return what the functions may ask for; those in ``known`` are registered here already."""
        api = self.api
        before = known or {}

        async def add(kind: str, key: str, name: str, *details: Any) -> None:
            one = (kind, name, *details)
            if before.get(key) != one:
                self._add(kind, key, one)
            self._functions[key] = one

        async def unlisten(key: str) -> None:
            self._functions.pop(key, None)
            self._ends.pop(key, lambda: None)()

        async def emit(name: str, event: Any) -> None:
            api.events.emit(name, event)

        async def unregister(name: str) -> bool:
            return bool(api.tools.unregister(name))

        asked: dict[str, Callable[..., Awaitable[Any]]] = {
            "add": add,
            "unlisten": unlisten,
            "emit": emit,
            "tools.unregister": unregister,
            "oauth": self._token,
            "swarmBundle.open": lambda reason: api.swarm_bundle.open_changeset(reason),
            "swarmBundle.commit": lambda one, text: api.swarm_bundle.commit_changeset(one, text),
            "swarmBundle.ref": lambda: api.swarm_bundle.get_active_ref(),
            **self._state_asked("state", api.state),
        }
        return {**asked, **self._v1_asked()} if self.bound.is_v1 else asked

    @staticmethod
    def _state_asked(prefix: str, state: Any) -> Asked:
        async def get(key: str, options: JsonObject) -> Any:
            return await state.get(key, instance_key=options.get("instanceKey"))

        async def set_(key: str, value: Any, options: JsonObject) -> None:
            await state.set(key, value, instance_key=options.get("instanceKey"))

        async def keys(start: str, options: JsonObject) -> Any:
            return await state.keys(start, instance_key=options.get("instanceKey"))

        return {f"{prefix}.get": get, f"{prefix}.set": set_, f"{prefix}.keys": keys}

    def _v1_asked(self) -> Asked:
        api = self.api

        async def tool(name: str) -> Any:
            return plain(api.tools.get(name))

        async def tools() -> Any:
            return plain(list(api.tools.list()))

        return {
            "tools.get": tool,
            "tools.list": tools,
            "object.get": lambda: api.get_state(),
            "object.set": lambda value: api.set_state(value),
            **self._state_asked("shared", api.instance.shared),
        }

    async def _token(self, request: Any) -> Any:
        oauth = self.api.oauth
        if self.bound.is_v1:
            return plain(await oauth.get_access_token(request))
        fields = {"scopes": request.get("scopes"), "min_ttl_seconds": request.get("minTtlSeconds")}
        given = {name: value for name, value in fields.items() if value is not None}
        return plain(await oauth.get_access_token(request.get("oauthAppRef"), **given))

    # what it registers

    def _add(self, kind: str, key: str, details: _Details) -> None:
        """Register a function of the host with the api."""
        _, name, *more = details
        api, function = self.api, _HostedFunction(self, key, details)

        async def middleware(ctx: Any) -> Any:
            return await _MiddlewareRun(function, ctx, ctx.next).through(kind)

        async def wrapper(ctx: Any, next: Callable[..., Awaitable[Any]]) -> Any:
            return await _MiddlewareRun(function, ctx, lambda: next(ctx)).through(kind)

        async def mutator(ctx: Any) -> Any:
            return await _MiddlewareRun(function, ctx, None).through(kind)

        middleware.__name__ = wrapper.__name__ = mutator.__name__ = name  # errors name middlewares by it
        if kind == "middleware":
            point, priority = more
            api.pipeline.register(point, middleware, priority)
        elif kind == "mutator":
            point, priority, given = more
            api.pipelines.mutate(point, mutator, priority=priority, id=given)
        elif kind == "wrapper":
            point, priority, given = more
            api.pipelines.wrap(point, wrapper, priority=priority, id=given)
        elif kind == "tool":
            item, policy = more
            fields = {} if self.bound.is_v1 else {"policy": policy}
            api.tools.register(item, function.call_tool, **fields)
        else:
            event, is_once = more
            listen = api.events.once if is_once else api.events.on
            self._ends[key] = listen(event, function.tell)

    # calling its functions

    async def invoke(
        self, key: str, details: _Details, order: JsonObject, asked: AskedOf, on_event: OnEvent | None = None
    ) -> tuple[str, JsonObject]:
        """Call a function in the host; return the kind and the message of its outcome.

        Raises:
            HostEndedError: the host ended during the call.
            ExtensionInitError: the host had ended before, and the extension cannot be started again.
            ToolNotFoundError, MiddlewareError: the extension has not registered the function again.
            PayloadTooLargeError: the order is larger than a message may be.
        """
        start = await self._ready()
        if self._functions.get(key) != details:
            gone = ToolNotFoundError if details[0] == "tool" else MiddlewareError
            raise gone(
                f"Extension '{self.bound.name}' was started again, since its process had ended, and has not "
                f"registered {_shown(details)} again.",
                suggestion="Register it in `register(api)`.",
            )
        return await start.host.run(
            {"does": "invoke", "extension": start.call.id, "function": key, **order},
            on_event or self._on_event,
            lambda: {**self._asked(), **asked()},
            lambda: {"code": "E_TOOL_CANCELLED", "message": "The call has ended."},
        )


@dataclass(frozen=True, slots=True)
class _HostedFunction:
    """One function of an extension in its host."""

    extension: HostedExtension
    key: str
    details: _Details

    @property
    def name(self) -> str:
        return f"{self.extension.bound.name}.{self.details[1]}"

    async def invoke(
        self, order: JsonObject, asked: AskedOf = dict, on_event: OnEvent | None = None
    ) -> tuple[str, JsonObject]:
        return await self.extension.invoke(self.key, self.details, order, asked, on_event)

    async def tell(self, event: JsonObject) -> None:
        """Call a listener."""
        kind, message = await self.invoke({"kind": "listener", "event": event})
        if kind == "error":
            raise thrown(message["error"])

    async def call_tool(self, ctx: ToolContext, args: JsonObject) -> Any:
        """Call the handler of a tool."""
        *_, policy = self.details
        is_idempotent = bool((policy or {}).get("idempotent"))
        order = {"kind": "tool", **order_of(ctx, args)}
        for runs in range(1, MOST_RUNS + 1):
            try:
                kind, message = await self.invoke(order, partial(asked_of, ctx), partial(on_event, ctx))
                break
            except HostEndedError as error:
                may_run_again = is_idempotent or not error.has_begun
                if not may_run_again or runs == MOST_RUNS:
                    raise ToolOutcomeUnknownError(
                        f"{error.message} The call may have had its effect or not."
                    ) from error
        if kind == "error":
            raise DescribedError(frames.error_from(message["error"], self.extension.tools.help_url))
        return Pending(**message["value"]) if kind == "pending" else message["value"]


@dataclass(eq=False)
class _MiddlewareRun:
    """One run of a middleware, a mutator or a wrapper; it ends after everything inside of it."""

    function: _HostedFunction
    ctx: Any
    proceed: Callable[[], Awaitable[Any]] | None
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    #: the errors from further inside, each with its form on the wire
    _errors: list[tuple[BaseException, JsonObject]] = field(default_factory=list)
    _result: Any = None

    async def through(self, kind: str) -> Any:
        """Run the function and return its answer.

        Raises:
            MiddlewareError: the function failed, or its host ended.
            Exception: an error from further inside, or one with a code of its own.
        """
        order = {"kind": kind, "data": data_of(self.ctx), "state": state_of(self.ctx)}
        asked: Asked = {"next": self._next, "askModel": self._ask_model}
        function = self.function
        try:
            outcome = await function.invoke(order, lambda: asked)
        except HostEndedError as ended:
            await self._inner_ended()
            for error in [task.result().error for task in self._tasks if task.result().error is not None]:
                raise error from ended  # perhaps of another middleware in the same host
            how_far = " What is further inside of it has run." if self._tasks else ""
            raise MiddlewareError(
                f"Middleware {function.name} did not end. {ended.message}{how_far}"
            ) from ended
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            await self._inner_ended()
            raise
        await self._inner_ended()
        return self._answer(*outcome)

    def _answer(self, kind: str, message: JsonObject) -> Any:
        if kind == "error":  # its return value is not JSON or too large, or it left an error uncaught
            raise self._failed(thrown(message["error"]))
        answer: JsonObject = message["value"]
        if answer.get("error") is not None:
            raise self._raised(answer["error"], answer.get("passed"))
        take_over(self.ctx, answer["state"])
        if answer.get("same"):
            return self._result
        return answer_of(self.ctx, answer.get("value"), self._result)

    def _raised(self, error: JsonObject, passed: int | None) -> BaseException:
        raised = thrown(error)
        if passed is not None:
            original, known = self._errors[passed]
            is_same = all(error.get(name) == known.get(name) for name in ("name", "code", "message"))
            return original if is_same else raised
        if "code" in error and not _is_of_system(error):
            return raised
        return self._failed(raised)

    def _failed(self, raised: ThrownError) -> MiddlewareError:
        failed = MiddlewareError(f"Middleware {self.function.name} raised {named_error(raised)}")
        failed.__cause__ = raised
        return failed

    async def _next(self, changes: JsonObject) -> JsonObject:
        """Run what is further inside, in a task that outlasts the host's question."""
        take_over(self.ctx, changes)
        assert self.proceed is not None  # noqa: S101 - mutators have no next()
        before = state_of(self.ctx)
        task = asyncio.ensure_future(awaited_outcome(self.proceed()))
        self._tasks.append(task)
        outcome = await asyncio.shield(task)
        now = state_of(self.ctx)
        state = {name: value for name, value in now.items() if value != before.get(name)}
        if outcome.error is None:
            self._result = outcome.get()
            return {"value": told(self._result), "state": state}
        if isinstance(outcome.error, asyncio.CancelledError):
            raise outcome.error
        described = describe(outcome.error, help_url=self.function.extension.tools.help_url).to_wire()
        self._errors.append((outcome.error, described))
        return {"error": described, "number": len(self._errors) - 1, "state": state}

    async def _inner_ended(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _ask_model(self, messages: Any, options: JsonObject) -> str:
        answer: str = await self.ctx.ask_model(
            messages, instructions=options.get("instructions") or "", model_ref=options.get("modelRef")
        )
        return answer


def _ends_of_register(file: Path, ended: "asyncio.Future[None]") -> Asked:
    """Return the functions by which a host reports the end of ``register``."""

    async def registered() -> None:
        if not ended.done():
            ended.set_result(None)

    async def unusable(found: JsonObject) -> None:
        error = EntryError(file, found["problem"], found.get("suggestion") or IMPORT_HINT, line=found["line"])
        if not ended.done():
            ended.set_exception(error)

    async def failed(error: JsonObject) -> None:
        raised = thrown({**error, "message": f"{error.get('message', '')} ({file}:{error['line']})"})
        if not ended.done():
            ended.set_exception(raised)

    return {"registered": registered, "unusable": unusable, "failed": failed}


def _retrieve(outcome: "asyncio.Future[Any]") -> None:
    """Mark the error of a start whose host ended as retrieved: the next call of a function restarts it."""
    if not outcome.cancelled():
        outcome.exception()


def _shown(details: _Details) -> str:
    kind, name, *more = details
    what = more[0].get("name") if isinstance(more[0], Mapping) else more[0]
    return f"{kind} {name} ({what})"


def _is_of_system(error: JsonObject) -> bool:
    """Return whether the author did not choose the code: ENOENT, ERR_INVALID_URL, or the default E_TOOL."""
    code = str(error["code"])
    is_default = code == ToolError.code and error.get("name") != ToolError.__name__
    return (
        is_default or code.startswith("ERR_") or (code.startswith("E") and code.isalnum() and code.isupper())
    )
