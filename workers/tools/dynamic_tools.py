"""Tools that extensions register at run time (003 §10)."""

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.bundle import BoundTool
from goondan_tasks.bundle.binding import declared_tool
from goondan_tasks.contract.catalog import CatalogItem, catalog_item
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.names import SYSTEM_TOOL, parse_tool_name
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.wording import require_fields
from goondan_tasks.history import StepTool
from workers.tools.registered_tool import RegisteredTool, ready

logger = structlog.get_logger(__name__)

#: the fields of an export that a dynamic tool may have
_POLICY_FIELDS = ("timeoutSeconds", "idempotent", "maxAttempts", "retry")

#: the instanceKey and the turnId of an agent's Turn
TurnKey = tuple[str, str]

#: how many Turns' tools a process keeps, the latest ones
MOST_TURNS = 1024


def turn_of(call: ToolCall) -> TurnKey:
    """Return the Turn that a call belongs to."""
    return call.instance_key, call.turn_id


@dataclass(frozen=True, slots=True)
class DynamicTool:
    """A tool that an extension has registered."""

    item: CatalogItem
    registered: RegisteredTool
    extension: str
    #: the Turn in which it was registered, perhaps in a Step or tool call; ``None`` for a lasting tool
    turn: TurnKey | None = None


@dataclass(frozen=True, slots=True)
class ToolsOfTurn:
    """The tools registered and unregistered in one Turn, as far as this process knows."""

    #: tools whose handlers this process has
    tools: Mapping[str, DynamicTool] = field(default_factory=dict)
    #: names of tools that earlier Steps registered in other processes
    elsewhere: frozenset[str] = frozenset()
    #: names of tools that were unregistered, and not registered again
    gone: frozenset[str] = frozenset()
    #: those of ``gone`` that are not in Redis yet
    untold: frozenset[str] = frozenset()


class DynamicTools:
    """The dynamic tools of every agent that a process serves, in order of registration.

    Tools of MCP servers come last, sorted by name: their servers start in any order, but the model should see
    the same catalog in each Step and worker.

    A tool registered in a Turn belongs to that Turn alone, since its handler may hold a user's token. There
    it replaces a lasting tool of the same name. A tool unregistered in a Turn is gone from that Turn alone;
    the Turn's other workers learn of it with the next Step.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: the mappings are replaced, never changed, so that they can be read without the lock
        self._lasting: dict[str, Mapping[str, DynamicTool]] = {}
        self._of_turns: OrderedDict[tuple[str, TurnKey], ToolsOfTurn] = OrderedDict()
        #: grows with every change
        self.version = 0
        #: grows with every change of the lasting tools
        self.lasting_version = 0
        #: whether any Turn has registered or unregistered tools here
        self.has_turns = False
        #: the number of Turns whose tools were dropped
        self.forgotten = 0

    def of(self, agent: str, turn: TurnKey | None = None) -> Mapping[str, DynamicTool]:
        """Return an agent's lasting tools, or those registered in a Turn, by name."""
        return self._lasting.get(agent, {}) if turn is None else self._of_turn(agent, turn).tools

    def shown(self, agent: str, turn: TurnKey | None = None) -> Mapping[str, DynamicTool]:
        """Return the tools of an agent's next Step, or of a Turn's next Step, by name."""
        if turn is None:
            return self.of(agent)
        own = self._of_turn(agent, turn)
        lasting = {name: tool for name, tool in self.of(agent).items() if name not in own.gone}
        return {**lasting, **own.tools}

    def gone(self, agent: str, turn: TurnKey) -> frozenset[str]:
        """Return the names of the tools that were unregistered in a Turn."""
        return self._of_turn(agent, turn).gone

    def of_turns(self, agent: str) -> list[DynamicTool]:
        """Return the tools registered in any Turn of an agent."""
        with self._lock:
            of_turns = [own.tools for (owner, _), own in self._of_turns.items() if owner == agent]
        return [tool for tools in of_turns for tool in tools.values()]

    def find(self, agent: str, name: str, turn: TurnKey | None = None) -> DynamicTool | None:
        """Return the tool of that name: a Turn's own, else a lasting one."""
        return self.of(agent, turn).get(name) or self.of(agent).get(name)

    def add(self, agent: str, tool: DynamicTool) -> None:
        """Add a tool; it replaces one of the same name and comes last."""
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
            self._changed(is_lasting=tool.turn is None)
        if replaced is not None:
            logger.warning("tool.replaced", agent=agent, tool=name, of=replaced.extension, by=tool.extension)

    def remove(self, agent: str, name: str, turn: TurnKey | None = None) -> bool:
        """Remove a tool, or hide it from a Turn; return whether there was one."""
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
            if is_found:
                self._changed(is_lasting=turn is None)
        return is_found

    def begin_step(
        self, agent: str, turn: TurnKey, *, registered: Collection[str], gone: Collection[str]
    ) -> None:
        """Note the names that earlier Steps of a Turn have registered and unregistered elsewhere."""
        with self._lock:
            own = self._of_turn(agent, turn)
            if own is _NOTHING and not (registered or gone):  # as in most Turns
                return
            told = replace(own, elsewhere=frozenset(registered), gone=frozenset())
            now = _without(told, own.untold.union(gone))
            if now != own:
                self._keep(agent, turn, now)
                self._changed(is_lasting=False)

    def clear(self, agent: str) -> None:
        """Remove all tools of an agent."""
        with self._lock:
            self._lasting.pop(agent, None)
            for key in [key for key in self._of_turns if key[0] == agent]:
                del self._of_turns[key]
            self.has_turns = bool(self._of_turns)
            self._changed(is_lasting=True)

    def untold(self, agent: str, turn: TurnKey) -> frozenset[str]:
        """Return the tools unregistered in a Turn that are not in Redis yet."""
        return self._of_turn(agent, turn).untold

    def told(self, agent: str, turn: TurnKey, names: Collection[str]) -> None:
        """Note that unregistered tools are in Redis now."""
        with self._lock:
            own = self._of_turn(agent, turn)
            if not own.untold.isdisjoint(names):
                self._keep(agent, turn, replace(own, untold=own.untold.difference(names)))

    def _changed(self, *, is_lasting: bool) -> None:
        self.version += 1
        self.lasting_version += is_lasting

    def _of_turn(self, agent: str, turn: TurnKey) -> ToolsOfTurn:
        return self._of_turns.get((agent, turn), _NOTHING)

    def _keep(self, agent: str, turn: TurnKey, own: ToolsOfTurn) -> None:
        self.has_turns = True
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
    """Make a tool that an extension registers.

    Raises:
        ValueError: the item, its name, its parameters or the policy are not valid.
        TypeError: ``handler`` is not a function of ``(ctx, input)``.
    """
    checked = without_secrets(catalog_item(item, extension))
    bound = _bound(checked, dict(policy or {}), entry_path)
    return DynamicTool(checked, ready(bound, handler), extension, turn)


def without_secrets(item: CatalogItem) -> CatalogItem:
    """Return an item without secrets: the extension that registers it may have seen a token."""
    wire = item.to_wire()
    shown = KNOWN_SECRETS.hidden_in_answer(wire)
    return item if shown == wire else CatalogItem.from_wire(shown)


def _bound(item: CatalogItem, policy: JsonObject, entry_path: Path) -> BoundTool:
    name = parse_tool_name(item.name)
    if name is None or name.resource == SYSTEM_TOOL:
        raise ValueError(
            f"{item.name!r} is not a tool's name: write <tool>__<export>, such as weather__get, of letters, "
            f"digits, '-' and '_'; '{SYSTEM_TOOL}__…' is the system's own"
        )
    require_fields(policy, _POLICY_FIELDS, "the policy of a dynamic tool")
    if policy.get("retry") is not None and policy.get("idempotent") is not True:
        raise ValueError(f"{item.name}: only an idempotent tool may be retried: add 'idempotent': True")
    export = {"name": name.export, "description": item.description, "parameters": item.parameters}
    return declared_tool(name.resource, policy | export, str(entry_path), entry_path.parent, called=item.name)


@dataclass(frozen=True, slots=True)
class TurnTools:
    """The tools that a Step starts with (003 §10.3), before its middlewares change them."""

    lasting: Sequence[CatalogItem]
    #: registered in this Turn, in this worker
    here: Mapping[str, DynamicTool]
    #: registered in earlier Steps of this Turn, in any worker
    carried: Sequence[StepTool] = ()

    def items(self) -> list[CatalogItem]:
        """Return the catalog; tools of earlier Steps keep their positions in every worker."""
        lasting = {item.name: item for item in self.lasting}
        carried = {tool.item.name: tool.item for tool in self.carried}
        here = {name: tool.item for name, tool in self.here.items()}
        return list({**lasting, **carried, **here}.values())

    def origins(self) -> dict[str, str]:
        """Return, by the tools' names, the ids of the earlier Steps that registered them."""
        return {tool.item.name: tool.step_id for tool in self.carried}

    def passed_on(
        self, step_id: str, now: Mapping[str, DynamicTool], gone: Collection[str]
    ) -> list[StepTool]:
        """Return the tools for the next Step: the carried ones that are not ``gone``, and this worker's."""
        carried = {tool.item.name: tool for tool in self.carried if tool.item.name not in gone}
        here = {
            name: StepTool(
                item=tool.item,
                # that of an earlier Step, unless this one has registered the tool again
                step_id=carried[name].step_id if name in carried and tool is self.here.get(name) else step_id,
            )
            for name, tool in now.items()
        }
        return list({**carried, **here}.values())
