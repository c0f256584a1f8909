"""Who is told that another revision of the bundle is active: extensions, who committed it, every instance."""

from dataclasses import dataclass

import structlog

from goondan_tasks.agents.revision_event import failure_event, revision_event
from goondan_tasks.errors import GoondanError
from goondan_tasks.messages import ToolCall
from goondan_tasks.revisions.active import CHANGED, RevisionChange, RevisionFailure
from workers.agents.handoffs import Handoffs
from workers.concurrency.threads import on_new_thread
from workers.revisions.revision import Revision
from workers.revisions.revisions import Revisions

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RevisionNews:
    """Tells of the changes in one worker process."""

    revisions: Revisions
    handoffs: Handoffs
    #: the Swarm that counts, if one is named
    swarm: str | None

    def tell(self, change: RevisionChange) -> None:
        """Tell the extensions of the new revision, and if its policy says so the agent that committed it."""
        revision, served = self.revisions.active, self.revisions.served
        on_new_thread(lambda: _emit(revision, served, change))
        if revision.bundle.swarm(self.swarm).spec.policy.changesets.emit_revision_changed_event:
            self._send(revision, revision_event(change))

    def tell_failure(self, failure: RevisionFailure) -> None:
        """Tell the agent that committed a revision that it cannot be loaded, if the policy says so."""
        revision = self.revisions.active
        if revision.bundle.swarm(self.swarm).spec.policy.changesets.emit_revision_changed_event:
            self._send(revision, failure_event(failure))

    def _send(self, revision: Revision, event: ToolCall | None) -> None:
        if event is None or event.agent_name not in revision.bundle.agents:
            return
        try:
            self.handoffs.get_ready()
            self.handoffs.submit_event(event)
        except GoondanError as error:
            logger.warning("revision.not_told", agent=event.agent_name, reason=error.message)


def _emit(revision: Revision, agents: tuple[str, ...], change: RevisionChange) -> None:
    for agent in agents:
        revision.extensions.services.events.emit(agent, CHANGED, change.to_wire())
