"""Services for extensions of both versions: tools, OAuth tokens and changesets of the bundle."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from goondan_tasks.authoring.changesets_api import ChangesetError, SwarmBundleApi
from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.contract.catalog import CatalogItem
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.oauth.manager import TokenError, TokenFault
from workers.extensions.events import running_call, running_for
from workers.extensions.state import now_or_awaitable
from workers.oauth import WorkerOAuth
from workers.tools.dynamic_tools import DynamicTool, DynamicTools, TurnKey, dynamic_tool, turn_of


@dataclass(frozen=True, slots=True)
class Owner:
    """An extension of an agent, as the owner of its registrations."""

    agent: str
    extension: str
    entry_path: Path


@dataclass(frozen=True, slots=True)
class ExtensionTools:
    """``api.tools``: see :class:`goondan_tasks.authoring.extension_api.Tools`."""

    owner: Owner
    tools: DynamicTools
    #: returns the tools that an Agent declares, whose names no extension can take
    declared: Callable[[str], Mapping[str, Any] | None]

    def register(
        self,
        item: CatalogItem | Mapping[str, Any],
        handler: ToolHandler,
        *,
        policy: Mapping[str, Any] | None = None,
    ) -> None:
        extension, entry_path = self.owner.extension, self.owner.entry_path
        turn = turn_running()
        self.add(dynamic_tool(item, handler, policy, extension=extension, entry_path=entry_path, turn=turn))

    def add(self, tool: DynamicTool) -> None:
        """Register a valid tool.

        Raises:
            ValueError: the Agent declares a tool of that name.
        """
        if tool.item.name in (self.declared(self.owner.agent) or ()):
            raise ValueError(
                f"{tool.item.name!r} is a tool that the Agent declares in spec.tools: register a toolCall "
                "middleware to change what it does, or choose another name"
            )
        self.tools.add(self.owner.agent, tool)

    def unregister(self, name: str) -> bool:
        return self.tools.remove(self.owner.agent, name, turn_running())


def turn_running() -> TurnKey | None:
    """Return the Turn of the current call, if any."""
    call = running_call()
    return None if call is None else turn_of(call)


@dataclass(frozen=True, slots=True)
class ExtensionOAuth:
    """``api.oauth``: see :class:`goondan_tasks.authoring.extension_api.OAuth`."""

    agent: str
    #: ``None`` if the bundle has no OAuthApp, or without a worker
    _tokens: WorkerOAuth | None

    def get_access_token(
        self,
        oauth_app_ref: str | Mapping[str, str],
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float = 300,
    ) -> Any:
        call = running_for(self.agent)
        return ask_for_token(
            self._tokens, call, oauth_app_ref, scopes=scopes, min_ttl_seconds=min_ttl_seconds
        )


def ask_for_token(
    tokens: WorkerOAuth | None,
    call: ToolCall | None,
    oauth_app_ref: Any,
    *,
    scopes: Any,
    min_ttl_seconds: float,
) -> Any:
    """Return a token for ``call``, or the reason why there is none; awaitable on the event loop.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
    """
    if tokens is None:
        return token_error("oauthAppNotFound", "No OAuthApp here: the bundle declares none.")
    get = tokens.get_access_token
    return now_or_awaitable(partial(get, call, oauth_app_ref, scopes=scopes, min_ttl_seconds=min_ttl_seconds))


def token_error(code: str, message: str) -> Any:
    """Return an answer without a token; awaitable on the event loop."""
    return now_or_awaitable(lambda: TokenError(error=TokenFault(code=code, message=message)))


#: returns the blocking API with which a call's agent changes its bundle; ``None`` if it cannot
SwarmBundleFor = Callable[[ToolCall], SwarmBundleApi | None]


def no_swarm_bundle(_call: ToolCall) -> None:
    """Stand in where the bundle cannot be changed: without a worker, or outside of a git repository."""


@dataclass(frozen=True, slots=True)
class SwarmBundleService:
    """Changes the bundle for a call: see :class:`goondan_tasks.authoring.changesets_api.SwarmBundleApi`.

    The methods block in plain code and are awaitable on the event loop.
    """

    swarm_bundle_for: SwarmBundleFor
    #: returns the call for which the bundle is changed, if any
    call_of: Callable[[], ToolCall | None]

    def open_changeset(self, reason: str | None = None) -> Any:
        return self._answered(lambda bundle: bundle.open_changeset(reason))

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> Any:
        return self._answered(lambda bundle: bundle.commit_changeset(changeset_id, message))

    def get_active_ref(self) -> Any:
        return self._answered(lambda bundle: bundle.get_active_ref())

    def _answered(self, ask: Callable[[SwarmBundleApi], Any]) -> Any:
        call = self.call_of()
        if call is None:
            raise ChangesetError(
                "The bundle cannot be changed: no Turn, Step or tool call is running here.",
                code="GIT_ERROR",
                suggestion="Open and commit changesets in a tool, or in a middleware.",
            )
        return now_or_awaitable(partial(self._answer, call, ask))

    def _answer(self, call: ToolCall, ask: Callable[[SwarmBundleApi], Any]) -> Any:
        bundle = self.swarm_bundle_for(call)
        if bundle is None:
            raise ChangesetError(
                "The bundle cannot be changed here.",
                code="GIT_ERROR",
                suggestion="It must be in a git repository, and a worker must run the call.",
            )
        return ask(bundle)
