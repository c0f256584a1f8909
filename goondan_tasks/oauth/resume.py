"""``auth.granted``: what wakes the agents that have asked for a consent (000 §12.5.6 r7)."""

from dataclasses import dataclass
from typing import Protocol

import structlog

from goondan_tasks.agents.events import AgentEvent, EventSource
from goondan_tasks.errors import GoondanError, ToolCallConflictError
from goondan_tasks.messages import JsonObject, iso_time
from goondan_tasks.oauth.records import AuthSession, OAuthGrant, Resume
from goondan_tasks.run import Clock

GRANTED = "auth.granted"

_log = structlog.get_logger(__name__)


class SendEvent(Protocol):
    """Gives an agent an event, as ``Client.send`` does: one with the same id is not given twice."""

    def __call__(
        self,
        agent: str,
        input: AgentEvent,
        *,
        instance_key: str,
        auth: JsonObject | None,
        origin: JsonObject | None,
        correlation_id: str | None,
    ) -> object:
        """Send it; raise GoondanError if that does not succeed."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """Tells everybody who has asked for a consent that it is given."""

    send: SendEvent
    clock: Clock

    def tell(self, session: AuthSession, grant: OAuthGrant) -> bool:
        """Send ``auth.granted`` to all who wait for this session; False if not everyone could be told.

        It may be called again: nobody is told twice.
        """
        told = [self._tell(resume, session, grant) for resume in session.resumes]
        return all(told)

    def _tell(self, resume: Resume, session: AuthSession, grant: OAuthGrant) -> bool:
        try:
            self.send(
                resume.agent_name,
                granted_event(resume, session, grant, self.clock()),
                instance_key=resume.instance_key,
                auth=resume.auth,
                origin=resume.origin,
                correlation_id=resume.correlation_id,
            )
        except ToolCallConflictError:
            return True  # told before, of a grant that has changed since
        except GoondanError as error:
            _log.warning(
                "oauth.not_resumed", session=session.id, agent=resume.agent_name, error=error.message
            )
            return False
        return True


def granted_event(resume: Resume, session: AuthSession, grant: OAuthGrant, now_ms: float) -> AgentEvent:
    """Return the event; it refers to the grant, and holds no secret of it."""
    return AgentEvent(
        id=f"auth-granted-{session.id}",
        type=GRANTED,
        created_at=iso_time(now_ms),
        trace_id=resume.trace_id,
        instance_key=resume.instance_key,
        metadata={"eventType": GRANTED},
        source=EventSource(kind="connector", name="oauth"),
        input={
            "type": GRANTED,
            "oauthAppRef": {"kind": "OAuthApp", "name": grant.oauth_app},
            "provider": grant.provider,
            "subject": grant.subject,
            "scopesGranted": list(grant.scopes_granted),
            "grantId": grant.name,
            "authSessionId": session.id,
        },
    )
