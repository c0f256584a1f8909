"""The Tool Registry: every tool this worker can run, with its handler (001 §12.1)."""

import functools
import threading
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from goondan_tasks.bundle import BoundTool, Bundle
from goondan_tasks.names import EVENT_TOOLS
from goondan_tasks.schema import compile_schema
from workers.agent_tools import bound_agent, load_agent
from workers.handlers import find_handler, is_async_handler
from workers.isolation import Isolation
from workers.registered_tool import RegisteredTool


class Registry:
    """The tools of a bundle; an entry file is loaded when one of its tools is first called.

    An isolated tool's entry is not loaded in this process. ``system_tools`` can be called on behalf of every
    agent, though they stand in no catalog. To the ledger, an agent that handles its events is a tool as well.
    """

    def __init__(
        self,
        bundle: Bundle,
        isolation: Isolation,
        system_tools: Mapping[str, RegisteredTool] | None = None,
    ) -> None:
        self._bundle = bundle
        self._isolation = isolation
        self._system_tools = system_tools or {}
        self._tools_of = functools.cache(bundle.bound_tools)
        self._agent_tool = functools.cache(functools.partial(bound_agent, bundle))
        self._registered: dict[tuple[str, str], RegisteredTool] = {}
        # one lock a file: a file that hangs while it is imported stops only its own tools
        self._loading: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)

    def catalog(self, agent: str) -> Mapping[str, BoundTool] | None:
        """Return the tools that the Agent's ``spec.tools`` declares, by full name (001 §12.1 r2).

        ``None`` if the bundle has no such agent.
        """
        return self._tools_of(agent) if agent in self._bundle.agents else None

    def bound(self, agent: str, name: str) -> BoundTool | None:
        """Return a tool that may be called on behalf of the agent: of its catalog, or of the system."""
        catalog = self.catalog(agent)
        if catalog is None:
            return None
        if name in EVENT_TOOLS:
            return self._agent_tool(agent)
        if name in catalog or name not in self._system_tools:
            return catalog.get(name)
        return self._system_tools[name].bound

    def handles_events(self, agent: str) -> bool:
        """Say whether an agent's events are handled here: it has an entry."""
        return agent in self._bundle.agents and self._agent_tool(agent) is not None

    def tool(self, agent: str, name: str) -> RegisteredTool:
        """Return a tool that :meth:`bound` knows, ready to run.

        Raises:
            ToolNotFoundError: the file exports no handler for it.
            Exception: whatever the file's own code raises when it is imported.
        """
        found = self._registered.get((agent, name)) or self._system_tools.get(name)
        if found is not None:
            return found
        if name in EVENT_TOOLS:
            return self._registered.setdefault((agent, name), load_agent(self._bundle, agent))
        bound = self._tools_of(agent)[name]
        with self._loading[bound.entry_path]:
            return self._registered.setdefault((agent, name), self._load(bound))

    def _load(self, bound: BoundTool) -> RegisteredTool:
        arguments = compile_schema(bound.export.parameters)
        if bound.export.isolation == "process":
            return RegisteredTool(bound, self._isolation.tool(bound), arguments, is_async=False)
        handler = find_handler(bound.entry_path, bound.name, bound.export.name)
        return RegisteredTool(bound, handler, arguments, is_async_handler(handler))
