"""An agent's Tool Catalog as MCP lists it, and the news that it has changed."""

import logging

import anyio
from mcp.server.subscriptions import SubscriptionBus, ToolsListChanged
from mcp_types import Tool

from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog
from goondan_tasks.client import AsyncClient
from goondan_tasks.errors import GoondanError
from goondan_tasks.messages import JsonObject

logger = logging.getLogger(__name__)

#: how often the catalog is looked at
LOOK_SECONDS = 3.0


class CatalogWatch:
    """Reads the catalog of one agent, and tells a bus when it has changed."""

    def __init__(
        self, client: AsyncClient, agent: str, bus: SubscriptionBus, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._client = client
        self._agent = agent
        self._bus = bus
        self._look_seconds = look_seconds
        self._known: list[Tool] | None = None

    async def tools(self) -> list[Tool]:
        """Read the catalog.

        Raises:
            AgentNotFoundError: no worker and no bundle knows the agent any more.
            BrokerUnreachableError: Redis cannot be reached.
        """
        await self._client.agents()  # a client remembers what it knows of an agent until it is asked for all
        items = [CatalogItem.from_wire(item) for item in await self._client.catalog(self._agent)]
        return [_tool(described) for described in ToolCatalog(tuple(items)).to_mcp()]

    async def look(self) -> None:
        """Look, and tell if the catalog is another than at the look before, if there was one."""
        before = self._known
        try:
            self._known = await self.tools()
        except GoondanError as error:
            logger.warning("the catalog of agent %s cannot be read: %s", self._agent, error)
        if before is not None and self._known != before:
            logger.info("the catalog of agent %s has changed", self._agent)
            await self._bus.publish(ToolsListChanged())

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await anyio.sleep(self._look_seconds)
            await self.look()


def _tool(described: JsonObject) -> Tool:
    # MCP's arguments are an object; a schema that allows other kinds of them too does so in vain
    schema = {**described["inputSchema"], "type": "object"}
    return Tool.model_validate({**described, "inputSchema": schema})
