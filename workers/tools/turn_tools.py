"""The tools that a Step begins with: those that last, and those registered in its Turn (003 §10.3)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from goondan_tasks.bundle.catalog import CatalogItem
from goondan_tasks.steps import StepTool
from workers.tools.dynamic_tools import DynamicTool


@dataclass(frozen=True, slots=True)
class TurnTools:
    """The tools of one Step of a Turn, before its middlewares change them."""

    lasting: Sequence[CatalogItem]
    #: those that were registered in this Turn, in this worker
    here: Mapping[str, DynamicTool]
    #: those that earlier Steps of this Turn had, in whatever worker
    carried: Sequence[StepTool] = ()

    def items(self) -> list[CatalogItem]:
        """Return the catalog; what the Turn has had before keeps its place, whichever worker this is."""
        lasting = {item.name: item for item in self.lasting}
        carried = {tool.item.name: tool.item for tool in self.carried}
        here = {name: tool.item for name, tool in self.here.items()}
        return list({**lasting, **carried, **here}.values())

    def origins(self) -> dict[str, str]:
        """Return the ids of the earlier Steps that have registered tools, by the tools' names."""
        return {tool.item.name: tool.step_id for tool in self.carried}

    def passed_on(
        self, step_id: str, now: Mapping[str, DynamicTool], gone: Collection[str]
    ) -> list[StepTool]:
        """Return what the next Step has besides, given what this worker has now, and what is ``gone``."""
        carried = {tool.item.name: tool for tool in self.carried if tool.item.name not in gone}
        here = {
            name: StepTool(item=tool.item, step_id=self._origin(carried.get(name), tool) or step_id)
            for name, tool in now.items()
        }
        return list({**carried, **here}.values())

    def _origin(self, carried: StepTool | None, tool: DynamicTool) -> str | None:
        """Return the earlier Step that has registered a tool, unless this one has done so once more."""
        is_registered_again = tool is not self.here.get(tool.item.name)
        return None if carried is None or is_registered_again else carried.step_id
