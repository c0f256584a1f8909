"""OAuth tokens for the tools of a worker process, and the consents that users have not given yet."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import OAuthStoreError, extra
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.contract.wording import member
from goondan_tasks.oauth.apps import apps_of
from goondan_tasks.oauth.manager import OAuthManager, OAuthTokenResult, RefreshesInFlight
from goondan_tasks.oauth.records import AuthSession, OAuthError, Resume

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerOAuth:
    """Requests tokens for the calls that this process runs; its methods block."""

    manager: OAuthManager
    swarm: str
    redis_url: str

    def get_access_token(
        self, call: ToolCall | None, oauth_app_ref: Any, *, scopes: Any, min_ttl_seconds: float
    ) -> OAuthTokenResult:
        """Return a token for the subject of a call, or the reason for having none.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with broker_errors(self.redis_url):
            return self.manager.get_access_token(
                oauth_app_ref,
                scopes,
                min_ttl_seconds,
                auth=None if call is None else call.auth,
                resume=None if call is None else self._resume(call),
            )

    def blocks(self, call: ToolCall) -> list[JsonObject]:
        """Return the ``auth.pending`` block of a call's Turn if its agent waits for a consent."""
        try:
            block = self.manager.consent.pending_block(self._pending(call), self.manager.apps)
        except (OAuthError, OAuthStoreError, RedisError) as error:
            logger.warning("oauth.no_block", agent=call.agent_name, error=str(error))
            return []
        return [] if block is None else [block]

    def _pending(self, call: ToolCall) -> Iterator[AuthSession]:
        """Yield the sessions in which the agent's instance waits for a consent of the Turn's subjects."""
        target = self._resume(call).target
        for app in self.manager.apps.values():
            subject = member(member(call.auth, "subjects"), app.subject_mode)
            if isinstance(subject, str):
                for session in self.manager.store.pending_sessions(app.name, subject):
                    if target in {one.target for one in session.resumes}:
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
    """Open the store of a bundle's OAuthApps; ``None`` if it has none. ``in_flight`` counts refreshes.

    Raises:
        ConfigError: the extra ``oauth`` is not installed, or a key of the store is malformed.
        OAuthStoreError: other users may read the keys of the store, or the keys are not those of its grants.
    """
    if not bundle.oauth_apps:
        return None
    with extra("oauth"):
        from goondan_tasks.oauth.consent import open_manager
    manager = open_manager(settings, apps_of(bundle.oauth_apps), redis, in_flight)
    agents = bundle.agents_with_commands()
    if settings.oauth_key is None and agents:
        logger.warning(
            "oauth.key_in_reach",
            agents=agents,
            key_file=str(settings.oauth_key_path),
            what_to_do="Set GOONDAN_OAUTH_KEY: the commands of these agents can read the file.",
        )
    return WorkerOAuth(manager, bundle.swarm(settings.swarm).name, settings.redis_url)
