"""``api.tools``: the tools that an extension brings with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle import CatalogItem
from goondan_tasks.tool_api import ToolHandler
from workers.extensions.running import running_call
from workers.extensions.whose import Whose
from workers.tools.dynamic_tools import DynamicTool, DynamicTools, TurnKey, dynamic_tool, turn_of


@dataclass(frozen=True, slots=True)
class ExtensionTools:
    """See :class:`goondan_tasks.extension_api.Tools`."""

    whose: Whose
    tools: DynamicTools
    #: the names that the Agent declares, which no extension can take
    declared: Callable[[str], Mapping[str, Any] | None]

    def register(
        self,
        item: CatalogItem | Mapping[str, Any],
        handler: ToolHandler,
        *,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a tool.

        Raises:
            ValueError: it is not valid, or the Agent declares a tool of that name.
            TypeError: ``handler`` is no function of ``(ctx, input)``.
        """
        whose = self.whose
        self.add(
            dynamic_tool(
                item,
                handler,
                policy,
                extension=whose.extension,
                entry_path=whose.entry_path,
                turn=turn_running(),
            )
        )

    def add(self, tool: DynamicTool) -> None:
        """Add a tool that is valid.

        Raises:
            ValueError: the Agent declares one of that name.
        """
        if tool.item.name in (self.declared(self.whose.agent) or ()):
            raise ValueError(
                f"{tool.item.name!r} is a tool that the Agent declares in spec.tools: register a toolCall "
                "middleware to change what it does, or choose another name"
            )
        self.tools.add(self.whose.agent, tool)

    def unregister(self, name: str) -> bool:
        """Take a tool away again; say whether there was one."""
        return self.tools.remove(self.whose.agent, name, turn_running())


def turn_running() -> TurnKey | None:
    """Return the Turn in which extension code runs at this moment."""
    call = running_call()
    return None if call is None else turn_of(call)
