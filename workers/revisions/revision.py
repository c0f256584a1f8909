"""One revision of the bundle in a worker process."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.authoring.entry import EntryModules, handlers_in
from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.names import EVENT_TOOL
from goondan_tasks.machine import sandbox
from goondan_tasks.machine.javascript import is_javascript
from goondan_tasks.revisions.checkouts import Checkout
from workers.call_executor import CallExecutor
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.loader import ExtensionLoader
from workers.javascript.tools import Hosts
from workers.processes.isolation import Children
from workers.thinking.model_providers import ModelProviders
from workers.tools.registry import Registry
from workers.turns.steps import Steps


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision: its tools, its extensions and their executor."""

    #: its :class:`~goondan_tasks.revisions.content.BundleRef`; ``None`` where revisions are not followed and
    #: the worker keeps the bundle it started with
    ref: str | None
    bundle: Bundle
    registry: Registry
    extensions: ExtensionLoader
    steps: Steps
    executor: CallExecutor
    models: ModelProviders
    children: Children
    hosts: Hosts
    modules: EntryModules
    event_loop: EventLoopThread
    #: its files; ``None`` if they are in the bundle's own folder
    checkout: Checkout | None
    #: whether goondan dev imported its entries in a child process before it proposed the revision
    is_tried: bool = False

    def try_out(self, agents: Iterable[str]) -> None:
        """Import the entries, extensions and tools of agents in a child process, in case one kills it.

        Isolated tools are left out, because they never run in this process. Files are tried once.

        Raises:
            EntryError: importing a file kills the process or takes too long.
            BundleRevisionUnavailableError: no process can be started for now.
        """
        if self.is_tried:
            return
        root, files = self.bundle.root.resolve(), list[Path]()
        for agent in filter(self.bundle.agents.__contains__, agents):
            entry = self.bundle.agents[agent].spec.entry
            files += [(root / entry).resolve()] if entry else []
            files += [extension.entry_path for extension in self.bundle.bound_extensions(agent)]
            files += self._tool_files(agent)
        # built-in files come with the worker, and JavaScript is imported by a host process
        own = (file for file in files if file.is_relative_to(root) and not is_javascript(file))
        self.registry.files.try_out(own)

    def _tool_files(self, agent: str) -> list[Path]:
        tools = (self.registry.catalog(agent) or {}).values()
        return [
            tool.entry_path
            for tool in tools
            if tool.export.isolation != "process" and not is_javascript(tool.entry_path)
        ]

    def prepare(self, agents: Iterable[str]) -> None:
        """Load the entries and extensions of agents; agents that the revision lacks are skipped.

        Raises:
            ConfigError: an entry or extension cannot be used.
        """
        present = [agent for agent in agents if agent in self.bundle.agents]
        tools = [tool for agent in present for tool in self.bundle.bound_tools(agent).values()]
        if any(tool.export.sandbox for tool in tools):
            sandbox.require()
        for agent in filter(self.registry.handles_events, present):
            self.registry.tool(agent, EVENT_TOOL)
        for agent in present:
            self.extensions.load(agent)
        self.models.warm_up(present)

    def load_tools(self, agents: Iterable[str]) -> None:
        """Import the files of agents' tools, except isolated ones, ahead of their first calls.

        Raises:
            EntryError: a file cannot be imported, or takes too long.
            ToolNotFoundError: a file has no handler for an export.
        """
        for agent in agents:
            for file in self._tool_files(agent):
                self.registry.files.load(file, handlers_in)
            for name in self.registry.catalog(agent) or {}:
                self.registry.tool(agent, name)

    def close(self) -> None:
        """Release what belongs to this revision alone; none of its calls may still run. This blocks.

        Its extensions get an event and a few seconds. Then their registrations are removed, the processes of
        its isolated tools ended and its modules forgotten, and its files may be removed. A partly prepared
        revision can be closed, too; a second call does nothing.
        """
        self.extensions.unload()
        self.children.end_below(self.bundle.root.resolve())
        if not self.hosts.is_empty:
            self.event_loop.submit(self.hosts.close())
        if self.models.by_model:
            self.event_loop.submit(self.models.close())
        self.modules.close()
        if self.checkout is not None:
            self.checkout.close()
