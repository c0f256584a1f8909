"""What tools and extensions of the older version may use (002 §8.1, §11.2)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from goondan_tasks.messages import JsonObject


class OAuthApi(Protocol):
    """Tokens of OAuthApps, for whoever the Turn acts for (002 §8.1)."""

    def get_access_token(
        self,
        request: Mapping[str, Any] | None = None,
        *,
        oauth_app_ref: str | Mapping[str, str] | None = None,
        scopes: Sequence[str] | None = None,
        min_ttl_seconds: float | None = None,
    ) -> Any:
        """Return an OAuthTokenResult, whose ``status`` is ``ready``, ``authorization_required`` or ``error``.

        ``request`` is the document's ``{oauthAppRef, scopes?, minTtlSeconds?}``, in camelCase or snake_case;
        the arguments say the same. A tool's ``auth`` stands in for what is left out, and limits the scopes.

        It blocks in plain code, and is a coroutine in ``async`` code.

        Raises:
            TypeError: the request has another field, or says the same as an argument.
            BrokerUnreachableError: Redis cannot be reached.
        """


class SwarmBundle(Protocol):
    """The bundle, as the agent may change it in this instance (002 §11.2; 000 §12.4).

    All of it blocks in plain code, and is a coroutine in ``async`` code. The answers are JSON objects.
    """

    def open_changeset(
        self, request: Mapping[str, Any] | str | None = None, *, reason: str | None = None
    ) -> Any:
        """Open a changeset; return ``{changesetId, baseRef, workdir, hint}``.

        ``request`` is the document's ``{reason?}``; a text is the reason.

        Raises:
            ChangesetError: the policy does not allow changesets, or git cannot; or there is no worker.
            TypeError: the request has another field, or says the same as an argument.
        """

    def commit_changeset(
        self,
        request: Mapping[str, Any] | str | None = None,
        message: str | None = None,
        *,
        changeset_id: str | None = None,
    ) -> Any:
        """Commit one; return ``{status, changesetId, baseRef?, newRef?, summary?, error?}``.

        ``request`` is the document's ``{changesetId, message?}``, in camelCase or snake_case; a text is the
        id. ``status`` is ``ok``, ``rejected``, ``conflict`` or ``failed``.

        Raises:
            ChangesetError, TypeError: as :meth:`open_changeset`.
        """

    def get_active_ref(self) -> Any:
        """Return the ref of the revision that is active now."""


class EventBus(Protocol):
    """What happens in this worker process, as far as this agent is concerned.

    Listeners of ``ctx.events`` hear nothing any more once the tool's run has ended; those of ``api.events``
    do as long as the extension is loaded.
    """

    def emit(self, name: str, event: Mapping[str, Any] | None = None) -> None:
        """Tell everybody who listens; listeners that are ``async`` are not waited for."""

    def on(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with each such event; what it raises is logged. Return what ends that."""

    def once(self, name: str, listener: Callable[[JsonObject], Any]) -> Callable[[], None]:
        """Call ``listener`` with the next such event only."""

    def off(self, name: str, listener: Callable[[JsonObject], Any]) -> None:
        """Call ``listener`` no more, however often it was given to :meth:`on` or :meth:`once`."""
