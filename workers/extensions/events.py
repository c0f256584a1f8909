"""The events of this process and their listeners (``api.events``), and the current call."""

import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import structlog

from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.history import StepRecord
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
#: the last event of an extension: its worker is stopping, or its revision of the bundle is being closed
EXTENSION_UNLOADING = "extension.unloading"

Listener = Callable[[JsonObject], Any]

#: runs a coroutine on the process's event loop
Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]

#: the current call, event or opening of a Step; ``None`` in ``register`` and in background threads
running: ContextVar[Job | None] = ContextVar("running", default=None)


def running_log_fields() -> JsonObject:
    """Return the log fields of the current call, if any."""
    job = running.get()
    # after its handler has ended, its thread runs other calls
    return {} if job is None or job.state is JobState.ENDED else job.log_fields.known()


def running_call() -> ToolCall | None:
    """Return the current call, if any."""
    job = running.get()
    return None if job is None else job.claim.run.call


def running_for(agent: str) -> ToolCall | None:
    """Return the current call if it is a call of ``agent``."""
    call = running_call()
    return call if call is not None and call.agent_name == agent else None


@dataclass(frozen=True, slots=True)
class _Registration:
    """A registered listener; its exceptions are logged."""

    agent: str
    event: str
    extension: str
    listener: Listener
    is_once: bool = False

    def call(self, event: JsonObject) -> Any:
        """Call the listener and return its answer, which may be awaitable."""
        return self._answer(outcome_of(partial(self.listener, event)))

    async def finish(self, answer: Awaitable[Any]) -> None:
        self._answer(await awaited_outcome(answer))

    def _answer(self, outcome: FunctionOutcome[Any]) -> Any:
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
        #: the tuples are replaced, never changed, so that reading needs no lock
        self._listeners: dict[tuple[str, str], tuple[_Registration, ...]] = {}
        #: grows with every change
        self.version = 0
        #: calls of plain listeners that wait for the thread below
        self._queued: deque[Callable[[], object]] = deque()
        self._has_thread = False

    def has(self, agent: str, name: str) -> bool:
        return (agent, name) in self._listeners

    def on(
        self, agent: str, name: str, listener: Listener, *, extension: str, is_once: bool = False
    ) -> Callable[[], None]:
        """Call ``listener`` with each event of an agent, or only the next; return a function that removes it.

        Raises:
            TypeError: it is not a function.
        """
        if not callable(listener):
            raise TypeError(f"a listener is a function, not {type(listener).__name__}")
        registration = _Registration(agent, name, extension, listener, is_once)
        with self._lock:
            self._listeners[agent, name] = (*self._listeners.get((agent, name), ()), registration)
            self.version += 1

        def end() -> None:
            self._remove(registration)

        return end

    def off(self, agent: str, name: str, listener: Listener) -> None:
        """Remove ``listener``, however often it was registered."""
        for one in self._listeners.get((agent, name), ()):
            if one.listener == listener:
                self._remove(one)

    def emit(self, agent: str, name: str, event: Mapping[str, Any] | None = None) -> "list[Future[Any]]":
        """Call the listeners, each with a dict of its own; return the futures of async ones.

        On the event loop, plain listeners, which may block, are called on another thread, one after another.
        Exceptions of listeners are logged.
        """
        pending: list[Future[Any]] = []
        for one in self._listeners.get((agent, name), ()):
            if one.is_once and not self._remove(one):
                continue
            call = partial(self._call, one, dict(event or {}))
            if is_on_loop() and not is_async_handler(one.listener):
                self._call_beside_loop(partial(copy_context().run, call))
            else:
                pending += call()
        return pending

    def _call(self, one: _Registration, event: JsonObject) -> "list[Future[Any]]":
        answer = one.call(event)
        return [self._submit(one.finish(answer))] if inspect.isawaitable(answer) else []

    def _call_beside_loop(self, call: Callable[[], object]) -> None:
        with self._lock:
            self._queued.append(call)
            if self._has_thread:
                return
            self._has_thread = True
        on_new_thread(self._call_queued)

    def _call_queued(self) -> None:
        while True:
            with self._lock:
                if not self._queued:
                    self._has_thread = False
                    return
                call = self._queued.popleft()
            call()

    def stop(self, seconds: float) -> None:
        """Tell all extensions that the worker is stopping, and wait up to ``seconds`` for them.

        Their last event follows when they have handled this one, after half the time at the latest.
        """
        agents, end = dict.fromkeys(agent for agent, _ in list(self._listeners)), monotonic() + seconds
        stopping = self._tell(agents, WORKER_STOPPING, seconds)
        wait(stopping, timeout=seconds / 2)
        unloading = self._tell(agents, EXTENSION_UNLOADING, seconds)
        wait(stopping + unloading, timeout=max(0.0, end - monotonic()))

    def unload(self, agents: Collection[str], seconds: float) -> None:
        """Tell agents' extensions that they are unloaded, and wait up to ``seconds`` for them."""
        wait(self._tell(agents, EXTENSION_UNLOADING, seconds), timeout=seconds)

    def _tell(self, agents: Collection[str], name: str, seconds: float) -> "list[Future[None]]":
        """Call each listener on a thread of its own, so that one that hangs keeps no other from the event."""
        return [
            self._call_on_thread(one, seconds)
            for agent in agents
            for one in self._listeners.get((agent, name), ())
            if not one.is_once or self._remove(one)
        ]

    def _call_on_thread(self, one: _Registration, seconds: float) -> "Future[None]":
        ended: Future[None] = Future()

        def call() -> None:
            wait(self._call(one, {}), timeout=seconds)
            ended.set_result(None)

        on_new_thread(call)
        return ended

    def clear(self, agent: str) -> None:
        with self._lock:
            self._listeners = {key: found for key, found in self._listeners.items() if key[0] != agent}
            self.version += 1

    def _remove(self, registration: _Registration) -> bool:
        """Remove a listener; return whether it was registered."""
        key = (registration.agent, registration.event)
        with self._lock:
            present = self._listeners.get(key, ())
            left = tuple(one for one in present if one is not registration)
            if left:
                self._listeners[key] = left
            else:
                self._listeners.pop(key, None)
            self.version += 1
        return len(left) < len(present)


def tell_called(events: EventListeners, call: ToolCall) -> None:
    """Emit ``tool.called`` before a call enters the middlewares."""
    if events.has(call.agent_name, TOOL_CALLED):
        events.emit(call.agent_name, TOOL_CALLED, _about_tool(call))


def tell_completed(events: EventListeners, call: ToolCall, result: ToolCallResult) -> None:
    """Emit ``tool.completed`` with the result of a call."""
    if events.has(call.agent_name, TOOL_COMPLETED):
        code = None if result.error is None else result.error.code
        outcome = {"status": result.status, "code": code, "durationMs": result.meta.duration_ms}
        events.emit(call.agent_name, TOOL_COMPLETED, {**_about_tool(call), **outcome})


def tell_of_turn(
    events: EventListeners, name: str, call: ToolCall, error: BaseException | None = None
) -> None:
    """Emit ``turn.started``, ``turn.completed`` or ``turn.failed``."""
    if events.has(call.agent_name, name):
        about = _about(call)
        if error is not None:
            code = error.code if isinstance(error, GoondanError) else None
            about |= {"error": type(error).__name__, "code": code}
        events.emit(call.agent_name, name, about)


def tell_of_step(events: EventListeners, name: str, record: StepRecord) -> None:
    """Emit ``step.started`` or ``step.completed``."""
    if events.has(record.agent_name, name):
        about = {**_about(record), "stepId": record.id, "stepIndex": record.index}
        events.emit(record.agent_name, name, about)


def _about(subject: ToolCall | StepRecord) -> JsonObject:
    return {
        "agentName": subject.agent_name,
        "instanceKey": subject.instance_key,
        "turnId": subject.turn_id,
        "traceId": subject.trace_id,
    }


def _about_tool(call: ToolCall) -> JsonObject:
    tool = {"stepId": call.step_id, "toolCallId": call.shown_id, "toolName": call.tool_name}
    return {**_about(call), **tool}
