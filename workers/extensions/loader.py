"""Loads the extensions of a process's agents: all of an agent's extensions, or none (003 §6.4, §10)."""

import contextvars
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from goondan_tasks.authoring.entry import EntryError, line_in, register_in
from goondan_tasks.bundle import BoundExtension, Bundle
from goondan_tasks.contract.errors import ConfigError, ExtensionInitError, ExtensionLoadError
from goondan_tasks.contract.failure import named_error
from goondan_tasks.contract.messages import JsonObject, faults_of
from goondan_tasks.machine.javascript import is_javascript
from workers.concurrency.event_loop import EventLoopThread
from workers.concurrency.threads import coming_outcome
from workers.extensions.api import ExtensionServices
from workers.javascript.extensions import ThrownError, register_of
from workers.javascript.host import HostEndedError
from workers.javascript.tools import HostedTools
from workers.outcome import FunctionOutcome, awaited_outcome
from workers.tools.entry_files import IMPORT_SECONDS, EntryFiles

logger = structlog.get_logger(__name__)

#: the limit of an extension's ``register``, once it is imported
REGISTER_SECONDS = IMPORT_SECONDS
#: how long extensions may take to clean up
UNLOAD_SECONDS = 5.0

LONGEST_REASON = 300


@dataclass(eq=False)
class ExtensionLoader:
    """Calls ``register`` of each agent's extensions once, in the order in which the agent declares them."""

    bundle: Bundle
    services: ExtensionServices
    event_loop: EventLoopThread
    files: EntryFiles
    hosted: HostedTools
    seconds: float = REGISTER_SECONDS
    _locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    _loaded: dict[str, ConfigError | None] = field(default_factory=dict)

    def load(self, agent: str) -> None:
        """Load an agent's extensions once; this blocks until all have registered.

        If one fails, all of them are unloaded, and later calls fail, too.

        Raises:
            ExtensionLoadError: a file cannot be loaded.
            ExtensionInitError: a ``register`` failed or took too long.
        """
        if agent not in self._loaded:
            with self._locks[agent]:
                if agent not in self._loaded:
                    self._loaded[agent] = self._load(agent)
        error = self._loaded[agent]
        if error is not None:
            raise error

    def unload(self) -> None:
        """Unload the extensions of all agents; this blocks while they clean up."""
        self.services.unload(list(self._loaded), UNLOAD_SECONDS)

    def _load(self, agent: str) -> ConfigError | None:
        extensions = self.bundle.bound_extensions(agent) if agent in self.bundle.agents else ()
        for extension in extensions:
            try:
                self._register(agent, extension)
            except ConfigError as error:
                self.services.unload([agent], UNLOAD_SECONDS)
                return error
        return None

    def _register(self, agent: str, extension: BoundExtension) -> None:
        begun = time.monotonic()
        where = f"Extension '{extension.name}' of agent '{agent}'"
        register = self._imported(extension, where)
        api = self.services.api(agent, extension, self.bundle)
        outcome = self._run_register(lambda: register(api, extension.config))
        if outcome is None:
            raise ExtensionInitError(f"{where}: register did not end within {self.seconds:g} s")
        if isinstance(outcome.error, EntryError):
            raise _not_loaded(where, outcome.error) from outcome.error
        if isinstance(outcome.error, HostEndedError):
            message = f"{where}: register did not end. {outcome.error.message}"
            raise ExtensionInitError(message) from outcome.error
        if outcome.error is not None:
            logger.error("extension.failed", extension=extension.name, agent=agent, exc_info=outcome.error)
            message = f"{where}: register raised {_describe(outcome.error, extension.entry_path)}"
            suggestion = outcome.error.suggestion if isinstance(outcome.error, ConfigError) else None
            raise ExtensionInitError(message, suggestion=suggestion) from outcome.error
        seconds = round(time.monotonic() - begun, 3)
        logger.info("extension.loaded", extension=extension.name, agent=agent, seconds=seconds)

    def _imported(self, extension: BoundExtension, where: str) -> Callable[[Any, JsonObject], Any]:
        try:
            if is_javascript(extension.entry_path):
                return register_of(self.hosted, extension)
            return self.files.load(extension.entry_path, register_in)
        except EntryError as error:
            raise _not_loaded(where, error) from error

    def _run_register(self, register: Callable[[], Any]) -> FunctionOutcome[Any] | None:
        """Run ``register`` to its end; return ``None`` if it takes too long."""
        try:
            outcome = coming_outcome(register).result(self.seconds)
        except TimeoutError:
            return None
        if outcome.error is not None:
            return outcome
        value = outcome.get()
        if not inspect.isawaitable(value):
            return outcome
        # without the context of this thread, which may still name a call
        rest = contextvars.Context().run(self.event_loop.submit, awaited_outcome(value))
        try:
            return rest.result(self.seconds)
        except TimeoutError:
            rest.cancel()
            return None


def _not_loaded(where: str, error: EntryError) -> ExtensionLoadError:
    return ExtensionLoadError(f"{where}: {error.message}", suggestion=error.suggestion)


def _describe(error: BaseException, path: Path) -> str:
    """Return the exception, and its line in the extension's own file."""
    described = named_error(error)
    if isinstance(error, ValidationError):
        described = f"{type(error).__name__}: {faults_of(error)}"
    raised = described.partition("\n")[0][:LONGEST_REASON]
    if isinstance(error, ThrownError):  # its message has file and line
        return raised
    return f"{raised} ({path}:{line_in(path, error.__traceback__)})"
