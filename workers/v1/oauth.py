"""``ctx.oauth`` and ``api.oauth`` of the older version: see :class:`goondan_tasks.v1_api.OAuthApi`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle import BoundTool
from goondan_tasks.bundle.fields import parse_ref
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.resources import scopes_beyond
from goondan_tasks.bundle.v1_resources import V1ToolExport, V1ToolSpec
from goondan_tasks.messages import ToolCall
from goondan_tasks.oauth.manager import MIN_TTL_SECONDS
from workers.extensions.oauth import ask_for_token, token_error
from workers.oauth import WorkerOAuth
from workers.v1.request_object import fields_of


@dataclass(frozen=True, slots=True)
class ToolAuth:
    """What a Tool declares of its tokens: the app that it asks by default, and its scopes there."""

    app: str | None = None
    scopes: tuple[str, ...] | None = None

    @classmethod
    def of(cls, bound: BoundTool) -> "ToolAuth":
        """Return what an export may ask for: its own scopes, else its Tool's, else all of the app's."""
        spec, export = bound.tool.spec, bound.export
        auth = spec.auth if isinstance(spec, V1ToolSpec) else None
        if auth is None:
            return cls()
        own = export.auth if isinstance(export, V1ToolExport) else None
        narrowed = own.scopes if own is not None and own.scopes is not None else auth.scopes
        return cls(str(auth.oauth_app_ref), narrowed)

    def is_about(self, oauth_app_ref: Any) -> bool:
        """Say whether this is the app that somebody asks for."""
        try:
            return self.app is not None and str(parse_ref(oauth_app_ref)) == self.app
        except FieldError:
            return False


NO_AUTH = ToolAuth()


@dataclass(frozen=True, slots=True)
class TokenDesk:
    """Tokens, for whoever the Turn of a call acts for."""

    #: ``None`` where the bundle has no OAuthApp, and where there is no worker
    _tokens: WorkerOAuth | None
    #: the call on whose behalf somebody asks, if there is one
    call_of: Callable[[], ToolCall | None]
    auth: ToolAuth = NO_AUTH

    def get_access_token(
        self,
        request: Mapping[str, Any] | None = None,
        *,
        oauth_app_ref: str | Mapping[str, str] | None = None,
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Any:
        """Return an OAuthTokenResult; awaitable on the event loop.

        Raises:
            TypeError: the request has another field, or says the same as an argument.
            BrokerUnreachableError: Redis cannot be reached.
        """
        named = {"oauth_app_ref": oauth_app_ref, "scopes": scopes, "min_ttl_seconds": min_ttl_seconds}
        asked = fields_of(request, "oauth_app_ref", named)
        ref = self.auth.app if asked["oauth_app_ref"] is None else asked["oauth_app_ref"]
        wanted, limits = asked["scopes"], self.auth.scopes
        if limits is not None and self.auth.is_about(ref):
            refused = _beyond(wanted, limits)
            if refused is not None:
                return token_error("scopeNotAllowed", f"The tool's own auth allows no scope{refused}.")
            wanted = limits if wanted is None else wanted
        ttl = MIN_TTL_SECONDS if asked["min_ttl_seconds"] is None else asked["min_ttl_seconds"]
        return ask_for_token(self._tokens, self.call_of(), ref, scopes=wanted, min_ttl_seconds=ttl)


def _beyond(wanted: Any, limits: Sequence[str]) -> str | None:
    """Name the scope that may not be asked for; what is no list of texts is refused elsewhere."""
    if not limits:
        return ""
    is_list = isinstance(wanted, list | tuple) and all(isinstance(scope, str) for scope in wanted)
    beyond = scopes_beyond(wanted, limits) if is_list else ()
    return f" '{beyond[0][:80]}'" if beyond else None
