"""The events of this process and their listeners (``api.events``), and the call that runs at the moment."""

import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from goondan_tasks.calls import Run
from goondan_tasks.errors import GoondanError
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.steps import StepRecord
from workers.concurrency.event_loop import is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.handlers import is_async_handler
from workers.job import Job, JobState
from workers.outcome import FunctionOutcome, awaited_outcome, outcome_of

logger = structlog.get_logger(__name__)

TURN_STARTED = "turn.started"
TURN_COMPLETED = "turn.completed"
TURN_FAILED = "turn.failed"
STEP_STARTED = "step.started"
STEP_COMPLETED = "step.completed"
TOOL_CALLED = "tool.called"
TOOL_COMPLETED = "tool.completed"
WORKER_STOPPING = "worker.stopping"
#: the last event of an extension: its worker stops, or its revision of the bundle is closed
EXTENSION_UNLOADING = "extension.unloading"

Listener = Callable[[JsonObject], Any]

#: lets the process's event loop run a coroutine
Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]

#: the call, event or opening of a Step that is running; ``None`` in ``register`` and in the background
running: ContextVar[Run | Job | None] = ContextVar("running", default=None)


def running_log_fields() -> JsonObject:
    """Return the fields of log lines about the call that is running, if any."""
    run = running.get()
    if isinstance(run, Job):  # its thread goes on with others when its handler has ended
        return {} if run.state is JobState.ENDED else run.log_fields.known()
    return {} if run is None else run.log_fields


def running_call() -> ToolCall | None:
    """Return the call that is running, if any."""
    run = running.get()
    if run is None:
        return None
    return (run.claim.run if isinstance(run, Job) else run).call


def running_for(agent: str) -> ToolCall | None:
    """Return the call that is running, if it is a call of ``agent``."""
    call = running_call()
    return call if call is not None and call.agent_name == agent else None


@dataclass(frozen=True, slots=True)
class _Registered:
    """A listener; what it raises is logged, and nothing comes of it."""

    agent: str
    event: str
    extension: str
    listener: Listener
    is_once: bool = False

    def tell(self, event: JsonObject) -> Any:
        """Call it; return what is to be awaited, if anything."""
        return self._heard(outcome_of(partial(self.listener, event)))

    async def hear_out(self, coming: Awaitable[Any]) -> None:
        """Await what it has returned."""
        self._heard(await awaited_outcome(coming))

    def _heard(self, outcome: FunctionOutcome[Any]) -> Any:
        if outcome.error is None:
            return outcome.get()
        fields = {"extension": self.extension, "agent": self.agent, "on": self.event}
        logger.warning("extension.listener_failed", **fields, exc_info=outcome.error)
        return None


class EventListeners:
    """The listeners of every agent that a process serves."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        #: replaced and never changed, so that it is read without the lock
        self._listeners: dict[tuple[str, str], tuple[_Registered, ...]] = {}
        #: grows with every change
        self.version = 0
        #: pending calls of plain listeners
        self._untold: deque[Callable[[], object]] = deque()
        self._is_telling = False

    def has(self, agent: str, name: str) -> bool:
        """Return whether there is a listener."""
        return (agent, name) in self._listeners

    def on(
        self, agent: str, name: str, listener: Listener, *, extension: str, is_once: bool = False
    ) -> Callable[[], None]:
        """Call ``listener`` with each event of an agent, or with the next one; return what removes it.

        Raises:
            TypeError: it is not a function.
        """
        if not callable(listener):
            raise TypeError(f"a listener is a function, not {type(listener).__name__}")
        registered = _Registered(agent, name, extension, listener, is_once)
        with self._lock:
            self._listeners[agent, name] = (*self._listeners.get((agent, name), ()), registered)
            self.version += 1

        def end() -> None:
            self._forget(registered)

        return end

    def off(self, agent: str, name: str, listener: Listener) -> None:
        """Remove ``listener``, however often it was registered."""
        for one in self._listeners.get((agent, name), ()):
            if one.listener == listener:
                self._forget(one)

    def emit(self, agent: str, name: str, event: Mapping[str, Any] | None = None) -> "list[Future[Any]]":
        """Call the listeners, each with a dict of its own; return what still runs on the event loop.

        On the event loop, plain listeners, which may block, are called on another thread, one after another.
        What a listener raises is logged.
        """
        pending: list[Future[Any]] = []
        for one in self._listeners.get((agent, name), ()):
            if one.is_once and not self._forget(one):
                continue
            tell = partial(self._tell, one, dict(event or {}))
            if is_on_loop() and not is_async_handler(one.listener):
                self._tell_beside_loop(partial(copy_context().run, tell))
            else:
                pending += tell()
        return pending

    def _tell(self, one: _Registered, event: JsonObject) -> "list[Future[Any]]":
        told = one.tell(event)
        return [self._submit(one.hear_out(told))] if inspect.isawaitable(told) else []

    def _tell_beside_loop(self, tell: Callable[[], object]) -> None:
        with self._lock:
            self._untold.append(tell)
            if self._is_telling:
                return
            self._is_telling = True
        on_new_thread(self._tell_all)

    def _tell_all(self) -> None:
        while True:
            with self._lock:
                if not self._untold:
                    self._is_telling = False
                    return
                tell = self._untold.popleft()
            tell()

    def stop(self, seconds: float) -> None:
        """Tell every agent's extensions that the worker stops, and wait for them for so long."""
        told = [key for key in list(self._listeners) if key[1] in {WORKER_STOPPING, EXTENSION_UNLOADING}]
        wait([future for agent, name in told for future in self.emit(agent, name)], timeout=seconds)

    def unload(self, agents: Collection[str], seconds: float) -> None:
        """Tell agents' extensions that they are unloaded, and wait for them for so long.

        Each runs on its own thread, so that one that hangs does not keep the others from cleaning up.
        """
        told = [
            self._told_apart(one, seconds)
            for agent in agents
            for one in self._listeners.get((agent, EXTENSION_UNLOADING), ())
        ]
        wait(told, timeout=seconds)

    def _told_apart(self, one: _Registered, seconds: float) -> "Future[None]":
        ended: Future[None] = Future()

        def tell() -> None:
            wait(self._tell(one, {}), timeout=seconds)
            ended.set_result(None)

        on_new_thread(tell)
        return ended

    def clear(self, agent: str) -> None:
        """Remove all listeners of an agent."""
        with self._lock:
            self._listeners = {key: found for key, found in self._listeners.items() if key[0] != agent}

    def _forget(self, registered: _Registered) -> bool:
        """Remove a listener; return whether it was there."""
        key = (registered.agent, registered.event)
        with self._lock:
            present = self._listeners.get(key, ())
            left = tuple(one for one in present if one is not registered)
            if left:
                self._listeners[key] = left
            else:
                self._listeners.pop(key, None)
            self.version += 1
        return len(left) < len(present)


def tell_called(events: EventListeners, call: ToolCall) -> None:
    """Emit ``tool.called``: a call is about to pass the middlewares."""
    if events.has(call.agent_name, TOOL_CALLED):
        events.emit(call.agent_name, TOOL_CALLED, _about_tool(call))


def tell_completed(events: EventListeners, call: ToolCall, result: ToolCallResult) -> None:
    """Emit ``tool.completed`` with the result of a call."""
    if events.has(call.agent_name, TOOL_COMPLETED):
        code = None if result.error is None else result.error.code
        ended = {"status": result.status, "code": code, "durationMs": result.meta.duration_ms}
        events.emit(call.agent_name, TOOL_COMPLETED, {**_about_tool(call), **ended})


def tell_of_turn(
    events: EventListeners, name: str, call: ToolCall, error: BaseException | None = None
) -> None:
    """Emit that the Turn of an agent's entry has begun, ended or failed."""
    if events.has(call.agent_name, name):
        about = _about(call)
        if error is not None:
            code = error.code if isinstance(error, GoondanError) else None
            about |= {"error": type(error).__name__, "code": code}
        events.emit(call.agent_name, name, about)


def tell_of_step(events: EventListeners, name: str, record: StepRecord) -> None:
    """Emit that a Step has opened, or has succeeded."""
    if events.has(record.agent_name, name):
        about = {**_about(record), "stepId": record.id, "stepIndex": record.index}
        events.emit(record.agent_name, name, about)


def _about(what: ToolCall | StepRecord) -> JsonObject:
    return {
        "agentName": what.agent_name,
        "instanceKey": what.instance_key,
        "turnId": what.turn_id,
        "traceId": what.trace_id,
    }


def _about_tool(call: ToolCall) -> JsonObject:
    tool = {"stepId": call.step_id, "toolCallId": call.shown_id, "toolName": call.tool_name}
    return {**_about(call), **tool}
