"""The Tool Registry: every tool this worker can run, with its handler (001 §12.1)."""

import functools
import math
from collections.abc import Callable, Mapping

from goondan_tasks.authoring.entry import handlers_in
from goondan_tasks.bundle import BoundTool, Bundle, build_catalog
from goondan_tasks.contract.catalog import CatalogItem
from goondan_tasks.contract.errors import ToolNotFoundError
from goondan_tasks.contract.names import EVENT_TOOLS
from goondan_tasks.contract.schema import compile_schema
from goondan_tasks.ledger.limiter import Limits
from goondan_tasks.machine.javascript import is_javascript
from workers.cancellation import Cancellation
from workers.handlers import find_handler, is_async_handler
from workers.javascript.tools import HostedTools
from workers.processes.isolation import IsolatedTool, Isolation
from workers.tools.dynamic_tools import DynamicTools, TurnKey
from workers.tools.entry_files import EntryFiles
from workers.tools.registered_tool import RegisteredTool
from workers.tools.system_tools import bound_agent, load_agent


class Registry:
    """The tools of a bundle, and those that extensions register at run time.

    An entry file is loaded when one of its tools is first called; that of an isolated tool, in another
    process. ``system_tools`` can be called for every agent and are in no catalog. To the ledger an agent that
    handles its events is a tool, too.
    """

    def __init__(
        self,
        bundle: Bundle,
        isolation: Isolation,
        hosted: HostedTools,
        system_tools: Mapping[str, RegisteredTool] | None = None,
        *,
        is_open: bool = False,
    ) -> None:
        self.bundle = bundle
        self._isolation = isolation
        #: tools in TypeScript and JavaScript
        self.hosted = hosted
        self._system_tools = system_tools or {}
        #: tools of extensions
        self.dynamic = DynamicTools()
        #: whether the Swarm's policy permits calls of every tool, in the catalog or not
        self.is_open = is_open
        self._declared_items = functools.cache(lambda agent: build_catalog(bundle, agent).items)
        self._tools_of = functools.cache(bundle.bound_tools)
        self._agent_tool = functools.cache(functools.partial(bound_agent, bundle))
        self._registered: dict[tuple[str, str], RegisteredTool] = {}
        self._limits: dict[tuple[str, str], Limits] = {}
        #: entry files of tools, agents and extensions
        self.files = EntryFiles()

    def catalog(self, agent: str) -> Mapping[str, BoundTool] | None:
        """Return the tools that the Agent's ``spec.tools`` declares, by full name (001 §12.1 r2).

        ``None`` if the bundle has no such agent.
        """
        return self._tools_of(agent) if agent in self.bundle.agents else None

    @property
    def version(self) -> int:
        """A number that grows whenever :meth:`items` or :meth:`known` may have changed."""
        return self.dynamic.version

    def items(self, agent: str, turn: TurnKey | None = None) -> tuple[CatalogItem, ...]:
        """Return an agent's tools in this worker now, or in a Turn, as the model sees them.

        Declared tools come first, then dynamic ones in the order of :class:`DynamicTools`.

        Raises:
            AgentNotFoundError: the bundle has no such agent.
        """
        dynamic = self.dynamic.shown(agent, turn).values()
        return self._declared_items(agent) + tuple(tool.item for tool in dynamic)

    def is_offered(self, agent: str, name: str) -> bool:
        """Return whether a tool is in :meth:`items`, without building that list."""
        return name in (self.catalog(agent) or ()) or name in self.dynamic.of(agent)

    def all_known(self, agent: str) -> Mapping[str, BoundTool]:
        """Return the tools of :meth:`known` by full name, without the system's and those of Turns."""
        models = {name: tool.bound for name, tool in self._system_tools.items() if tool.bound.export.retry}
        declared = {**models, **self.bundle.all_tools(), **(self.catalog(agent) or {})}
        dynamic = self.dynamic.of(agent).items()
        return {**declared, **{name: tool.registered.bound for name, tool in dynamic}}

    def known(self, agent: str, name: str, turn: TurnKey | None = None) -> BoundTool | None:
        """Return a tool that this worker can run for the agent, or in one of its Turns.

        It may be any tool of the bundle, whether the Agent declares it or not (001 §12.1): the guard decides
        which ones may be called.
        """
        return self.offered(agent, name, turn) or self.of_bundle(agent, name)

    def offered(self, agent: str, name: str, turn: TurnKey | None = None) -> BoundTool | None:
        """Return a tool that the agent declares, or that extensions have registered for it or in a Turn."""
        dynamic = self.dynamic.find(agent, name, turn)
        return self.bound(agent, name) if dynamic is None else dynamic.registered.bound

    def bound(self, agent: str, name: str, turn: TurnKey | None = None) -> BoundTool | None:
        """Return a tool that may be called for the agent without a Step.

        Those are the tools that the Agent declares, those of extensions registered outside of a Turn, Step or
        tool call, and the system's; with an open policy all tools, those of the call's ``turn`` included.
        """
        catalog = self.catalog(agent)
        if catalog is None:
            return None
        if name in EVENT_TOOLS:
            return self._agent_tool(agent)
        if name in catalog:
            return catalog[name]
        if name in self._system_tools:
            return self._system_tools[name].bound
        dynamic = self.dynamic.find(agent, name, turn if self.is_open else None)
        if dynamic is not None:
            return dynamic.registered.bound
        return self.of_bundle(agent, name) if self.is_open else None

    def of_bundle(self, agent: str, name: str) -> BoundTool | None:
        """Return a tool of the bundle, with the agent's overrides; ``None`` if a dynamic one replaces it."""
        catalog = self.catalog(agent)
        if catalog is None or name in catalog:
            return (catalog or {}).get(name)
        return None if name in self.dynamic.of(agent) else self.bundle.all_tools().get(name)

    def limits(self, agent: str, name: str, *, in_step: bool = True) -> Limits | None:
        """Return the limits of a tool of the bundle; ``None`` for any other tool.

        Calls that are refused do not count: those without a Step of a tool that the agent does not declare.
        """
        # looked up each time: a dynamic tool may have replaced it
        system = self._system_tools.get(name)
        bound = self.of_bundle(agent, name) if system is None else system.bound
        is_callable = in_step or self.is_open or system or name in (self.catalog(agent) or ())
        if bound is None or not is_callable:
            return None
        tokens = None if system is None else system.tokens
        made = self._limits.get((agent, name)) or Limits.of(bound, tokens=tokens)
        return self._limits.setdefault((agent, name), made)

    def add_system_tool(self, tool: RegisteredTool) -> None:
        """Add one of the system's tools."""
        self._system_tools = {**self._system_tools, tool.bound.name: tool}

    def is_extended(self, agent: str) -> bool:
        """Return whether an agent has extensions: only they run code around Steps, or register tools."""
        return bool(self.bundle.bound_extensions(agent))

    def handles_events(self, agent: str) -> bool:
        """Return whether workers handle an agent's events: it has an entry, or thinks."""
        return agent in self.bundle.agents and self._agent_tool(agent) is not None

    def ready(self, agent: str, name: str, turn: TurnKey | None = None) -> RegisteredTool | None:
        """Return a known tool if :meth:`tool` does not have to load it."""
        dynamic = self.dynamic.find(agent, name, turn)
        if dynamic is not None:
            return dynamic.registered
        return self._registered.get((agent, name)) or self._system_tools.get(name)

    def tool(
        self,
        agent: str,
        name: str,
        *,
        turn: TurnKey | None = None,
        limit: Callable[[BoundTool], float] = lambda _: math.inf,
        cancellation: Cancellation | None = None,
    ) -> RegisteredTool:
        """Return a known tool, ready to run; this may block.

        The import of its file is limited by the tool's ``limit``, in seconds, and ends with a cancel of the
        call; see :class:`workers.tools.entry_files.EntryFiles`.

        Raises:
            ToolNotFoundError: the file exports no handler for it, or its extension has unregistered it.
            ToolTimeoutError: importing the file takes too long.
            GoondanError: the error that the call was cancelled with.
            Exception: any error of the file's own code.
        """
        found = self.ready(agent, name, turn)
        if found is not None:
            return found
        if name in EVENT_TOOLS:
            return self._registered.setdefault((agent, name), load_agent(self.bundle, agent, self.files))
        bound = self.of_bundle(agent, name)
        if bound is None:
            raise ToolNotFoundError(f"Tool {name!r} is gone: its extension has unregistered it.")
        tool = self._load(bound, limit, cancellation or Cancellation())
        return self._registered.setdefault((agent, name), tool)

    def _load(
        self, bound: BoundTool, limit: Callable[[BoundTool], float], cancellation: Cancellation
    ) -> RegisteredTool:
        arguments = compile_schema(bound.export.parameters)
        if is_javascript(bound.entry_path):
            return RegisteredTool(bound, self.hosted.tool(bound), arguments, is_async=True)
        if bound.export.isolation == "process":
            return RegisteredTool(bound, IsolatedTool(bound, self._isolation), arguments, is_async=False)
        handler = find_handler(
            bound.entry_path,
            bound.name,
            bound.export.name,
            load=lambda path: self.files.load_for_call(
                path, handlers_in, seconds=limit(bound), cancellation=cancellation
            ),
        )
        return RegisteredTool(bound, handler, arguments, is_async_handler(handler))
