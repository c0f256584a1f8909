"""``api.oauth``: see :class:`goondan_tasks.extension_api.OAuth`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from goondan_tasks.messages import ToolCall
from goondan_tasks.oauth.manager import OAuthTokenResult, TokenError, TokenFault
from workers.concurrency.beside_loop import beside_loop, is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.extensions.running import running_for
from workers.oauth import WorkerOAuth


@dataclass(frozen=True, slots=True)
class ExtensionOAuth:
    """The tokens that the extensions of one agent can ask for."""

    agent: str
    #: ``None`` where the bundle has no OAuthApp, and where there is no worker
    _tokens: WorkerOAuth | None

    def get_access_token(
        self,
        oauth_app_ref: str | Mapping[str, str],
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float = 300,
    ) -> Any:
        """Return a token, or what keeps it from being there.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
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
    """Return a token on behalf of ``call``, or what keeps it from being there; awaitable on the event loop.

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
    """
    if tokens is None:
        return token_error("oauthAppNotFound", "No OAuthApp here: the bundle declares none.")
    get = tokens.get_access_token
    ask = partial(get, call, oauth_app_ref, scopes=scopes, min_ttl_seconds=min_ttl_seconds)
    return beside_loop(ask, on_new_thread) if is_on_loop() else ask()


def token_error(code: str, message: str) -> Any:
    """Answer that there is no token; awaitable on the event loop."""
    error = TokenError(error=TokenFault(code=code, message=message))
    return _answered(error) if is_on_loop() else error


async def _answered(result: OAuthTokenResult) -> OAuthTokenResult:
    return result
