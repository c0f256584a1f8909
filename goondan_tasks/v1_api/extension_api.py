"""What ``register`` of an Extension of the older version is called with (002 §5.4, §9)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, overload

from goondan_tasks.bundle.resources import ExtensionResource
from goondan_tasks.extension_api import State
from goondan_tasks.messages import JsonObject
from goondan_tasks.tool_api import Logger
from goondan_tasks.v1_api.records import V1CatalogItem
from goondan_tasks.v1_api.services import EventBus, OAuthApi, SwarmBundle
from goondan_tasks.v1_api.tool_context import V1Handler


class Pipelines(Protocol):
    """Where the functions of an extension are put into the way of Turns, Steps and tool calls (002 §5.4)."""

    def mutate(
        self, point: str, function: Callable[[Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Pass the context of ``point`` through ``function``, which returns it, another one, or ``None``.

        Lower priorities come first, equal ones in order of registration. An exception ends the call, Step or
        Turn with ``E_MIDDLEWARE``.

        Raises:
            ValueError: there is no such point here.
            TypeError: it is no function, or its priority no whole number.
        """

    def wrap(
        self, point: str, function: Callable[[Any, Any], Any], *, priority: int = 0, id: str | None = None
    ) -> None:
        """Put ``function(ctx, next)`` around ``toolCall.exec``; lower priorities are further out.

        Raises:
            ValueError, TypeError: as :meth:`mutate`.
        """


class Tools(Protocol):
    """The agent's dynamic tools (002 §9)."""

    @overload
    def register(self, item: Mapping[str, Any]) -> None: ...
    @overload
    def register(self, item: Mapping[str, Any] | V1CatalogItem, handler: V1Handler) -> None: ...
    def register(self, item: Any, handler: V1Handler | None = None) -> None:
        """Add a tool; the next Step shows it.

        ``item``: ``{name: "weather.get", description?, parameters?, handler}``; the handler may also be
        given apart. Of two with one name the last counts, with a warning.

        Raises:
            ValueError: the item, its name or its parameters are not valid.
            TypeError: the handler is no function of ``(ctx, input)``.
        """

    def unregister(self, name: str) -> bool:
        """Take a tool away again; say whether there was one."""

    def get(self, name: str) -> V1CatalogItem | None:
        """Return a tool that the agent has in this worker."""

    def list(self) -> Sequence[V1CatalogItem]:
        """Return the tools that the agent has in this worker."""


class ExtensionInstance(Protocol):
    """What the extensions of one agent share for the instance that is running."""

    @property
    def shared(self) -> State:
        """State that all of them see."""


class V1ExtensionApi(Protocol):
    """What ``register`` is called with; it may be kept and used later."""

    @property
    def extension(self) -> ExtensionResource:
        """The Extension resource: ``.metadata.name``, ``.spec.config``."""

    @property
    def pipelines(self) -> Pipelines:
        """The agent's pipelines."""

    @property
    def tools(self) -> Tools:
        """The agent's dynamic tools."""

    @property
    def events(self) -> EventBus:
        """What happens in this process."""

    @property
    def swarm_bundle(self) -> SwarmBundle:
        """The bundle, as the running agent may change it."""

    @property
    def oauth(self) -> OAuthApi:
        """Tokens of OAuthApps."""

    @property
    def state(self) -> State:
        """What the extension remembers, key by key."""

    @property
    def instance(self) -> ExtensionInstance:
        """What the agent's extensions share."""

    @property
    def logger(self) -> Logger:
        """A structured logger that names the extension and the agent."""

    def get_state(self) -> Any:
        """Return what :meth:`set_state` kept for the running instance: an object, empty at first.

        It blocks in plain code, and is a coroutine in ``async`` code.
        """

    def set_state(self, state: JsonObject) -> Any:
        """Keep an object for the running instance; waits as :meth:`get_state` does."""
