"""Tokens for the tools of a worker process, and what their users have still to consent to."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.cli.extras import extra
from goondan_tasks.client.broker_errors import broker_errors
from goondan_tasks.json_values import member
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.oauth.apps import apps_of
from goondan_tasks.oauth.oauth_errors import OAuthError, OAuthStoreError
from goondan_tasks.oauth.opening import open_keys, open_store, require_keys, store_clock
from goondan_tasks.oauth.records import AuthSession, Resume
from goondan_tasks.oauth.refreshes_in_flight import RefreshesInFlight
from goondan_tasks.oauth.token_result import OAuthTokenResult
from goondan_tasks.process_privacy import close_to_other_processes

if TYPE_CHECKING:  # it needs an extra, which only bundles with OAuthApps need
    from goondan_tasks.oauth.flows import Asking

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerOAuth:
    """Asks for tokens on behalf of the calls that this process runs; its methods block."""

    asking: "Asking"
    swarm: str
    redis_url: str

    def get_access_token(
        self, call: ToolCall | None, oauth_app_ref: Any, *, scopes: Any, min_ttl_seconds: float
    ) -> OAuthTokenResult:
        """Return a token for the subject of a call, or what keeps it from being there.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with broker_errors(self.redis_url):
            return self.asking.manager.get_access_token(
                oauth_app_ref,
                scopes,
                min_ttl_seconds,
                auth=None if call is None else call.auth,
                resume=None if call is None else self._resume(call),
            )

    def blocks(self, call: ToolCall) -> list[JsonObject]:
        """Return the ``auth.pending`` block of a call's Turn, if its agent waits for a consent there."""
        try:
            block = self.asking.pending_block(self._pending(call))
        except (OAuthError, OAuthStoreError, RedisError) as error:
            logger.warning("oauth.no_block", agent=call.agent_name, error=str(error))
            return []
        return [] if block is None else [block]

    def _pending(self, call: ToolCall) -> Iterator[AuthSession]:
        """Yield the sessions in which this agent's instance waits for a consent of the Turn's subjects."""
        place = self._resume(call).place
        for app in self.asking.manager.apps.values():
            subject = member(member(call.auth, "subjects"), app.subject_mode)
            if isinstance(subject, str):
                for session in self.asking.consent.store.pending_sessions(app.name, subject):
                    if place in {one.place for one in session.resumes}:
                        yield session

    def _resume(self, call: ToolCall) -> Resume:
        return Resume(
            swarm=self.swarm,
            agent_name=call.agent_name,
            instance_key=call.instance_key,
            origin=call.origin,
            auth=call.auth,
            trace_id=call.trace_id,
            correlation_id=call.correlation_id,
        )


def make_oauth(
    settings: Settings, bundle: Bundle, redis: Redis, in_flight: RefreshesInFlight
) -> WorkerOAuth | None:
    """Open the store of a bundle's OAuthApps; ``None`` if it has none. ``in_flight`` counts the refreshes.

    Raises:
        ConfigError: the extra ``oauth`` is not installed, or a key of the store is none.
        OAuthStoreError: others may read the store's keys, or they are not those of its grants.
    """
    if not bundle.oauth_apps:
        return None
    with extra("oauth"):  # optional: only now
        from goondan_tasks.oauth.flows import make_asking, public_url_of
    close_to_other_processes()
    keys = open_keys(settings)
    store = open_store(settings, redis, keys)
    require_keys(store, keys)
    agents = bundle.agents_with_commands()
    if settings.oauth_key is None and agents:
        logger.warning(
            "oauth.key_in_reach",
            agents=agents,
            key_file=str(settings.oauth_key_path),
            what_to_do="Set GOONDAN_OAUTH_KEY: the commands of these agents can read the file.",
        )
    asking = make_asking(
        apps_of(bundle.oauth_apps),
        store,
        public_url=public_url_of(settings),
        clock=store_clock(settings, redis),
        in_flight=in_flight,
    )
    return WorkerOAuth(asking, bundle.swarm(settings.swarm).name, settings.redis_url)
