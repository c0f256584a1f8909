"""Tools that extensions register while they run (003 §10)."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from goondan_tasks.bundle import BoundTool, CatalogItem, ToolSource
from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.findings import field_faults
from goondan_tasks.bundle.resources import API_VERSION, ToolResource
from goondan_tasks.entry import takes
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.names import SYSTEM_TOOL, parse_tool_name
from goondan_tasks.redaction import KNOWN_SECRETS
from goondan_tasks.schema import compile_schema
from goondan_tasks.tool_api import ToolHandler
from goondan_tasks.wording import hint
from workers.handlers import is_async_handler
from workers.tools.registered_tool import RegisteredTool

logger = structlog.get_logger(__name__)

_ITEM_FIELDS = ("name", "description", "parameters", "source")
#: what may be said of a tool that no YAML declares
_POLICY_FIELDS = ("timeoutSeconds", "idempotent", "maxAttempts", "retry")

#: the instanceKey and the turnId of a Turn of an agent
TurnKey = tuple[str, str]

#: a process keeps the tools of so many Turns, those that have registered some last
MOST_TURNS = 1024


def turn_of(call: ToolCall) -> TurnKey:
    """Return the Turn that a call belongs to."""
    return call.instance_key, call.turn_id


@dataclass(frozen=True, slots=True)
class DynamicTool:
    """One of them."""

    item: CatalogItem
    registered: RegisteredTool
    extension: str
    #: in which it was registered, itself or in a Step or tool call of it; ``None``: it lasts
    turn: TurnKey | None = None


@dataclass(frozen=True, slots=True)
class ToolsOfTurn:
    """What one Turn has registered and unregistered, as far as a process knows."""

    #: those whose handlers it has
    tools: Mapping[str, DynamicTool] = field(default_factory=dict)
    #: the names of those that earlier Steps have registered in other processes
    elsewhere: frozenset[str] = frozenset()
    #: the names that were unregistered in it, and not registered again
    gone: frozenset[str] = frozenset()
    #: those of them that other processes cannot know of yet
    untold: frozenset[str] = frozenset()


class DynamicTools:
    """The dynamic tools of every agent that a process serves, in order of registration.

    Those of MCP servers come last, by name: they come as their servers start, in no order, and the model is
    to see the same catalog from Step to Step, in whatever worker one opens.

    What was registered in a Turn is that Turn's alone: its handler may have in hand what is no other's, such
    as a user's token. There it takes the place of a lasting one of its name. What was unregistered in a Turn
    is gone from that Turn alone, too, and its other workers are told with the next Step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: replaced, never changed: whoever calls tools reads them without the lock
        self._lasting: dict[str, Mapping[str, DynamicTool]] = {}
        self._of_turns: OrderedDict[tuple[str, TurnKey], ToolsOfTurn] = OrderedDict()
        #: grows with every change
        self.version = 0
        #: of how many Turns the tools are not kept any more
        self.forgotten = 0

    @property
    def has_turns(self) -> bool:
        """Whether any Turn has tools of its own here, or lacks some."""
        return bool(self._of_turns)

    def of(self, agent: str, turn: TurnKey | None = None) -> Mapping[str, DynamicTool]:
        """Return an agent's that last, or those that were registered in a Turn, by name."""
        return self._lasting.get(agent, {}) if turn is None else self._of_turn(agent, turn).tools

    def shown(self, agent: str, turn: TurnKey | None = None) -> Mapping[str, DynamicTool]:
        """Return an agent's as its next Step shows them, or the next one of a Turn, by name."""
        if turn is None:
            return self.of(agent)
        own = self._of_turn(agent, turn)
        lasting = {name: tool for name, tool in self.of(agent).items() if name not in own.gone}
        return {**lasting, **own.tools}

    def gone(self, agent: str, turn: TurnKey) -> frozenset[str]:
        """Return the names of the tools that were unregistered in a Turn."""
        return self._of_turn(agent, turn).gone

    def of_turns(self, agent: str) -> list[DynamicTool]:
        """Return those that were registered in any Turn of an agent."""
        with self._lock:
            of_turns = [own.tools for (owner, _), own in self._of_turns.items() if owner == agent]
        return [tool for tools in of_turns for tool in tools.values()]

    def find(self, agent: str, name: str, turn: TurnKey | None = None) -> DynamicTool | None:
        """Return the one of that name, for a call of a Turn or for one of none."""
        return self.of(agent, turn).get(name) or self.of(agent).get(name)

    def add(self, agent: str, tool: DynamicTool) -> None:
        """Add one; of two with the same name the last counts, and stands where it was registered."""
        name = tool.item.name
        with self._lock:
            replaced = self.find(agent, name, tool.turn)
            tools = dict(self.of(agent, tool.turn))
            tools.pop(name, None)
            tools[name] = tool
            tools = dict(sorted(tools.items(), key=_place))
            if tool.turn is None:
                self._lasting[agent] = tools
            else:
                own = self._of_turn(agent, tool.turn)
                gone, untold = own.gone - {name}, own.untold - {name}
                self._keep(agent, tool.turn, replace(own, tools=tools, gone=gone, untold=untold))
            self.version += 1
        if replaced is not None:
            logger.warning("tool.replaced", agent=agent, tool=name, of=replaced.extension, by=tool.extension)

    def remove(self, agent: str, name: str, turn: TurnKey | None = None) -> bool:
        """Take the one of that name away, or from a Turn; say whether there was one.

        A Turn is not shown the name again until it is registered once more: no lasting one of it either.
        """
        with self._lock:
            lasting = dict(self.of(agent))
            if turn is None:
                is_found = lasting.pop(name, None) is not None
                self._lasting[agent] = lasting
            else:
                own = self._of_turn(agent, turn)
                is_found = name not in own.gone and (
                    name in own.tools or name in own.elsewhere or name in lasting
                )
                if is_found:
                    untold = own.untold | {name}
                    self._keep(agent, turn, replace(_without(own, {name}), untold=untold))
            self.version += is_found
        return is_found

    def begin_step(
        self, agent: str, turn: TurnKey, *, registered: Iterable[str], gone: Iterable[str]
    ) -> None:
        """Take over the names that the Steps of a Turn have registered, and those that are gone.

        That is how the Step before the one that opens now has left them, in whatever process.
        """
        with self._lock:
            own = self._of_turn(agent, turn)
            told = replace(own, elsewhere=frozenset(registered), gone=frozenset())
            now = _without(told, own.untold.union(gone))
            if now != own:
                self._keep(agent, turn, now)
                self.version += 1

    def clear(self, agent: str) -> None:
        """Take all of an agent's away."""
        with self._lock:
            self._lasting.pop(agent, None)
            for key in [key for key in self._of_turns if key[0] == agent]:
                del self._of_turns[key]
            self.version += 1

    def untold(self, call: ToolCall) -> frozenset[str]:
        """Return what was unregistered in a call's Turn that other processes cannot know of yet."""
        return self._of_turn(call.agent_name, turn_of(call)).untold if self._of_turns else frozenset()

    def told(self, agent: str, turn: TurnKey, names: Collection[str]) -> None:
        """Note that other processes can know now what was unregistered."""
        with self._lock:
            own = self._of_turn(agent, turn)
            if not own.untold.isdisjoint(names):
                self._keep(agent, turn, replace(own, untold=own.untold.difference(names)))

    def _of_turn(self, agent: str, turn: TurnKey) -> ToolsOfTurn:
        return self._of_turns.get((agent, turn), _NOTHING)

    def _keep(self, agent: str, turn: TurnKey, own: ToolsOfTurn) -> None:
        self._of_turns[agent, turn] = own
        self._of_turns.move_to_end((agent, turn))
        while len(self._of_turns) > MOST_TURNS:
            self._of_turns.popitem(last=False)
            self.forgotten += 1


_NOTHING = ToolsOfTurn()


def _without(own: ToolsOfTurn, names: Collection[str]) -> ToolsOfTurn:
    tools = {name: tool for name, tool in own.tools.items() if name not in names}
    return replace(own, tools=tools, elsewhere=own.elsewhere.difference(names), gone=own.gone.union(names))


def _place(named: tuple[str, DynamicTool]) -> tuple[bool, str]:
    name, tool = named
    is_mcp = tool.item.source.type == "mcp"
    return is_mcp, name if is_mcp else ""


def dynamic_tool(
    item: CatalogItem | Mapping[str, Any],
    handler: ToolHandler,
    policy: Mapping[str, Any] | None,
    *,
    extension: str,
    entry_path: Path,
    turn: TurnKey | None = None,
) -> DynamicTool:
    """Make a tool of what an extension registers.

    Raises:
        ValueError: the item, its name, its parameters or the policy are not valid.
        TypeError: ``handler`` is no function of ``(ctx, input)``.
    """
    checked = without_secrets(catalog_item(item, extension))
    bound = _bound(checked, dict(policy or {}), entry_path)
    return DynamicTool(checked, ready(bound, handler), extension, turn)


def ready(bound: BoundTool, handler: ToolHandler) -> RegisteredTool:
    """Return a tool with its handler.

    Raises:
        ValueError: its parameters are no JSON Schema.
        TypeError: ``handler`` is no function of ``(ctx, input)``.
    """
    if not callable(handler):
        raise TypeError(f"the handler of {bound.name} must be a function, not {type(handler).__name__}")
    if not takes(handler, 2):
        raise TypeError(f"the handler of {bound.name} cannot be called with (ctx, input)")
    arguments = compile_schema(bound.export.parameters)
    return RegisteredTool(bound, handler, arguments, is_async_handler(handler))


def catalog_item(item: CatalogItem | Mapping[str, Any], extension: str) -> CatalogItem:
    """Return what an extension describes a tool with.

    Raises:
        ValueError: it is not valid.
        TypeError: it is neither an item nor a dict.
    """
    if isinstance(item, CatalogItem):
        return item
    if not isinstance(item, Mapping):
        raise TypeError(f"a tool is described by a dict or a CatalogItem, not {type(item).__name__}")
    require_fields(item, _ITEM_FIELDS, "a tool's item")
    source = item.get("source") or ToolSource(type="extension", name=extension)
    try:
        return CatalogItem.from_wire({**item, "source": source})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ValueError(f"the item {item.get('name')!r} is not valid: {faults}") from error


def without_secrets(item: CatalogItem) -> CatalogItem:
    """Return an item that may stand in a catalog; what registers it while it runs may have seen a token."""
    wire = item.to_wire()
    shown = KNOWN_SECRETS.hidden_in_answer(wire)
    return item if shown == wire else CatalogItem.from_wire(shown)


def _bound(item: CatalogItem, policy: JsonObject, entry_path: Path) -> BoundTool:
    name = parse_tool_name(item.name)
    if name is None or name.resource == SYSTEM_TOOL:
        raise ValueError(
            f"{item.name!r} is no name of a tool: write <tool>__<export>, such as weather__get, of letters, "
            f"digits, '-' and '_'; '{SYSTEM_TOOL}__…' is the system's own"
        )
    require_fields(policy, _POLICY_FIELDS, "the policy of a dynamic tool")
    if policy.get("retry") is not None and policy.get("idempotent") is not True:
        raise ValueError(f"{item.name}: only an idempotent tool may be retried: add 'idempotent': True")
    export = {"name": name.export, "description": item.description, "parameters": item.parameters}
    spec = {"entry": str(entry_path), "exports": [policy | export]}
    declared = {"apiVersion": API_VERSION, "kind": "Tool", "metadata": {"name": name.resource}, "spec": spec}
    return declared_tool(ToolResource, declared, item.name, entry_path)


def declared_tool(model: type[ToolResource], resource: JsonObject, name: str, entry_path: Path) -> BoundTool:
    """Return the one tool of a resource that no YAML declares; errors call it ``name``.

    Raises:
        ValueError: the resource is not valid.
    """
    try:
        tool = model.model_validate(resource)
    except ValidationError as error:
        faults = [f"{fault.path[-1]} {fault.error.message}" for fault in field_faults(error, model, resource)]
        raise ValueError(f"{name}: {'; '.join(faults)}") from error
    [bound] = bound_exports(tool, entry_path.parent)
    return bound


def require_fields(given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Let only known fields pass.

    Raises:
        ValueError: there is another one.
    """
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no field {name!r}. {hint(str(name), list(known))}".strip())
