"""An extension's api that keeps in memory what is registered."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from goondan_tasks.authoring.extension_api import CatalogItem, ExtensionInfo, Middleware, Point
from goondan_tasks.authoring.tool_api import Logger, ToolHandler
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import parse_tool_name
from goondan_tasks.contract.schema import compile_schema
from workers.extensions.services import SwarmBundleService, no_swarm_bundle


def _nobody() -> None:
    return None


@dataclass(frozen=True)
class Registered:
    """A dynamic tool."""

    item: CatalogItem
    handler: ToolHandler
    policy: Mapping[str, Any]


class MemoryTools:
    """``api.tools``: refuses what a worker refuses."""

    def __init__(self) -> None:
        self.registered: dict[str, Registered] = {}

    def register(
        self,
        item: CatalogItem | Mapping[str, Any],
        handler: ToolHandler,
        *,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a tool; a second one of its name is an error here."""
        checked = CatalogItem.model_validate(item)
        if parse_tool_name(checked.name) is None:
            raise ValueError(f"{checked.name!r} is not a name of a tool")
        compile_schema(checked.parameters)
        assert checked.name not in self.registered
        self.registered[checked.name] = Registered(checked, handler, policy or {})

    def unregister(self, name: str) -> bool:
        """Take a tool away."""
        return self.registered.pop(name, None) is not None


class NoPipeline:
    """``api.pipeline``: nothing here has middlewares."""

    def register(self, point: Point, middleware: Middleware, priority: int = 0) -> None:
        """Refuse."""
        raise AssertionError("no middleware is expected")


class MemoryEvents:
    """``api.events``."""

    def __init__(self) -> None:
        self.listeners: list[tuple[str, Callable[[JsonObject], Any]]] = []

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Take note of a listener."""
        self.listeners.append((name, listener))
        return lambda: self.listeners.remove((name, listener))

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Refuse."""
        raise AssertionError("no event is expected")


class NoState:
    """``api.state``: nothing here remembers."""

    def get(self, key: str, default: Any = None, *, instance_key: str | None = None) -> Any:
        """Refuse."""
        raise AssertionError("no state is expected")

    def set(self, key: str, value: Any, *, instance_key: str | None = None) -> Any:
        """Refuse."""
        raise AssertionError("no state is expected")

    def keys(self, prefix: str = "", *, instance_key: str | None = None) -> Any:
        """Refuse."""
        raise AssertionError("no state is expected")


class NoOAuth:
    """``api.oauth``: nothing here asks for tokens."""

    def get_access_token(
        self,
        oauth_app_ref: str | Mapping[str, str],
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float = 300,
    ) -> Any:
        """Refuse."""
        raise AssertionError("no token is expected")


@dataclass
class MemoryApi:
    """The api of the extension ``mcp`` of the agent ``clerk``."""

    extension: ExtensionInfo = field(default_factory=lambda: ExtensionInfo("mcp"))
    agent_name: str = "clerk"
    pipeline: NoPipeline = field(default_factory=NoPipeline)
    tools: MemoryTools = field(default_factory=MemoryTools)
    events: MemoryEvents = field(default_factory=MemoryEvents)
    state: NoState = field(default_factory=NoState)
    oauth: NoOAuth = field(default_factory=NoOAuth)
    swarm_bundle: SwarmBundleService = field(
        default_factory=lambda: SwarmBundleService(no_swarm_bundle, _nobody)
    )
    logger: Logger = field(default_factory=structlog.get_logger)
