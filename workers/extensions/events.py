"""What happens in this process, told to the extensions that listen: ``api.events``."""

import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future, wait
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import structlog

from goondan_tasks.messages import JsonObject
from workers.concurrency.beside_loop import is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.handlers import is_async_handler

logger = structlog.get_logger(__name__)

WORKER_STOPPING = "worker.stopping"
#: the last that an extension hears: its worker stops, or runs its revision of the bundle no more
EXTENSION_UNLOADING = "extension.unloading"
TOOL_CALLED = "tool.called"
TOOL_COMPLETED = "tool.completed"

Listener = Callable[[JsonObject], Any]

#: lets the process's event loop run a coroutine
Submit = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]


@dataclass(frozen=True, slots=True)
class _Heard:
    extension: str
    listener: Listener
    is_once: bool = False


class Events:
    """The listeners of every agent that a process serves."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        #: replaced, never changed: whoever emits reads it without the lock
        self._listeners: dict[tuple[str, str], tuple[_Heard, ...]] = {}
        #: what plain listeners are still to be told
        self._untold: deque[Callable[[], object]] = deque()
        self._is_telling = False

    def has(self, agent: str, name: str) -> bool:
        """Say whether anybody listens."""
        return (agent, name) in self._listeners

    def on(
        self, agent: str, name: str, listener: Listener, *, extension: str, is_once: bool = False
    ) -> Callable[[], None]:
        """Call ``listener`` with each event of an agent, or with the next one; return what ends that.

        Raises:
            TypeError: it is no function.
        """
        if not callable(listener):
            raise TypeError(f"a listener is a function, not {type(listener).__name__}")
        heard = _Heard(extension, listener, is_once)
        with self._lock:
            self._listeners[agent, name] = (*self._listeners.get((agent, name), ()), heard)

        def end() -> None:
            self._forget((agent, name), heard)

        return end

    def off(self, agent: str, name: str, listener: Listener) -> None:
        """Call ``listener`` no more, however often it was given to :meth:`on`."""
        for heard in self._listeners.get((agent, name), ()):
            if heard.listener == listener:
                self._forget((agent, name), heard)

    def emit(self, agent: str, name: str, event: Mapping[str, Any] | None = None) -> "list[Future[Any]]":
        """Tell whoever listens, each with a dict of its own; return what still runs on the event loop.

        Plain listeners may block: those that would be told on the event loop are told beside it, one after
        another. What a listener raises is logged.
        """
        running: list[Future[Any]] = []
        for heard in self._listeners.get((agent, name), ()):
            if heard.is_once and not self._forget((agent, name), heard):
                continue
            tell = partial(self._tell, heard, _Logged(agent, name, heard.extension), dict(event or {}))
            if is_on_loop() and not is_async_handler(heard.listener):
                self._tell_beside_loop(partial(copy_context().run, tell))
            else:
                running += tell()
        return running

    def _tell(self, heard: _Heard, logged: "_Logged", event: JsonObject) -> "list[Future[Any]]":
        with logged:
            told = heard.listener(event)
            if inspect.isawaitable(told):
                return [self._submit(_heard_out(told, logged))]
        return []

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
        """Tell every agent's extensions that the worker stops, and let them take so long over it."""
        told = [key for key in list(self._listeners) if key[1] in {WORKER_STOPPING, EXTENSION_UNLOADING}]
        wait([future for agent, name in told for future in self.emit(agent, name)], timeout=seconds)

    def unload(self, agents: Collection[str], seconds: float) -> None:
        """Tell agents' extensions that they are not needed any more, and let them take so long over it.

        Each is told on a thread of its own: one that hangs must not keep the others from tidying up.
        """
        told = [
            self._told_apart(heard, _Logged(agent, EXTENSION_UNLOADING, heard.extension), seconds)
            for agent in agents
            for heard in self._listeners.get((agent, EXTENSION_UNLOADING), ())
        ]
        wait(told, timeout=seconds)

    def _told_apart(self, heard: _Heard, logged: "_Logged", seconds: float) -> "Future[None]":
        ended: Future[None] = Future()

        def tell() -> None:
            wait(self._tell(heard, logged, {}), timeout=seconds)
            ended.set_result(None)

        on_new_thread(tell)
        return ended

    def clear(self, agent: str) -> None:
        """Take all listeners of an agent away."""
        with self._lock:
            self._listeners = {key: heard for key, heard in self._listeners.items() if key[0] != agent}

    def _forget(self, key: tuple[str, str], heard: _Heard) -> bool:
        """Tell a listener nothing more; say whether it was there."""
        with self._lock:
            present = self._listeners.get(key, ())
            left = tuple(one for one in present if one is not heard)
            if left:
                self._listeners[key] = left
            else:
                self._listeners.pop(key, None)
        return len(left) < len(present)


async def _heard_out(told: Awaitable[Any], logged: "_Logged") -> None:
    with logged:
        await told


@dataclass(frozen=True, slots=True)
class _Logged:
    """Logs what a listener raises: nobody else should suffer from it."""

    agent: str
    event: str
    extension: str

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        logger.warning(
            "extension.listener_failed",
            extension=self.extension,
            agent=self.agent,
            on=self.event,
            exc_info=error,
        )
        return True
